"""How long an editor waits for a finding: from the keystroke to the diagnostics, over stdio, as a client sees it.

    python benchmarks/server.py                       a made project of 300 files; a file of 1,000 lines is edited
    python benchmarks/server.py FOLDER FILE           your own project; a mistake is typed at the end of FILE

A mistake is typed and removed again and again, in the edited file, and in a file that many others import.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil
from lsprotocol import types
from pygls import uris
from pygls.lsp.client import LanguageClient

MODELS = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        self.features = self.body(x)
        return self.head(torch.relu(self.features))


def clip(parameters, limit):
    total = 0.0
    for p in parameters:
        if p.grad is not None:
            total += p.grad.norm().item() ** 2
    return total**0.5 / limit
"""
HEADER = "import torch\nfrom torch import nn\n\nfrom models import Net, clip\n"
TRAIN = """

def train_{n}(steps=10, rate=0.01):
    net = Net({n})
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    history = []
    for step in range(steps):
        x = torch.randn(8, 4)
        y = x.sum(dim=1, keepdim=True)
        optimizer.zero_grad()
        out = net(x)
        loss = nn.functional.mse_loss(out, y)
        penalty = sum(p.pow(2).sum() for p in net.parameters())
        (loss + 1e-4 * penalty).backward()
        scale = clip(net.parameters(), 1.0)
        if scale > 1:
            for p in net.parameters():
                if p.grad is not None:
                    p.grad.div_(scale)
        optimizer.step()
        history.append(loss.item())
    weight = torch.zeros(4, requires_grad=True)
    for step in range(steps):
        error = (weight * torch.randn(4)).sum()
        error.backward()
        with torch.no_grad():
            weight -= rate * weight.grad
            weight.grad.zero_()
    return history, weight.detach()
"""
LAYER = """

class Block{n}(nn.Module):
    def __init__(self, width, heads=4, dropout=0.1):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * width, width))

    def forward(self, x, mask=None):
        y = self.first(x)
        attended, _ = self.attention(y, y, y, key_padding_mask=mask)
        x = x + attended
        return x + self.feed(self.second(x))


def batches_{n}(data, size, shuffle=True):
    order = torch.randperm(len(data)) if shuffle else torch.arange(len(data))
    for start in range(0, len(data), size):
        chosen = order[start : start + size]
        if len(chosen) < size:
            break
        yield torch.stack([data[i] for i in chosen.tolist()])
"""
MISTAKE = """

w_ = torch.randn(3, requires_grad=True)
h_ = w_ * 2
h_.sum().backward()
print(h_.grad)
"""
PER_FOLDER = 15


def make(folder: Path, files: int) -> tuple[Path, Path]:
    """Folders of 15 scripts around a `models.py`; in the first one `big.py`: a third training loops, the rest layers."""
    for i in range(files):
        part = folder / f"part{i // PER_FOLDER}"
        part.mkdir(exist_ok=True)
        (part / "models.py").write_text(MODELS)
        (part / f"experiment{i}.py").write_text(HEADER + "".join((TRAIN + LAYER).format(n=n) for n in range(1 + i % 3)))
    big = folder / "part0" / "big.py"
    big.write_text(HEADER + "".join(TRAIN.format(n=n) + LAYER.format(n=n) + LAYER.format(n=f"x{n}") for n in range(13)))
    return big, folder / "part0" / "models.py"


class Editor:
    def __init__(self):
        self.client = LanguageClient("benchmark", "1")
        self.waiting: dict[tuple, asyncio.Future] = {}
        self.version = 0

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params):
            if (future := self.waiting.pop((params.uri, params.version), None)) is not None:
                future.set_result((time.perf_counter(), params.diagnostics))

    async def start(self, folder: Path):
        await self.client.start_io(sys.executable, "-m", "gradfix", "server")
        folders = [types.WorkspaceFolder(uris.from_fs_path(str(folder)), folder.name)]
        await self.client.initialize_async(
            types.InitializeParams(types.ClientCapabilities(), workspace_folders=folders)
        )
        self.client.initialized(types.InitializedParams())

    async def show(self, uri: str, text: str) -> tuple[float, list]:
        """Seconds until the diagnostics of this text."""
        self.version += 1
        answer = self.waiting[uri, self.version] = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        if uri not in self.client.shown:
            self.client.shown.add(uri)
            document = types.TextDocumentItem(uri, "python", self.version, text)
            self.client.text_document_did_open(types.DidOpenTextDocumentParams(document))
        else:
            document = types.VersionedTextDocumentIdentifier(uri=uri, version=self.version)
            change = types.TextDocumentContentChangeWholeDocument(text)
            self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))
        end, diagnostics = await answer
        return end - start, diagnostics

    def cpu(self) -> float:
        """Seconds of processor time that the server has used."""
        times = psutil.Process(self.client._server.pid).cpu_times()
        return times.user + times.system

    async def stop(self):
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()


async def measure(folder: Path, *paths: Path, turns: int):
    editor = Editor()
    editor.client.shown = set()
    await editor.start(folder)
    files = sum(1 for p in folder.rglob("*.py"))
    print(f"{files} files, {sum(p.read_bytes().count(10) for p in folder.rglob('*.py')):,} lines")
    for number, file in enumerate(paths):
        uri, text = uris.from_fs_path(str(file)), file.read_text(encoding="utf-8")
        seconds, clean = await editor.show(uri, text)
        if number == 0:
            print(f"first diagnostics after opening {file.name}: {seconds:.2f} s")
        times, used = [], editor.cpu()
        for turn in range(turns):
            typed, found = await editor.show(uri, f"{text}{MISTAKE}{'# ' * turn}")
            assert len(found) > len(clean), found
            removed, found = await editor.show(uri, text + "\n" * turn)
            assert len(found) == len(clean), found
            times += [typed, removed]
        used = (editor.cpu() - used) / len(times)
        times.sort()
        print(
            f"{file.name}, {text.count(chr(10)):,} lines: finding after {statistics.median(times) * 1000:.0f} ms "
            f"(median of {len(times)} edits; 95 % within {times[int(len(times) * 0.95)] * 1000:.0f} ms, worst {times[-1] * 1000:.0f} ms), "
            f"of it {used * 1000:.0f} ms of processor time"
        )
    await editor.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--files", type=int, default=300, help="size of the made project")
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    if options.folder is not None:
        if options.file is None:
            parser.error("FILE is wanted too")
        asyncio.run(measure(options.folder.resolve(), options.file.resolve(), turns=options.turns))
        return
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder).resolve()
        asyncio.run(measure(folder, *make(folder, options.files), turns=options.turns))


if __name__ == "__main__":
    main()

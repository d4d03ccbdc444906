"""The warm project: after any edits it says what a project that was read anew would say, and reads no more than it must."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pygls")

from gradfix import codemod, engine, preview  # noqa: E402
from gradfix.config import Config  # noqa: E402
from gradfix.findings import Finding, Severity, Span  # noqa: E402
from gradfix.runner import Runner  # noqa: E402
from gradfix.server.folder import Document, Folder, Options, encoded, moved  # noqa: E402
from gradfix.server.warm import Cancelled, WarmRunner  # noqa: E402
from gradfix.source import lines_of  # noqa: E402

SETTINGS = engine.settings_from(Config(), "/", codemod.load())
MODEL = """\
import torch
from torch import nn

{comment}class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        {forward}
        return self.body(self.features)
"""
TRAIN = """\
import torch
from {model} import Net
from helper import step

net = Net()
loss = net(torch.randn(2, 4)).sum()
{retain}loss.backward()
print(net.features.grad)
w = torch.randn(3, requires_grad=True)
(w * w).sum().backward()
w = step(w)
"""
HELPER = """\
def step(w):
    {body}
    return w
"""
# path -> the texts that it may have; None: the file is not there.
VERSIONS = {
    "model.py": [
        MODEL.format(comment="", forward="self.features = torch.tanh(x)"),
        MODEL.format(comment="", forward="self.features = torch.tanh(self.body(x))"),
        MODEL.format(comment="# a line more\n", forward="self.features = torch.tanh(self.body(x))"),
        "from other import Net\n",
        "class Net(\n",
        None,
    ],
    "other.py": [MODEL.format(comment="", forward="self.features = self.body(x)"), "Net = 1\n", None],
    "train.py": [
        TRAIN.format(model="model", retain=""),
        TRAIN.format(model="model", retain="net.features.retain_grad()\n"),
        TRAIN.format(model="other", retain=""),
        TRAIN.format(model="pkg.model", retain=""),
        None,
    ],
    "helper.py": [
        HELPER.format(body="w = w - 0.1 * w.grad"),
        HELPER.format(body="w -= 0.1 * w.grad"),
        HELPER.format(body="pass"),
        "# nothing\n",
        None,
    ],
    "pkg/__init__.py": ["", "from model import Net\n", None],
    "pkg/model.py": [MODEL.format(comment="", forward="self.features = self.body(x)"), "from .. import nothing\n", None],
    "mid.py": ["from helper import step\n", "step = print\n", None],
    "caller.py": ["import torch\nimport mid\nnet = torch.nn.Linear(2, 2)\nmid.step(net.weight)\n", None],
    "script.py": ["import train\nprint(train.w.grad)\n", "import helper\nhelper.step(1)\n", None],
}
EDITS = st.lists(st.sampled_from([(p, i) for p, texts in VERSIONS.items() for i in range(len(texts))]), min_size=1, max_size=12)


def said(result):
    return result.findings, result.problems


@settings(max_examples=100, deadline=None)
@given(EDITS)
def test_warm_is_cold(edits):
    warm = WarmRunner()
    now = {path: texts[0] for path, texts in VERSIONS.items()}
    now["helper.py"] = VERSIONS["helper.py"][2]  # holds no root, and so its callers are not looked at
    for path, index in [("train.py", 0), *edits]:
        now[path] = VERSIONS[path][index]
        overlay = {f"/p/{p}": text.encode() for p, text in now.items() if text is not None}
        files = sorted(overlay)
        with Runner(1) as cold:
            assert said(engine.check(files, SETTINGS, warm, overlay)) == said(engine.check(files, SETTINGS, cold, overlay))


def counted(runner):
    """The files that the next check observes anew."""
    seen = []
    runner.progress = lambda done, total: seen.append(total)
    return seen


def test_only_readers_of_an_edited_file_are_observed_again():
    overlay = {f"/p/{p}": texts[0].encode() for p, texts in VERSIONS.items()}
    overlay |= {f"/p/alone{i}.py": f"w{i}.grad\nw.backward()\n".encode() for i in range(20)}
    runner, files = WarmRunner(), sorted(overlay)
    seen = counted(runner)
    engine.check(files, SETTINGS, runner, overlay)
    assert len(seen) == len(files)
    seen.clear()
    engine.check(files, SETTINGS, runner, dict(overlay))
    assert seen == []
    overlay["/p/alone3.py"] += b"x = 1\n"
    engine.check(files, SETTINGS, runner, overlay)
    assert len(seen) == 1
    seen.clear()
    overlay["/p/model.py"] = VERSIONS["model.py"][1].encode()
    engine.check(files, SETTINGS, runner, overlay)
    assert len(seen) == 2  # itself and train.py; what script.py asks of train.py needs no model


def test_a_stopped_check_keeps_what_it_did():
    overlay = {f"/p/alone{i}.py": f"w{i}.grad\nw.backward()\n".encode() for i in range(20)}
    runner, files = WarmRunner(), sorted(overlay)
    seen = counted(runner)
    runner.cancelled = lambda: len(seen) == 12
    with pytest.raises(Cancelled):
        engine.check(files, SETTINGS, runner, overlay)
    runner.cancelled = lambda: False
    engine.check(files, SETTINGS, runner, overlay)
    assert len(seen) == 20


def test_a_trial_leaves_no_trace(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.format(model="model", retain=""))
    (tmp_path / "model.py").write_text(VERSIONS["model.py"][1])
    (tmp_path / "helper.py").write_text(VERSIONS["helper.py"][2])
    folder = Folder(str(tmp_path), Options(isolated=True))
    document = Document("", str(tmp_path / "train.py"), (tmp_path / "train.py").read_text())
    folder.check([document])
    found = document.findings
    (replaced,) = folder.fix_all(document)
    assert replaced.content == "net.features.retain_grad()\n" and (replaced.row, replaced.end_row) == (7, 7)
    seen = counted(folder.runner)
    folder.check([document])
    assert seen == [] and document.findings == found != []


def test_files_on_disk_are_read_again_when_they_changed(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.format(model="model", retain=""))
    (tmp_path / "model.py").write_text(VERSIONS["model.py"][1])
    folder = Folder(str(tmp_path), Options(isolated=True))
    document = Document("", str(tmp_path / "train.py"), (tmp_path / "train.py").read_text())
    folder.check([document])
    assert "GF101" in [f.code for f in document.findings]
    (tmp_path / "model.py").write_text("Net = unknown\n")
    folder.refresh()
    folder.check([document])
    assert "GF101" not in [f.code for f in document.findings]
    seen = counted(folder.runner)
    (tmp_path / "model.py").write_text("Net = unknown\n")  # a new time, the old text
    folder.refresh()
    folder.check([document])
    assert seen == []
    (tmp_path / "model.py").unlink()
    folder.refresh()
    folder.check([document])
    assert seen


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n"]), max_size=12)


@given(LINES, LINES, st.data())
def test_a_finding_moves_with_its_lines(old, new, data):
    if not old:
        return
    first = data.draw(st.integers(1, len(old)))
    last = data.draw(st.integers(first, len(old)))
    finding = Finding("GF101", "x", "a.py", Span(first, 0, last, 1), "", Severity.ERROR)
    after = moved(finding, preview.changes(old, new))
    if after is not None:
        assert new[after.span.row - 1 : after.span.end_row] == old[first - 1 : last]
    assert moved(finding, preview.changes(old, old)) == dataclasses.replace(finding)
    tail = preview.changes(old, [*old, "z\n"])
    assert moved(finding, tail) == finding
    assert moved(finding, preview.changes(old, ["z\n", *old])).span.row == first + 1


@pytest.mark.parametrize(
    "text, data",
    [
        ("é = 1\n", "é = 1\n".encode()),
        ("# coding: latin-1\né = 1\n", "# coding: latin-1\né = 1\n".encode("latin-1")),
        ("# coding: latin-1\n𝄞 = 1\n", "# coding: latin-1\n𝄞 = 1\n".encode()),
        ("# coding: nonsense\n", b"# coding: nonsense\n"),
    ],
)
def test_a_text_is_read_in_the_encoding_that_it_declares(text, data):
    assert encoded(text) == data


def test_lines_are_pythons():
    assert lines_of("a\x0cb\u2028c\rd\r\ne") == ["a\x0cb\u2028c\r", "d\r\n", "e"]

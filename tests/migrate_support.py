"""Small repositories, and `gradfix migrate` over them in this process."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from gradfix import cli

PIECES = {
    "retain": "def retain():\n    w = torch.ones(3, requires_grad=True)\n    h = w * 2\n    h.sum().backward()\n    return h.grad\n",
    "rebind": "def rebind(steps=2):\n    w = torch.zeros(1, requires_grad=True)\n    for _ in range(steps):\n"
    "        loss = ((w - 1) ** 2).sum()\n        loss.backward()\n        w = w - 0.1 * w.grad\n    return w\n",
    "norm": "def norm(model):\n    total = 0.0\n    for p in model.parameters():\n        total += p.grad.norm()\n    return total\n",
    "typo": "net = torch.nn.Linear(2, 1)\nnet.weight.require_grad = False\n",
    "integer": "steps = torch.tensor([1, 2], requires_grad=True)\n",
    "item": "def item():\n    w = torch.ones(3, requires_grad=True)\n    loss = torch.tensor(w.sum().item(), requires_grad=True)\n"
    "    loss.backward()\n",
    "right": "def right():\n    w = torch.ones(3, requires_grad=True)\n    w.sum().backward()\n    return w.grad\n",
}


def git(folder, *arguments: str, check: bool = True) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
    for who in ("AUTHOR", "COMMITTER"):
        env.update({f"GIT_{who}_NAME": "Ada", f"GIT_{who}_EMAIL": "ada@example.org", f"GIT_{who}_DATE": "1600000000 +0200"})
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, env=env)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


def write_files(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def module(*pieces: str) -> str:
    return "import torch\n\n" + "\n".join(PIECES[p] for p in pieces)


def repository(folder: Path, files: dict[str, str | bytes] | None = None) -> Path:
    folder.mkdir(parents=True)
    write_files(folder, files if files is not None else {"train.py": module("retain", "norm", "item")})
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "First")
    return folder


def many(folder: Path, number: int, seed: int = 0) -> list[Path]:
    """`number` repositories of one to four modules each, drawn from the pieces."""
    draw = random.Random(seed)
    out = []
    for i in range(number):
        files = {"README.md": f"# {i}\n"}
        for k in range(draw.randint(1, 4)):
            files[f"part{k}.py"] = module(*draw.sample(sorted(PIECES), draw.randint(1, 4)))
        out.append(repository(folder / f"repo{i:03}", files))
    return out


def state(repo: Path) -> dict[str, str]:
    """Every branch and what it points at, and that the checkout is clean."""
    refs = dict(line.split()[::-1] for line in git(repo, "for-each-ref", "--format=%(objectname) %(refname)").splitlines())
    return {**refs, "HEAD": git(repo, "rev-parse", "HEAD"), "dirty": git(repo, "status", "--porcelain")}


class Migrate:
    def __init__(self, folder: Path, capfd):
        self.folder, self.capfd = folder, capfd
        self.journal = folder / "journal.sqlite"

    def __call__(self, *arguments, journal: bool = True):
        given = ["--journal", str(self.journal)] if journal else []
        self.capfd.readouterr()
        self.code = cli.run(["migrate", *map(str, arguments), *given])
        self.out, self.err = self.capfd.readouterr()
        return self


@pytest.fixture
def migrate(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return Migrate(tmp_path, capfd)

"""Torch is the judge: every fixture is run before and after its repair, in a forked child of this process."""

import json
import os
import re
import signal
import sys
import types
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradfix.cli import app

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

FIXTURES = sorted(p for p in (Path(__file__).parent.parent / "fixtures").glob("*/*.py") if not p.stem.startswith("ok_"))
SAME_GRADIENTS = {"retain-grad", "none-guarded-grad"}  # rules whose repairs leave right gradients alone
LIMIT = 20  # seconds for one script


def flat(tensor):
    return None if tensor is None else tensor.detach().double().reshape(-1).tolist()


def gradients(namespace):
    """{name: gradient} of the leaves that a script left in its globals."""
    out = {}
    for name, value in namespace.items():
        if isinstance(value, torch.Tensor) and value.is_leaf:
            out[name] = flat(value.grad)
        elif isinstance(value, torch.nn.Module):
            out.update({f"{name}.{k}": flat(p.grad) for k, p in value.named_parameters()})
    return out


def run(source: str) -> dict:
    """{"error", "gradients"} of a script, run in a forked child with a time limit and no terminal."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            signal.alarm(LIMIT)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            torch.set_num_threads(1)
            module = types.ModuleType("__main__")
            sys.modules["__main__"] = module
            error = None
            try:
                exec(compile(source, "script.py", "exec"), module.__dict__)
            except BaseException as e:
                error = type(e).__name__
            with os.fdopen(write, "w") as handle:
                json.dump({"error": error, "gradients": gradients(module.__dict__)}, handle)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as handle:
        text = handle.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "died or ran too long", "gradients": {}}


def repaired(path, tmp_path) -> str:
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    CliRunner().invoke(app, ["apply", str(copy), "--isolated", "--unsafe-fixes", "--no-cache", "--quiet"])
    return copy.read_text()


@pytest.mark.parametrize("path", FIXTURES, ids=[f"{p.parent.name}-{p.stem}" for p in FIXTURES])
def test_the_repaired_script_runs(path, tmp_path):
    source = path.read_text()
    after_source = repaired(path, tmp_path)
    if after_source == source:
        assert path.parent.name == "item-in-graph", "only flags are left as they are"
        return
    before, after = run(source), run(after_source)
    if after["error"] in ("ModuleNotFoundError", "AssertionError") or re.search(r"cuda", source):
        pytest.skip("needs a package or a device that is not here")
    assert after["error"] is None, after
    if path.parent.name in SAME_GRADIENTS and before["error"] is None:
        for name, gradient in before["gradients"].items():
            if gradient is not None:
                assert after["gradients"][name] == gradient, name


def test_a_wrong_rewrite_would_be_seen():
    right = "import torch\nw = torch.ones(2, requires_grad=True)\n(w * w).sum().backward()\n"
    wrong = right.replace("w * w", "w * -w")
    assert run(right)["gradients"]["w"] == [2.0, 2.0]
    assert run(wrong)["gradients"] != run(right)["gradients"]
    assert run("raise ValueError")["error"] == "ValueError"

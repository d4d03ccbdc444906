"""Torch is the judge: every fixture is run before and after its repair, in a forked child of this process.

Recorded per run: the gradient of each leaf after each backward, the gradients that the globals hold at the end, and
the exception, if one ended it.
"""

import json
import os
import re
import signal
import sys
import types
import warnings

import pytest
from fixture_support import FIXTURES, fixture_id, repaired

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

MISTAKES = [p for p in FIXTURES if not p.stem.startswith("ok_")]
LOOKALIKES = [p for p in FIXTURES if p.stem.startswith("ok_")]
# Rules whose repairs leave every gradient as it was that was there before: what follows may only be more.
ADD_ONLY = {"retain-grad", "none-guarded-grad", "inplace-leaf-update"}
LIMIT = 20  # seconds for one script


@pytest.fixture(scope="module", autouse=True)
def warm():
    """The first optimizer imports much; do it here and not in every child.  (No backward: it starts threads.)"""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def flat(tensor):
    return None if tensor is None else tensor.detach().double().reshape(-1).tolist()


def leaves(roots):
    """The leaves that backward from `roots` reaches, in the order of a walk over the graph."""
    found, seen, todo = [], set(), [r.grad_fn for r in roots if r.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo.extend(n for n, _ in node.next_functions if n is not None)
    return found


def gradients(namespace):
    """{name: gradient} of the tensors and modules that a script left in its globals, also inside lists and dicts."""
    out = {}

    def visit(name, value, depth=0):
        if isinstance(value, torch.Tensor):
            if value.is_leaf or value.retains_grad:
                out[name] = flat(value.grad)
        elif isinstance(value, torch.nn.Module):
            out.update({f"{name}.{k}": flat(p.grad) for k, p in value.named_parameters()})
        elif isinstance(value, (list, tuple)) and depth < 3:
            for i, v in enumerate(value):
                visit(f"{name}[{i}]", v, depth + 1)
        elif isinstance(value, dict) and depth < 3:
            for k, v in value.items():
                visit(f"{name}[{k!r}]", v, depth + 1)

    for name, value in namespace.items():
        if not name.startswith("__"):
            visit(name, value)
    return out


def run(source) -> dict:
    """{"error", "events", "gradients"} of a script, run in a forked child with a time limit and no terminal."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            signal.alarm(LIMIT)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            sys.stdin = open(0, closefd=False)
            sys.stdout = sys.stderr = open(1, "w", closefd=False)
            with os.fdopen(write, "w") as handle:
                json.dump(in_child(source), handle)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as handle:
        text = handle.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "died or ran too long", "events": [], "gradients": {}}


def in_child(source):
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    events, true_backward = [], torch.autograd.backward

    def backward(tensors, *args, **kwargs):
        reached = leaves([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
        true_backward(tensors, *args, **kwargs)
        events.append([flat(leaf.grad) for leaf in reached])

    torch.autograd.backward = backward
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    error = None
    try:
        exec(compile(source, "script.py", "exec"), module.__dict__)
    except BaseException as e:
        error = f"{type(e).__name__}: {e}"
    return {"error": error, "events": events, "gradients": gradients(module.__dict__)}


def can_run(path):
    text = path.read_text()
    if re.search(r"\.cuda\(|[\"']cuda", text) and "cuda.is_available()" not in text and not torch.cuda.is_available():
        pytest.skip("needs CUDA")


@pytest.mark.parametrize("path", MISTAKES, ids=map(fixture_id, MISTAKES))
def test_the_repaired_script_runs(path):
    source = path.read_bytes()
    after_source, applied = repaired(path)
    if not applied.fixed:
        assert after_source == source
        return
    can_run(path)
    before, after = run(source), run(after_source)
    if str(before["error"]).startswith("ModuleNotFoundError"):
        pytest.skip("needs a package that is not here")
    assert after["error"] is None
    assert len(after["events"]) >= len(before["events"])
    if path.parent.name not in ADD_ONLY:
        return
    assert after["events"][: len(before["events"])] == before["events"]
    if before["error"] is None:
        for name, gradient in before["gradients"].items():
            if gradient is not None:
                assert after["gradients"][name] == gradient, name


@pytest.mark.parametrize("path", LOOKALIKES, ids=map(fixture_id, LOOKALIKES))
def test_look_alikes_are_right(path):
    can_run(path)
    error = run(path.read_bytes())["error"]
    if str(error).startswith("ModuleNotFoundError"):
        pytest.skip("needs a package that is not here")
    assert error is None


def test_a_wrong_rewrite_would_be_seen():
    right = "import torch\nw = torch.ones(2, requires_grad=True)\n(w * w).sum().backward()\n"
    wrong = right.replace("w * w", "w * -w")
    assert run(right)["gradients"]["w"] == [2.0, 2.0] and run(right)["events"] == [[[2.0, 2.0]]]
    assert run(wrong)["gradients"] != run(right)["gradients"] and run(wrong)["events"] != run(right)["events"]
    assert run("raise ValueError")["error"] == "ValueError: "

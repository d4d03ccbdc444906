"""The operation table against torch: PyTorch's own samples (`op_db`) are executed, and torch is right."""

import importlib.metadata
import importlib.util
import json
import warnings
from pathlib import Path

import pytest

from gradfix.analysis import operations

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
ROOT = Path(__file__).parent.parent


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors(v)


def outcomes(op, limit=4):
    """(an output required grad, an input that requires grad was given, outputs that are views, all outputs are numbers)"""
    recorded = given = view = False
    plain = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=True)):
            if i >= limit:
                break
            inputs = [t for t in tensors([sample.input, list(sample.args), list(sample.kwargs.values())]) if t.requires_grad]
            if not inputs:
                continue
            try:
                result = op.op(sample.input, *sample.args, **sample.kwargs)
            except Exception:
                continue
            given = True
            out = list(tensors(result))
            plain &= not out
            recorded |= any(t.requires_grad for t in out)
            view |= any(t._is_view() for t in out)
    return recorded, given, view, plain


def differentiates(op):
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=True)))
    try:
        out = next(t for t in tensors(op.op(sample.input, *sample.args, **sample.kwargs)) if t.requires_grad)
        out.sum().backward()
    except (RuntimeError, NotImplementedError, StopIteration):
        return False
    return True


def database():
    from torch.testing._internal.common_methods_invocations import op_db

    seen = set()
    for op in op_db:
        if "." in op.name or op.name in seen or torch.float32 not in op.dtypes:
            continue
        if operations.lookup(op.name) is not None and not op.variant_test_name:
            seen.add(op.name)
            yield op


def test_the_table_says_what_torch_does():
    contradictions, checked = [], 0
    for op in database():
        claim = operations.lookup(op.name)
        recorded, given, view, plain = outcomes(op)
        if not given:
            continue
        checked += 1
        if claim.cut == "number" and not plain:
            contradictions.append(f"{op.name}: said to return a number")
        if claim.cut in ("integer", "detach") and recorded:
            contradictions.append(f"{op.name}: said to cut, but its output requires grad")
        if claim.differentiable and not recorded:
            contradictions.append(f"{op.name}: said to be differentiable, but no output requires grad")
        if claim.cut == "raises" and recorded and differentiates(op):
            contradictions.append(f"{op.name}: said to have no derivative, but it has")
        if view and not claim.view and not claim.differentiable and claim.cut != "integer":
            contradictions.append(f"{op.name}: returns a view")
    assert checked > 250
    assert contradictions == []


def test_zero_gradients_are_zero():
    names = [n for n in operations.names() if operations.lookup(n).zero_gradient and operations.lookup(n).function and not n.endswith("_")]
    assert {"round", "floor", "ceil", "trunc", "sign", "bernoulli", "poisson"} <= set(names)
    for name in names:
        x = torch.tensor([0.4, 0.9, 0.1] if name in ("bernoulli", "poisson") else [0.4, -1.6, 2.2], requires_grad=True)
        try:
            y = getattr(torch, name)(x)
        except (AttributeError, TypeError):
            continue
        (gradient,) = torch.autograd.grad(y.sum(), x, allow_unused=True)
        assert gradient is not None and not gradient.any(), name


def test_what_is_drawn_around_a_mean_has_a_gradient_of_zero():
    assert operations.lookup("normal").zero_gradient
    mean, std = (torch.rand(3, requires_grad=True) for _ in range(2))
    for draw in (torch.normal(mean, std), torch.normal(mean, 1.0), torch.normal(0.0, std)):
        gradients = torch.autograd.grad(draw.sum(), (mean, std), allow_unused=True)
        assert any(g is not None for g in gradients) and not any(g.any() for g in gradients if g is not None)


def test_in_place_operations_change_their_tensor():
    for name in ("add_", "mul_", "clamp_", "zero_", "relu_", "sub_", "copy_", "fill_"):
        assert operations.lookup(name).inplace
    assert not operations.lookup("add").inplace


@pytest.mark.skipif(importlib.metadata.version("torch").split("+")[0] != operations.torch_version(), reason="another torch")
def test_the_generator_reproduces_the_file():
    spec = importlib.util.spec_from_file_location("generate_operations", ROOT / "tools" / "generate_operations.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.generate() == json.loads((ROOT / "gradfix" / "analysis" / "operations.json").read_text())

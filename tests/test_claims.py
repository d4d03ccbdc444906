"""What the analysis claims about tensors is what torch says: over the fixtures and over random programs (tools/claims.py)."""

import importlib.util
import sys
from pathlib import Path

import hypothesis
import pytest

torch = pytest.importorskip("torch")

TOOLS = Path(__file__).resolve().parent.parent / "tools"
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def tool(name):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


claims, torch_programs = tool("claims"), tool("torch_programs")


def test_fixtures():
    report = claims.Report()
    for folder in sorted(FIXTURES.iterdir()):
        for path in sorted(folder.glob("*.py"))[::8]:  # `tools/claims.py fixtures` looks at all of them
            try:
                compile(path.read_bytes(), str(path), "exec")
            except SyntaxError:
                continue
            claims.check_text(str(path), path.read_text(encoding="utf-8"), report, path)
    assert report.contradictions == []
    assert report.checked > 2000 and report.share > 0.7


@hypothesis.settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(torch_programs.program())
def test_programs(text):
    report = claims.Report()
    claims.check_text("program", text, report)
    assert report.contradictions == [], text


def test_many_programs_get_definite_claims():
    report = claims.Report()
    for number, text in enumerate(torch_programs.programs(60, seed=0)):
        claims.check_text(f"program {number}", text, report)
    assert report.contradictions == []
    assert report.checked > 5000 and report.share > 0.7


WRONG = """\
import torch

w = torch.ones(2, requires_grad=True)
h = w * 2
with torch.no_grad():
    c = h + 1
"""


@pytest.mark.parametrize(
    ("instead", "words"),
    [
        (WRONG.replace("w * 2", "w.detach() * 2"), "is_leaf"),
        (WRONG.replace("torch.no_grad", "torch.enable_grad"), "grad mode on"),
        (WRONG.replace(", requires_grad=True", ""), "requires_grad"),
        (WRONG.replace("w * 2", "2"), "a tensor"),
    ],
)
def test_a_wrong_claim_is_seen(instead, words):
    """The analysis reads one program, and another one runs that differs in one fact."""
    report = claims.Report()
    seen, error = claims.run_program("other.py", WRONG)
    assert error is None
    stated = claims.observe_statically("program.py", {"program.py": WRONG.encode()})
    claims.compare("program", WRONG, stated, seen, report)
    assert report.contradictions == [] and report.checked > 20
    stated = claims.observe_statically("program.py", {"program.py": instead.encode()})
    moved = {place: claim for place, claim in stated.items() if place in seen}
    claims.compare("program", WRONG, moved, seen, report)
    assert any(words in line for line in report.contradictions)

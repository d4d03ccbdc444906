"""The documentation of each rule: its headings, and that its own example behaves as it says."""

import re
from pathlib import Path

import pytest
from fixture_support import ROOT, RULES, apply, check, is_legacy
from typer.testing import CliRunner

from gradfix.cli import app

HEADINGS = ["What it does", "Why it is wrong", "Example", "Instead", "Fix safety", "References"]
SNAPSHOTS = Path(__file__).parent / "__snapshots__" / "test_fixtures"
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def sections(rule):
    parts = re.split(r"^(.+)\n-+$", rule.doc, flags=re.M)
    assert not parts[0].strip()
    return dict(zip(parts[1::2], parts[2::2]))


def program(rule, heading):
    (code,) = re.findall(r"```python\n(.*?)```", sections(rule)[heading], re.S)
    return code.encode()


def codes(data, legacy):
    result = check(data, legacy)
    assert not result.problems
    return {f.code for f in result.findings}


@every_rule
def test_headings(rule):
    assert list(sections(rule)) == HEADINGS
    for heading in HEADINGS:
        assert sections(rule)[heading].strip(), f"nothing under {heading}"
    assert re.search(r"https://", sections(rule)["References"])


@every_rule
def test_example_and_instead(rule):
    wrong, legacy = program(rule, "Example"), is_legacy(rule.name)
    assert codes(wrong, legacy) == {rule.code}
    assert codes(program(rule, "Instead"), legacy) == set()
    after, applied = apply(wrong, legacy=legacy)
    assert (after != wrong) == rule.fixable
    if rule.fixable:
        assert rule.code not in {f.code for f in applied.result.findings}


@every_rule
def test_rule_is_explained(rule):
    for word in (rule.name, rule.code):
        shown = CliRunner().invoke(app, ["rule", word])
        assert shown.exit_code == 0
        assert all(heading in shown.output for heading in HEADINGS)
        assert rule.name in shown.output and rule.code in shown.output


@every_rule
def test_fixture_folder_and_snapshot(rule):
    mistakes = [p for p in (ROOT / rule.name).glob("*.py") if not p.stem.startswith("ok_")]
    assert mistakes
    for path in mistakes:
        assert (SNAPSHOTS / f"test_repair[{rule.name}-{path.stem}].diff").is_file(), path


def test_codes_and_names_are_unique():
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
    folders = {p.name for p in ROOT.iterdir() if p.is_dir()} - {"showcase"}
    assert folders <= {rule.name for rule in RULES}, "a fixture folder without a rule"
    listed = CliRunner().invoke(app, ["rules"]).output
    assert all(rule.code in listed and rule.name in listed for rule in RULES)


def test_the_readme_lists_each_rule_with_its_best_repair():
    """`safe`, `unsafe` or none: the best that the fixtures of the rule get."""
    text = (ROOT.parent / "README.md").read_text()
    listed = {code: (name, repair) for code, name, repair in re.findall(r"^\| (GF\d+) \| ([a-z-]+) \| (\S+) \|", text, re.M)}
    best = {}
    for rule in RULES:
        if is_legacy(rule.name):
            continue
        findings = [f for p in (ROOT / rule.name).glob("*.py") for f in check(p.read_bytes()).findings if f.code == rule.code]
        kinds = {f.fix.applicability.value for f in findings if f.fix is not None}
        best[rule.code] = (rule.name, "safe" if "safe" in kinds else "unsafe" if kinds else "–")
    assert listed == best


def test_the_readme_shows_real_output(monkeypatch):
    monkeypatch.chdir(ROOT.parent)
    text = (ROOT.parent / "README.md").read_text()
    diff = CliRunner().invoke(app, ["apply", "--dry-run", "--isolated", "fixtures/showcase"]).stdout
    explained = CliRunner().invoke(app, ["check", "--isolated", "fixtures/showcase"]).stdout
    assert f"```diff\n{diff}```" in text
    (shown,) = re.findall(r"```\n(error\[GF101\].*?)```", text, re.S)
    assert shown.strip() in explained


def test_what_the_analysis_believes_is_told(tmp_path):
    script = tmp_path / "a.py"
    script.write_text("import torch\na = torch.ones(1, requires_grad=True)\nb = a * 3\nb.sum().backward()\nprint(a.grad, b.grad, a.numpy)\n")
    told = CliRunner().invoke(app, ["check", "--isolated", "--explain-analysis", f"{script}:5"]).stdout
    believed = dict(line.split(maxsplit=1) for line in told.splitlines() if not line.startswith("print"))
    assert believed["a"].startswith("tensor (leaf: yes, requires grad: yes, grad: set")
    assert believed["b"].startswith("tensor (leaf: no, requires grad: yes, grad: none")
    assert believed["b.grad"] == "gradient (none)" and believed["a.numpy"] == "method numpy"

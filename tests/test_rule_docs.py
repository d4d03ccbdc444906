"""The documentation of each rule: its headings, and that its own example behaves as it says."""

import re

import pytest
from typer.testing import CliRunner

from gradfix.analysis import Facts, Project, observe
from gradfix.cli import app
from gradfix.codemod import load

RULES = [rule for rule in load() if rule.code != "GF001"]
HEADINGS = ["What it does", "Why it is wrong", "Example", "Instead", "Fix safety", "References"]


def sections(rule):
    parts = re.split(r"^(.+)\n-+$", rule.doc, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def program(rule, heading):
    return re.search(r"```python\n(.*?)```", sections(rule)[heading], re.S)[1]


def codes(path):
    project = Project((str(path),))
    facts = Facts(project, [observe(project, [str(path)])])
    return {f.code for rule in RULES for f in rule.run(facts)}


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_documentation(rule, tmp_path):
    assert list(sections(rule)) == HEADINGS
    wrong, right = tmp_path / "wrong.py", tmp_path / "right.py"
    wrong.write_text(program(rule, "Example"))
    right.write_text(program(rule, "Instead"))
    assert codes(wrong) == {rule.code}
    assert codes(right) == set()
    shown = CliRunner().invoke(app, ["rule", rule.name])
    assert shown.exit_code == 0 and "Why it is wrong" in shown.output
    if rule.fixable:
        CliRunner().invoke(app, ["apply", str(wrong), "--isolated", "--unsafe-fixes", "--no-cache"])
        assert rule.code not in codes(wrong)

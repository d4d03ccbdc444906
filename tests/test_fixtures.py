"""Every fixture: what is reported where, what the repair looks like, and that it is stable.

A line that must be reported ends in `# expect: CODE`; files named `ok_*` hold look-alikes.
"""

import ast
import difflib
import re
import shutil
from pathlib import Path

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from typer.testing import CliRunner

from gradfix.analysis import Facts, Project, observe
from gradfix.cli import app
from gradfix.codemod import load

FIXTURES = sorted(p for p in (Path(__file__).parent.parent / "fixtures").glob("*/*.py") if p.parent.name != "showcase")
RULES = [rule for rule in load() if rule.code != "GF001"]
ids = [f"{p.parent.name}-{p.stem}" for p in FIXTURES]


class DiffExtension(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "diff"


@pytest.fixture
def diff_snapshot(snapshot):
    return snapshot.use_extension(DiffExtension)


def findings(path):
    project = Project((str(path),))
    observations = observe(project, [str(path)])
    assert not observations.problems
    facts = Facts(project, [observations])
    return {(f.code, f.span.row) for rule in RULES for f in rule.run(facts)}


def apply(path):
    return CliRunner().invoke(app, ["apply", str(path), "--isolated", "--unsafe-fixes", "--no-cache", "--quiet"])


@pytest.mark.parametrize("path", FIXTURES, ids=ids)
def test_reports(path):
    expected = {
        (code, row)
        for row, line in enumerate(path.read_text().splitlines(), 1)
        for code in re.findall(r"# expect: (GF\d+)", line)
    }
    assert bool(expected) != path.stem.startswith("ok_")
    assert findings(path) == expected


@pytest.mark.parametrize("path", FIXTURES, ids=ids)
def test_repair(path, tmp_path, diff_snapshot):
    copy = tmp_path / path.name
    shutil.copy(path, copy)
    before = copy.read_text()
    result = apply(copy)
    assert result.exit_code in (0, 1), result.output
    after = copy.read_text()
    ast.parse(after)
    apply(copy)
    assert copy.read_text() == after, "a second run changes something"
    if path.stem.startswith("ok_"):
        assert after == before
    else:
        diff = difflib.unified_diff(before.splitlines(True), after.splitlines(True), "before", "after")
        assert "".join(diff) == diff_snapshot


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_fixtures(rule):
    names = [p.stem for p in FIXTURES if p.parent.name == rule.name]
    assert any(not n.startswith("ok_") for n in names) and any(n.startswith("ok_") for n in names), names

"""Every fixture: what is reported where, what the repair looks like, and that it is stable.

A line that must be reported ends in `# expect: CODE`; files named `ok_*` hold look-alikes.
"""

import pytest
from fixture_support import FIXTURES, RULES, SHOWCASE, apply, check, diff, expected, fixture_id, found, is_legacy, repaired
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

every_fixture = pytest.mark.parametrize("path", FIXTURES, ids=map(fixture_id, FIXTURES))


class DiffExtension(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "diff"


@pytest.fixture
def diff_snapshot(snapshot):
    return snapshot.use_extension(DiffExtension)


@every_fixture
def test_reports(path):
    assert bool(expected(path)) != path.stem.startswith("ok_"), "a mistake has `# expect:`, a look-alike has none"
    result = check(path.read_bytes(), is_legacy(path.parent.name))
    assert not result.problems
    assert found(result) == expected(path)


@every_fixture
def test_repair(path, diff_snapshot):
    before = path.read_bytes()
    after, applied = repaired(path)
    assert not applied.result.problems
    compile(after, path.name, "exec", dont_inherit=True)
    if path.stem.startswith("ok_"):
        assert after == before
    else:
        assert diff(before, after) == diff_snapshot
        flagged = {f.code for f in check(before, is_legacy(path.parent.name)).findings if f.fix is None}
        assert {f.code for f in applied.result.findings} <= flagged, "a repair leaves its own finding"
    again, _ = apply(after, legacy=is_legacy(path.parent.name))
    assert again == after, "a second run changes something"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_fixtures(rule):
    mine = [p for p in FIXTURES if p.parent.name == rule.name]
    mistakes = [p for p in mine if not p.stem.startswith("ok_")]
    assert len(mistakes) >= (8 if rule.fixable else 4)
    assert len(mine) - len(mistakes) >= 2
    assert all(rule.code in {code for code, _ in expected(p)} for p in mistakes)


def test_showcase_holds_each_core_mistake_once(diff_snapshot):
    before = SHOWCASE.read_bytes()
    assert sorted(f.code for f in check(before).findings) == [
        "GF101", "GF102", "GF201", "GF202", "GF203", "GF301", "GF302", "GF401", "GF501", "GF502",
    ]  # fmt: skip
    after, applied = apply(before)
    assert not applied.result.problems and not applied.result.findings
    assert diff(before, after) == diff_snapshot

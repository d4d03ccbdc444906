"""Every output format: valid by its published schema, its places where a person sees them, its fixes those of `apply`."""

import gzip
import io
import json
import shutil
from collections import Counter
from pathlib import Path

import format_support as support
import jsonschema
import pytest
from format_support import FILES, PLACES, READERS, ROWS, WITH_COLUMNS, WITH_FIXES

import gradfix.reports
import gradfix.reports.json
import gradfix.reports.junit
from gradfix import codemod, engine, positions, preview
from gradfix.cli import run
from gradfix.reports import sarif
from gradfix.rewriting import apply, rewrite
from gradfix.runner import Runner

FORMATS = tuple(READERS)
FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(name: str, *more: str) -> str:
    run(["check", "--isolated", "--quiet", "--output-format", name, "--output-file", "../report", "-j1", *more])
    return Path("../report").read_text(encoding="utf-8")


@pytest.fixture
def workspace(here, monkeypatch):
    folder = here / "work"
    folder.mkdir()
    (folder / ".git").mkdir()
    monkeypatch.chdir(folder)
    support.write_files(folder)
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    files = [p for p in sorted(folder.rglob("*")) if p.suffix in (".py", ".ipynb")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def verify_places(name: str) -> None:
    found = READERS[name](report(name))
    assert [r.path for r in found if r.code is None] == ["broken.py"]
    assert {(r.path, r.code) for r in found if r.code} == set(PLACES)
    for r in found:
        if r.code:
            rows = ROWS[r.path, r.code]
            assert r.rows == rows or (name == "junit" and r.rows[0] == rows[0])
            if name == "junit":
                assert r.text.startswith(PLACES[r.path, r.code])
            if name in WITH_COLUMNS and not (name == "github" and rows[0] != rows[1]):
                assert r.text == PLACES[r.path, r.code]


def verify_fixes(name: str, folder: Path, rounds: int = 10) -> None:
    """The report's fixes, applied by the reader until there are none, against `gradfix apply`."""
    before = snapshot(folder)
    run(["apply", "--isolated", "--quiet", "--unsafe-fixes", "--output-file", "../applied", "-j1"])
    wanted = snapshot(folder)
    assert wanted != before
    for path, data in before.items():
        (folder / path).write_bytes(data)
    for _ in range(rounds):
        if not support.apply_once(READERS[name](report(name))):
            break
    assert snapshot(folder) == wanted


@pytest.mark.parametrize("name", FORMATS)
def test_places(name, workspace):
    verify_places(name)


@pytest.mark.parametrize("name", WITH_FIXES)
def test_fixes(name, workspace):
    verify_fixes(name, workspace)


CELLS = [
    "# é𝄞\nimport torch\nx = torch.randn(3, requires_grad=True)\n",
    "%matplotlib inline\ns = '\"é𝄞\\\\'; h = x * 2\nh.sum().backward()\n'\t𝄞'; print(h.grad)\n'𝄞', torch.tensor(\n  [1], requires_grad=True)",
]


def notebook(folder: Path, ascii_only: bool, as_lists: bool, newline: str, more=()) -> None:
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": text.splitlines(True) if as_lists else text}
        for text in (*CELLS, *more)
    ]
    text = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}, indent=1, ensure_ascii=ascii_only)
    (folder / "n.ipynb").write_bytes(text.replace("\n", newline).encode())


@pytest.fixture
def lesson(here, monkeypatch):
    folder = here / "work"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("as_lists", [True, False])
@pytest.mark.parametrize("name", ["sarif", "rdjson", "rdjsonl", "github", "gitlab"])
def test_a_notebook_is_a_file_of_json(name, as_lists, ascii_only, lesson):
    """Who shows or changes the file knows its lines and not those of its cells."""
    notebook(lesson, ascii_only, as_lists, "\r\n" if ascii_only else "\n", ["x = (\n"])
    lines = Path("n.ipynb").read_text().splitlines()
    found = {r.code: r for r in READERS[name](report(name)) if r.code}
    assert set(found) == {"GF101", "GF202"}
    rows = [next(i for i, line in enumerate(lines, 1) if part in line) for part in ("h.grad", "torch.tensor(", "[1]")]
    assert found["GF101"].rows == (rows[0], rows[0]) and found["GF202"].rows == (rows[1], rows[2])
    assert "(cell 2:4:" in Path("../report").read_text()
    if name in WITH_COLUMNS:
        assert found["GF101"].text == "h.grad"
        if name != "github" or rows[1] == rows[2]:
            assert found["GF202"].text.startswith("torch.tensor(") and found["GF202"].text.endswith("requires_grad=True)")
    if name in WITH_FIXES:
        notebook(lesson, ascii_only, as_lists, "\r\n" if ascii_only else "\n")
        verify_fixes(name, lesson)


def test_a_cell_that_cannot_be_read_has_the_row_of_the_file(lesson):
    notebook(lesson, True, True, "\n", ["x = 1\ny = (\n"])
    row = next(i for i, line in enumerate(Path("n.ipynb").read_text().splitlines(), 1) if "y = (" in line)
    assert f"file=n.ipynb,line={row}," in report("github")
    assert json.loads(report("gitlab"))[0]["location"]["lines"]["begin"] == row
    assert json.loads(report("rdjson"))["diagnostics"][0]["location"]["range"]["start"]["line"] == row
    (note,) = json.loads(report("sarif"))["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert note["locations"][0]["physicalLocation"]["region"]["startLine"] == row


def test_each_fix_alone(here, monkeypatch):
    """What a reader makes of one fix is what the rewriter makes of it, in every fixture."""
    shutil.copytree(FIXTURES, "fixtures", ignore=shutil.ignore_patterns("ok_*"))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here))
    rules = codemod.load()
    files = sorted(str(p) for p in Path("fixtures").rglob("*.py"))
    result = engine.check(files, engine.Settings(rules, {r.code for r in rules}), Runner(1))
    made = gradfix.reports.Report(result.findings, [], preview.Fixes(result.project), rules=rules)
    reads = {}
    for name in ("json", "sarif", "rdjson"):
        out = io.StringIO()
        gradfix.reports.writer(name)(made, out)
        reads[name] = READERS[name](out.getvalue())
        assert [(r.path, r.code) for r in reads[name]] == [(f.path, f.code) for f in result.findings]
    count = Counter()
    for f, *alternatives in zip(result.findings, *reads.values()):
        if f.fix is None:
            continue
        wanted = {path: rewrite(Path(path).read_bytes(), [edits])[0] for path, edits in preview.by_path(f.fix.edits).items()}
        for name, read in zip(reads, alternatives):
            if read.fix is not None:
                count[name] += 1
                assert {p: support.Text(p).replaced(c) for p, c in read.fix.changes.items()} == wanted, (name, f)
    assert count["json"] == count["sarif"] == sum(f.fix is not None for f in result.findings) > 80
    assert count["rdjson"] > 0.9 * count["json"]  # the others change places far apart


def test_a_file_is_read_once_for_all_of_its_fixes(here, monkeypatch):
    """A file of old code has dozens of fixes, each of which is a rewrite of its own."""
    lines = "".join(f"    a{i} = Variable(torch.ones({i + 1}))\n" for i in range(30))
    start = "import torch\nfrom torch.autograd import Variable\n\n\ndef f():\n"
    (here / "old.py").write_text(f"{start}{lines}    return a0.cuda(async=True)\n")
    read = []

    class Counting(apply.Locator):
        def __init__(self, module, text):
            read.append(text)
            super().__init__(module, text)

    monkeypatch.setattr(apply, "Locator", Counting)
    found = READERS["json"](report("json", "--select", "GF9"))
    assert sum(f.fix is not None for f in found) >= 30
    assert len(read) == 1


# A reader that passes a broken report tests nothing: each of these breaks the emitters and must be noticed.
real_place, real_column, real_suggestion = gradfix.reports.place, positions.column, preview.suggestion


def off_by_one(span, lines, unit=positions.Unit.CODE_POINTS, cell=None):
    made = real_place(span, lines, unit, cell)
    shift = 0 if made.column is None else 1
    return positions.Place(made.row + (not shift), shift and made.column + 1, made.end_row, made.end_column, cell)


def end_included(span, lines, unit=positions.Unit.CODE_POINTS, cell=None):
    made = real_place(span, lines, unit, cell)
    if made.end_column is None:
        return positions.Place(made.row, None, made.end_row + 1, None, cell)
    return positions.Place(made.row, made.column, made.end_row, made.end_column - 1, cell)


def in_unit(wrong):
    return lambda line, col, unit: real_column(line, col, wrong)


real_json, real_junit = gradfix.reports.json.place, gradfix.reports.junit.place
BROKEN_PLACES = {
    "column + 1": (gradfix.reports.json, "place", lambda row, column: real_json(row, column + 1), {"json", "json-lines"}),
    "col + 1": (
        gradfix.reports.junit, "place",
        lambda path, cell, row, col=None: real_junit(path, cell, row, col and col + 1), {"junit"},
    ),
    "off by one": (gradfix.reports, "place", off_by_one, {*FORMATS} - {"json", "json-lines", "junit"}),
    "end included": (gradfix.reports, "place", end_included, {*FORMATS} - {"json", "json-lines", "junit"}),
    "UTF-8": (positions, "column", in_unit(positions.Unit.UTF8), {"sarif", "github"}),
    "UTF-16": (positions, "column", in_unit(positions.Unit.UTF16), {"sarif", "github", "rdjson", "rdjsonl"}),
    "code points": (positions, "column", in_unit(positions.Unit.CODE_POINTS), {"rdjson", "rdjsonl"}),
}  # fmt: skip


@pytest.mark.parametrize("name, how", [(n, how) for how, broken in BROKEN_PLACES.items() for n in FORMATS if n in broken[3]])
def test_a_wrong_place_is_noticed(name, how, workspace, monkeypatch):
    module, attribute, broken, _ = BROKEN_PLACES[how]
    monkeypatch.setattr(module, attribute, broken)
    with pytest.raises((AssertionError, IndexError, UnicodeError)):
        verify_places(name)


def with_newline(old, changed):
    made = real_suggestion(old, changed)
    return made and preview.Suggestion(made.row, made.end_row, made.text + "\n")


def one_row_short(old, changed):
    made = real_suggestion(old, changed)
    return made and preview.Suggestion(made.row, made.end_row - 1, made.text)


def stripped(old, changed):
    made = real_suggestion(old, changed)
    return made and preview.Suggestion(made.row, made.end_row, made.text.lstrip())


def shifted_start(lines, index, real=preview._start):
    row, column = real(lines, index)
    return row, column + 1


@pytest.mark.parametrize(
    "name, attribute, broken",
    [
        *[(n, "suggestion", b) for n in ("rdjson", "rdjsonl") for b in (with_newline, one_row_short, stripped)],
        *[(n, "_start", shifted_start) for n in ("json", "json-lines", "sarif")],
    ],
)
def test_a_wrong_fix_is_noticed(name, attribute, broken, workspace, monkeypatch):
    monkeypatch.setattr(preview, attribute, broken)
    with pytest.raises((AssertionError, IndexError)):
        verify_fixes(name, workspace, rounds=3)


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_found_is_a_valid_report(name, workspace):
    for path in workspace.rglob("*.py"):
        path.unlink()
    (workspace / "fine.py").write_text("x = 1\n")
    assert READERS[name](report(name)) == []


def test_paths_start_at_the_repository(workspace, monkeypatch):
    monkeypatch.chdir(workspace / "sub")
    for name in ("sarif", "github", "gitlab"):
        run(["check", "--isolated", "--output-format", name, "--output-file", "report", "latin.py"])
        text = Path("report").read_text()
        assert "sub/latin.py" in text
    run(["check", "--isolated", "--output-format", "rdjson", "--output-file", "report", "latin.py"])
    (found,) = json.loads(Path("report").read_text())["diagnostics"]
    assert found["location"]["path"] == "latin.py"  # reviewdog starts at the working folder


def test_paths_start_at_the_checkout_of_the_job(workspace, monkeypatch):
    monkeypatch.setenv("GITHUB_WORKSPACE", str(workspace.parent))
    assert "file=work/sub/latin.py," in report("github", "sub")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(workspace / "sub"))  # not the one we are in
    assert "file=sub/latin.py," in report("github", "sub")


def test_fingerprints_stay_when_lines_move(workspace):
    (workspace / "broken.py").unlink()
    before = {e["fingerprint"] for e in json.loads(report("gitlab"))}
    for name in ("tabs_crlf.py", "no_newline.py"):
        path = workspace / name
        path.write_bytes(b"# moved\n\n\n" + path.read_bytes())
    assert {e["fingerprint"] for e in json.loads(report("gitlab"))} == before


def test_equal_findings_have_different_fingerprints(workspace):
    (workspace / "twice.py").write_text(
        "import torch\n\nv = torch.tensor([1], requires_grad=True)\nv = torch.tensor([1], requires_grad=True)\n"
    )
    assert len(READERS["gitlab"](report("gitlab", "twice.py"))) == 2


def test_a_github_annotation_escapes(monkeypatch):
    from gradfix.reports.github import command

    line = command("error", {"file": "a,b:c%.py", "line": 1, "col": None}, "100 %\r\n::error::x")
    assert line == "::error file=a%2Cb%3Ac%25.py,line=1::100 %25%0D%0A::error::x\n"


def test_junit_drops_what_xml_cannot_hold():
    from gradfix.reports.junit import clean

    assert clean("a\x00\x1b\ud800é𝄞\t") == "a\\x00\\x1b\\ud800é𝄞\t"


@pytest.fixture
def many_findings(here):
    """Rising severity in each file, so that no order of files is the right one."""
    code = "import torch\n\nw = torch.ones(3, requires_grad=True)\nh = w * 2\nh.sum().backward()\nh.grad\n"
    loop = "for p in torch.nn.Linear(1, 1).parameters():\n    p.grad.norm()\n"
    for i in range(6):
        (here / f"part{i}.py").write_text(code + loop)
    return here


@pytest.mark.parametrize("most, errors, warnings", [(8, 6, 2), (4, 4, 0)])
def test_sarif_keeps_the_most_severe_that_code_scanning_takes(many_findings, monkeypatch, capsys, most, errors, warnings):
    monkeypatch.setattr(sarif, "MOST_RESULTS", most)
    found = READERS["sarif"](report("sarif"))
    assert [r.code for r in found].count("GF101") == errors
    assert [r.code for r in found].count("GF301") == warnings
    assert [r.path for r in found] == sorted(r.path for r in found)
    said = f"warning: the report has the {most} most severe of 12 findings"
    missing = f"{6 - errors} errors, {6 - warnings} warnings" if errors < 6 else f"{6 - warnings} warnings"
    err = capsys.readouterr().err
    assert said in err and f"left out: {missing} (" in err


def test_sarif_is_no_larger_than_code_scanning_takes(many_findings, monkeypatch, capsys):
    whole = len(gzip.compress(report("sarif").encode()))
    assert "left out" not in capsys.readouterr().err
    for room in (whole - 100, whole // 2 + 1500):
        monkeypatch.setattr(sarif, "MOST_BYTES", room)
        output = report("sarif")
        assert len(gzip.compress(output.encode(), 1)) <= room
        found = [r.code for r in READERS["sarif"](output)]
        assert 0 < len(found) < 12 and found.count("GF101") == min(6, len(found))
        assert f"the {len(found)} most severe of 12 findings" in capsys.readouterr().err


def test_the_limits_are_those_of_code_scanning():
    assert sarif.MOST_RESULTS == 25_000 and 9_000_000 < sarif.MOST_BYTES <= 10_000_000


def test_the_schemas_refuse():
    for name, wrong in (
        ("sarif-2.1.0.json", {"version": "2.0.0", "runs": []}),
        ("rdjson.json", {"diagnostics": [{"severity": "FATAL"}]}),
        ("gitlab-code-quality.json", {"description": "x"}),
    ):
        with pytest.raises(jsonschema.ValidationError):
            support.validate(name, wrong)


def test_the_files_hold_what_is_hard():
    text = "".join(t if isinstance(t, str) else t.decode("latin-1") for t in FILES.values())
    assert all(c in text for c in ("é", "𝄞", "\t", "\r\n", "\ufeff"))

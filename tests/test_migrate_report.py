"""The report of a migration: nothing in it can break out of it, and its diffs are those of the run."""

import json
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from gradfix.engine import unified_diff
from gradfix.migrate import report
from gradfix.migrate.records import Commit, Record, Row, Trial, Verification, dumps, loads, worst

EVIL = "</details><script>alert(1)</script> | `x` @someone \u202e\x1b[31m"
STARTED = "2026-01-02T03:04:05+00:00"


def record(**more) -> Record:
    given = {
        "name": "one", "source": "/x/one", "state": "done", "mode": "branch", "files": 3, "found": {"GF101": 2}, "branch": "gradfix/b",
        "commits": [commit("GF101", "retain-grad", "a.py", "x = 1\n", "x = 2\n")],
        "left": [Row(path="a.py", message="left", row=3, column=1, code="GF401", rule="item-in-graph", severity="warning")],
        "problems": [Row(path="old.py", message="syntax error", row=1)],
    }  # fmt: skip
    return Record(**{**given, **more})


def commit(code, rule, path, old, new, **more) -> Commit:
    diff = f"diff --git a/{path} b/{path}\n" + unified_diff(path, old.encode(), new.encode())
    return Commit(code=code, rule=rule, subject="s", fixes=1, files=[path], diff=diff, hash="0" * 40, **more)


class Page(HTMLParser):
    """The scripts, ids and links of a page, and whether its elements nest."""

    VOID = {"meta", "input", "link", "br", "img"}

    def __init__(self, text: str):
        super().__init__()
        self.open, self.scripts, self.ids, self.links, self.resources = [], 0, [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.scripts += tag == "script"
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        self.resources += [given["src"]] if "src" in given else []
        assert not any(name.startswith("on") for name in given)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_nothing_breaks_out_of_the_page():
    evil = record(
        name=EVIL, source=EVIL, branch=EVIL, location=EVIL, notes=[EVIL],
        commits=[commit("GF101", "retain-grad", 'a"><b>.py', EVIL + "\n", EVIL + "!\n", verdict="failed")],
        left=[Row(path=EVIL, message=EVIL, code="X1", rule=EVIL, severity="error")], problems=[Row(path=EVIL, message=EVIL)],
        verifications=[Verification(command=EVIL, verdict="failed", reason=EVIL, after=Trial(code=1, seconds=1.0, output=EVIL))],
    )  # fmt: skip
    for records in ([evil], [evil, record(), Record(name="f", source="f", state="failed", error=EVIL)], []):
        text = report.as_html(records, STARTED)
        page = Page(text)
        assert page.scripts == 1 and not page.resources and not page.open
        assert all(link.startswith("#") for link in page.links)
        assert {link[1:] for link in page.links} <= set(page.ids)
        assert "\u202e" not in text and "\x1b" not in text
        assert not re.search(r"https?://", text)
    markdown = report.as_markdown([evil])
    assert "<script" not in re.sub(r"`[^`\n]*`", "", markdown.replace("\\`", "").replace("\\<", "")) and "@someone" not in re.sub(r"`[^`\n]*`", "", markdown) and "\u202e" not in markdown
    assert "\x1b" not in report.as_text([evil], quiet=False)


def test_numbers_agree_everywhere():
    records = [
        record(),
        record(name="two", mode="branch", commits=[], dropped=[commit("GF202", "integer-requires-grad", "b.py", "1", "2", verdict="failed")]),
        Record(name="three", source="three", state="failed", mode="branch", error="took longer"),
    ]
    found = json.loads(report.as_json(records, STARTED))
    summary = found["summary"]
    assert (summary["repositories"], summary["changed"], summary["failed"]) == (3, 1, 1)
    assert (summary["found"], summary["fixed"], summary["left"], summary["problems"]) == (4, 1, 2, 2)
    assert summary["verdicts"] == {"failed": 1, "not verified": 1}
    assert {r["code"]: (r["found"], r["fixed"], r["left"]) for r in found["rules"]} == {"GF101": (4, 1, 0), "GF401": (0, 0, 2)}
    assert [r["name"] for r in found["repositories"]] == ["one", "two", "three"]
    assert "3 repositories: 1 changed, 1 unchanged, 1 failed." in report.as_text(records, quiet=True)
    # For people the parts add up, also where a repair lays bare more than the first look saw.
    assert "\n3 findings: 1 fixed, 2 left." in report.as_text(records, quiet=True)
    assert "<b>3</b>findings" in report.as_html(records, STARTED)
    assert "**1 fix** in 1 file of 1 repository changed, 2 findings left, 1 failed." in report.as_markdown(records)


def test_the_summary_fits_into_a_pull_request():
    rows = [Row(path=f"folder/file{i}.py", message="syntax error: " + "x" * 80, row=1) for i in range(300)]
    text = report.as_markdown([record(name=f"repository-{i}", problems=rows) for i in range(900)])
    assert len(text) < report.MARKDOWN_LIMIT + 1000
    assert "more, in the report" in text and "more problems" in text and "more repositories in the report" in text
    assert text.count("<details>") == text.count("</details>")


def test_a_large_diff_is_cut_in_the_page_alone():
    long = commit("GF101", "retain-grad", "a.py", "x\n", "".join(f"line {i}\n" for i in range(report.SHOWN_LINES + 10)))
    (file,) = report.parse_diff(long.diff)
    assert len(file.lines) == report.SHOWN_LINES and file.cut == 12
    assert "12 more lines" in report.as_html([record(commits=[long])], STARTED)
    assert f"line {report.SHOWN_LINES + 9}" in report.as_json([record(commits=[long])], STARTED)


line = st.text(st.characters(codec="utf-8", exclude_characters="\n\r", exclude_categories=("Cc", "Cf", "Cs")), max_size=12)
text = st.lists(line | st.sampled_from(["same", "--- a", "+++ b", "@@ -1 +1 @@", "diff --git a/x b/x"]), max_size=12).map("\n".join)


@given(text, text)
def test_a_parsed_diff_holds_both_texts(old, new):
    files = report.parse_diff(commit("X1", "x", "a b.py", old, new).diff)
    if old == new:
        assert all(not f.lines for f in files)
        return
    (file,) = files
    assert file.path == "a b.py"
    for kinds, number, whole in ((" -", "old", old), (" +", "new", new)):
        rows = [(getattr(x, number), x.head + x.middle + x.tail) for x in file.lines if x.kind in kinds]
        lines = whole.split("\n")
        assert rows and all(lines[row - 1] == found for row, found in rows) or not rows
    assert file.added == sum(x.kind == "+" for x in file.lines) and file.added + file.removed > 0


def test_names_as_git_quotes_them():
    assert report.unquoted('"a\\303\\274\\"\\t\\\\.py"') == 'aü"\t\\.py'
    assert report.unquoted("a b.py\t") == "a b.py"


def test_records_travel_with_names_that_are_no_unicode():
    one = record(name="odd\udcff", problems=[Row(path="\udcff.py", message="m")])
    assert loads(dumps(one), Record) == one
    report.as_html([one], STARTED).encode("utf-8", "backslashreplace")


def test_what_witnesses_say_together():
    assert worst(["preserved", "failed", "gained"]) == "failed"
    assert worst(["preserved", "inconclusive"]) == "preserved"
    assert worst(["gained", "preserved"]) == "gained" and worst([]) is None

"""Properties of the real rules on fixtures that were reformatted or damaged at random."""

import ast
import os
import re
import tokenize
from collections import Counter
from io import BytesIO

import pytest
from fixture_support import FIXTURES, SHOWCASE, apply, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MORE = int(os.environ.get("GRADFIX_EXAMPLES", "1"))  # times as many, to look further than the suite does
SOURCES = {p: p.read_text(encoding="utf-8") for p in [*FIXTURES, SHOWCASE]}


def parses(source):
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


MISTAKES = [p for p in SOURCES if not p.stem.startswith("ok_") and parses(SOURCES[p])]
MARK = "# m\u00e4rk"  # of the comments that are put in here


def examples(count):
    return settings(max_examples=count * MORE, deadline=None, suppress_health_check=list(HealthCheck))


def tree(source):
    return ast.dump(ast.parse(source))


def comments(data):
    return Counter(t.string for t in tokenize.tokenize(BytesIO(data).readline) if t.type == tokenize.COMMENT)


@st.composite
def reformatted(draw):
    """(path, bytes): a fixture with the same syntax tree in another layout."""
    path = draw(st.sampled_from(MISTAKES))
    lines = SOURCES[path].split("\n")[:-1]

    def try_lines(new):
        nonlocal lines
        try:
            if tree("\n".join(new) + "\n") == tree(SOURCES[path]):
                lines = new
        except SyntaxError:
            pass

    if draw(st.booleans()):
        try_lines([re.sub(r"^( {4})+", lambda m: "\t" * (len(m[0]) // 4), line) for line in lines])
    for row in draw(st.lists(st.integers(0, len(lines) - 1), max_size=4)):
        line = lines[row]
        indent = re.match(r"\s*", line)[0]
        extra = draw(st.sampled_from(["above", "behind", "blank", "space", "feed", "margin"]))
        if extra == "above":
            try_lines([*lines[:row], indent + MARK, *lines[row:]])
        elif extra == "margin":
            try_lines([*lines[:row], MARK, *lines[row:]])
        elif extra == "blank":
            try_lines([*lines[:row], "", *lines[row:]])
        elif extra == "behind":
            try_lines([*lines[:row], line + "  " + MARK, *lines[row + 1 :]])
        elif extra == "space":
            try_lines([*lines[:row], line + " ", *lines[row + 1 :]])
        else:
            try_lines([*lines[:row], "\x0c", *lines[row:]])
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    text = newline.join(lines) + (newline if draw(st.booleans()) else "")
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig"]))
    return path, text.encode(encoding)


def plain(line):
    """A line as it was before it was reformatted; comments that were put in come out as nothing."""
    return re.sub(rf"\s*{MARK}", "", line).expandtabs(4).rstrip().lstrip("\ufeff")


def lost(before, after):
    """The lines (in their plain form) that are in `before` and not, byte for byte, in `after`."""
    gone = Counter(before.decode().splitlines()) - Counter(after.decode().splitlines())
    out = Counter()
    for line, count in gone.items():
        out[plain(line)] += count
    del out[""]
    return out


def spaced(data):
    """The lines indented by spaces, outside of brackets."""
    flat = re.sub(rb"\([^()]*\)|\[[^\[\]]*\]", b"()", data)
    return Counter(re.findall(rb"^ +\S.*", flat, re.M))


@examples(120)
@given(reformatted())
def test_layout_is_kept(case):
    layout_is_kept(*case)


@pytest.mark.parametrize("path", MISTAKES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_carriage_returns_and_tabs_are_kept(path):
    text = re.sub(r"^( {4})+", lambda m: "\t" * (len(m[0]) // 4), SOURCES[path], flags=re.M)
    text = text if parses(text) and tree(text) == tree(SOURCES[path]) else SOURCES[path]
    layout_is_kept(path, text.replace("\n", "\r\n").encode("utf-8-sig"))


@pytest.mark.parametrize("end", [b"\r", b""])
def test_lone_carriage_returns_are_kept(end):
    lines = [b"import torch", b"a = torch.ones(2, requires_grad=True)", b"b = a * 2", b"b.sum().backward()", b"print(b.grad)"]
    assert apply(b"\r".join(lines) + end)[0] == b"\r".join([*lines[:3], b"b.retain_grad()", *lines[3:]]) + end


def layout_is_kept(path, before):
    original = SOURCES[path].encode()
    normal, wanted = apply(original)
    after, applied = apply(before)
    assert not applied.result.problems
    assert tree(after) == tree(normal), "the layout decides what is done"
    assert Counter(f.code for f in applied.fixed) == Counter(f.code for f in wanted.fixed)
    assert not comments(before) - comments(after)
    assert not lost(before, after) - lost(original, normal), "a line that need not change has changed"
    assert after.startswith(b"\xef\xbb\xbf") == before.startswith(b"\xef\xbb\xbf")
    if b"\r\n" in before:
        assert after.count(b"\n") == after.count(b"\r\n")
    else:
        assert b"\r" not in after
    if b"\t" in before:
        assert not spaced(after) - spaced(before), "spaces among tabs"
    assert apply(after)[0] == after


@st.composite
def damaged(draw):
    """Bytes: a fixture with lines and words lost, doubled, swapped or taken from another fixture."""
    lines = SOURCES[draw(st.sampled_from(list(SOURCES)))].split("\n")
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["drop", "double", "swap", "indent", "word", "cut", "foreign"]))
        i, j = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        if kind == "drop":
            lines[i : i + 1] = [] if len(lines) > 1 else lines
        elif kind == "double":
            lines.insert(j, lines[i])
        elif kind == "swap":
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == "indent":
            lines[i] = draw(st.sampled_from(["    ", "\t", "if x: ", "async ", "@", "*", "return ", "del ", "global "])) + lines[i]
        elif kind == "cut":
            lines[i] = lines[i][: draw(st.integers(0, 20))]
        elif kind == "foreign":
            other = SOURCES[draw(st.sampled_from(list(SOURCES)))].split("\n")
            lines.insert(i, draw(st.sampled_from(other)))
        else:
            words = re.findall(r"\w+", SOURCES[draw(st.sampled_from(list(SOURCES)))])
            mine = re.findall(r"\w+", lines[i])
            if mine and words:
                lines[i] = lines[i].replace(draw(st.sampled_from(mine)), draw(st.sampled_from(words)), 1)
    return "\n".join(lines).encode()


@examples(150)
@given(damaged())
def test_damaged_programs_end_in_findings_or_a_clear_error(data):
    after, applied = apply(data)
    for problem in applied.result.problems:
        assert "crash" not in problem.reason and "Traceback" not in problem.reason, problem
    try:
        compile(data, "script.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        assert after == data
        return
    compile(after, "script.py", "exec", dont_inherit=True)
    if not applied.result.problems:
        assert apply(after)[0] == after


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf", b"\0", b"# coding: nope\n", b"x = (\n", b"\xff\xfe", b"print 'a'\n"])
def test_odd_files(data):
    result = check(data)
    assert not result.findings
    for problem in result.problems:
        assert problem.reason and "\n" not in problem.reason and "crash" not in problem.reason

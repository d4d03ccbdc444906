"""Any bytes as input end in findings or a clear error; previews equal what a whole rewrite gives."""

import textwrap

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradfix import codemod, config, engine, preview
from gradfix.findings import InsertBefore, ReplaceExpression, Span
from gradfix.runner import Runner
from gradfix.source import SourceError, decode, lines_of

PIECES = [
    "import torch\n", "x = torch.randn(3)\n", "x.requires_grad_()\n", "y = x * 2\n", "y.sum().backward()\n", "print(y.grad)\n",
    "for p in m.parameters():\n", "    p = p - p.grad\n", "    ", "\t", "\r\n", "\x0c", "def f(a):\n", "    return a.grad\n",
    "# gradfix: ignore[", "# gradfix: skip-file\n", "# noqa: GF101\n", "# coding: latin-1\n", "\ufeff", "'''", "\\\n", "(", ")", "é",
    "\0", "if x.grad is not None: ", "with torch.no_grad():\n", "x -= x.grad\n", ";", "async ", "lambda: ", "match x:\n", "*", ":=",
]  # fmt: skip
SOURCES = st.one_of(
    st.binary(max_size=80),
    st.lists(st.sampled_from(PIECES), max_size=25).map(lambda p: "".join(p).encode()),
    st.lists(st.sampled_from(PIECES), max_size=25).map(lambda p: "".join(p).encode("latin-1", "replace")),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(SOURCES)
def test_any_bytes_end_in_findings_or_a_clear_error(data):
    rules = codemod.load()
    chosen = engine.Settings(rules, config.default_codes(rules), unsafe_fixes=True)
    done = engine.apply(["a.py"], chosen, Runner(1), {"a.py": data})
    for problem in done.result.problems:
        assert problem.path == "a.py" and "crash" not in problem.reason, problem
    for new in done.after.values():
        compile(new, "a.py", "exec")
        assert not engine.apply(["a.py"], chosen, Runner(1), {"a.py": new}).after or done.result.problems


@given(st.binary(max_size=60))
def test_decoding_is_lossless_or_an_error(data):
    try:
        source = decode("a.py", data)
    except SourceError as error:
        assert error.reason and error.row
    else:
        assert source.encode(source.text) == data
        assert "".join(lines_of(source.text)) == source.text


@given(st.text("ab\n\r", max_size=30), st.text("ab\n\r", max_size=30))
def test_replacements_turn_one_text_into_the_other(before, after):
    old = lines_of(before)
    out = list(old)
    changed = preview.changes(old, lines_of(after))
    for change in reversed(changed):
        out[change.start : change.end] = change.new
    assert "".join(out) == after
    for r in preview.replacements(old, changed):
        assert 1 <= r.row <= len(old) + 1 and (r.row, r.column) <= (r.end_row, r.end_column)


TEXT = textwrap.dedent(
    '''\
    """Doc."""
    import os

    @decorated(
        1)
    def first(a):
        """x
        y"""
        return a


    class Model:
        def one(self):
            return 1

        # about two
        @property
        def two(self):
            x = g(1)
            return x

        def three(self): return 3


    async def last():
        pass
    y = 1
    '''
)


def test_reduced_text_keeps_rows_and_what_is_edited(monkeypatch):
    from gradfix.rewriting import rewrite

    monkeypatch.setattr(preview, "SMALL_FILE", 0)
    lines = TEXT.split("\n")
    row = next(i for i, line in enumerate(lines, 1) if "x = g(1)" in line)
    for newline in ("\n", "\r\n"):
        text = TEXT.replace("\n", newline)
        statement, value = Span(row, 8, row, 16), Span(row, 12, row, 16)
        edits = (InsertBefore("a.py", statement, "z = 0"), ReplaceExpression("a.py", value, "h(__expr__)"))
        reduced = preview.Reducer(text).reduce(edits)
        assert reduced.count(newline) == text.count(newline) and "first" not in reduced and "three" in reduced
        compile(reduced, "a", "exec")
        full, _ = rewrite(text.encode(), [edits])
        small, _ = rewrite(reduced.encode(), [edits])
        want = preview.changes(lines_of(text), lines_of(full.decode()))
        assert preview.changes(lines_of(reduced), lines_of(small.decode())) == want and want
    assert preview.Reducer(TEXT + "def f():\n\tpass\n").reduce(edits) is None  # mixed indentation

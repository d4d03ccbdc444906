"""Adding suppression comments: one for each statement, on a row where a comment can stand, and nothing else changes."""

from __future__ import annotations

import io
import tokenize
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradfix.codemod import UNUSED_SUPPRESSION
from gradfix.engine import Result
from gradfix.findings import Finding, Problem
from gradfix.source import Source, SourceError, data_of, decode, in_cells, lines_of
from gradfix.suppressions import IGNORE

QUIET = {tokenize.COMMENT, tokenize.NL}  # what may differ


@dataclass
class Suppressed:
    before: dict[str, bytes] = field(default_factory=dict)
    after: dict[str, bytes] = field(default_factory=dict)  # only files that changed
    findings: list[Finding] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def suppress(result: Result) -> Suppressed:
    """New contents of the files, with comments that silence the findings of `result`."""
    out = Suppressed()
    by_file: dict[str, list[Finding]] = defaultdict(list)
    for f in result.findings:
        if f.code != UNUSED_SUPPRESSION.code:
            by_file[f.path].append(f)
    for path, findings in by_file.items():
        try:
            source = decode(path, data_of(result.project, path))
            new, left = with_comments(source, findings)
        except (SourceError, ValueError) as error:
            out.problems.append(Problem(path, f"left as it was: {error}"))
            continue
        for f in left:
            out.problems.append(Problem(path, f"no place for a comment about {f.name}", f.span.row, f.span.col + 1, f.cell))
        if new != source.data:
            out.before[path], out.after[path] = source.data, new
            out.findings += [f for f in findings if f not in left]
    return out


def with_comments(source: Source, findings: Sequence[Finding]) -> tuple[bytes, list[Finding]]:
    """The file with the comments, and the findings that no comment can silence."""
    lines = lines_of(source.text)
    ends = row_ends(source.text)
    wanted: dict[int, list[str]] = {}
    left = []
    for f in findings:
        row = place(source, f, ends, wanted)
        if row is None:
            left.append(f)
        elif f.name not in wanted.setdefault(row, []):
            wanted[row].append(f.name)
    for row, names in wanted.items():
        lines[row - 1] = commented(lines[row - 1], ends[row], names)
    text = "".join(lines)
    if tokens(text) != tokens(source.text):
        raise ValueError("a comment would change what it means")
    return source.updated(source.encode(text)), left


def place(source: Source, f: Finding, ends: dict[int, str | None], taken: dict[int, list[str]]) -> int | None:
    """The row for the comment: where the statement has one of ours, else the finding's, else one below, else one above."""
    first, last = f.statement_rows if f.statement_rows != (0, 0) else (f.span.row, f.span.end_row)
    mine = f.span.row
    rows = [mine, *range(mine + 1, last + 1), *range(min(mine, last + 1) - 1, first - 1, -1)]
    if in_cells(f.path):
        rows = [source.program_row(f.cell, row) for row in rows]
    rows = [row for row in rows if row in ends]
    ours = (row for row in rows if row in taken or any(m[1] is not None for m in IGNORE.finditer(ends[row] or "")))
    return next(ours, None) or next(iter(rows), None)


def row_ends(text: str) -> dict[int, str | None]:
    """The rows at whose end a comment can stand (not in a string, not before a continuation), and the comment there."""
    out: dict[int, str | None] = {}
    comment, inside = None, 0
    for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
        name = tokenize.tok_name[token.type]
        inside += (name in ("FSTRING_START", "TSTRING_START")) - (name in ("FSTRING_END", "TSTRING_END"))
        if token.type == tokenize.COMMENT:
            comment = token.string
        elif token.type in (tokenize.NEWLINE, tokenize.NL):
            if not inside:  # before Python 3.12 no comment may stand in an f-string
                out[token.start[0]] = comment
            comment = None
    return out


def commented(line: str, comment: str | None, names: Sequence[str]) -> str:
    text = line.rstrip("\r\n")
    newline = line[len(text) :]
    ours = next((m for m in IGNORE.finditer(comment or "") if m[1] is not None), None)
    if ours is None:
        return f"{text.rstrip()}  # gradfix: ignore[{', '.join(names)}]{newline}"
    at = text.rindex(comment) + ours.end() - 1  # before the closing bracket
    known = [n for n in ours[1].replace(",", " ").split() if n]
    head = text[:at].rstrip(" ,\t") if known else text[:at].rstrip()
    return head + ", " * bool(known) + ", ".join(names) + text[at:] + newline


def tokens(text: str) -> list[tuple[int, str]]:
    found = tokenize.generate_tokens(io.StringIO(text, newline="").readline)
    try:
        return [(t.type, t.string if t.type != tokenize.NEWLINE else "") for t in found if t.type not in QUIET]
    except (tokenize.TokenError, SyntaxError) as error:
        raise ValueError(f"can't be read row by row: {error.args[0]}") from None

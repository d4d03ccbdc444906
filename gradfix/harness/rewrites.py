"""The rewrites of a project, one by one or together, and what of them the harness has to know."""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gradfix import engine
from gradfix.cells import Cells
from gradfix.codemod import Codemod
from gradfix.findings import Finding, InsertAfter, Problem, Span, Verdict
from gradfix.harness.align import Rows, Texts
from gradfix.harness.run import Script
from gradfix.harness.trace import Forgive
from gradfix.positions import Unit, code_points
from gradfix.source import SourceError, data_of, decode, in_cells

# What the forgiving run does at the rows that a finding's fix touches, beyond what it does for all.
FORGIVES = {
    "leaf-lost-at-creation": "leaf",
    "missing-requires-grad": "leaf",
    "integer-requires-grad": "leaf",
    "requires-grad-typo": "leaf",
    "requires-grad-on-module": "leaf",
    "parameter-rebinding": "rebind",
    "zero-grad-order": "late",
    "unregistered-parameter": "register",
    "tensor-rewrap": "rewrap",
    "item-in-graph": "keep",
    "numpy-in-graph": "keep",
    "grad-truthiness": "truth",
    "legacy-scalar-index": "scalar",
    "legacy-variable": "variable",
}


@dataclass(frozen=True)
class Rewrite:
    """A finding that was fixed, by places of the original text."""

    finding: Finding
    key: tuple
    rows: tuple[tuple[str, tuple[int, ...]], ...]  # path -> original rows that the finding names
    own: tuple[int, ...]  # original rows of the finding itself, in its file
    edited: tuple[tuple[str, tuple[int, ...]], ...]  # path -> original rows that its edits name
    promises: tuple[Verdict, ...]
    parts: tuple[tuple[str, int, int], ...] = ()  # path, original row: of `x, y = ...` there, the index of what is edited
    reads: tuple[tuple[str, int, str], ...] = ()  # path, original row, `.grad` that the finding names there
    row: int = 0  # where the finding stands in the original file, in its cell where it has one


@dataclass
class Rewritten:
    before: dict[str, bytes]
    after: dict[str, bytes]
    rewrites: list[Rewrite]
    applied: engine.Applied

    def overlay(self) -> dict[str, bytes]:
        return {os.path.realpath(path): data for path, data in self.after.items()}


class Syntax:
    """What a text says at the places of a finding."""

    def __init__(self, text: str):
        self.lines = text.splitlines()
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            tree = ast.Module([], [])
        nodes = list(ast.walk(tree))
        self.gradients = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == "grad"]
        self.unpacked = [
            n for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], (ast.Tuple, ast.List))
        ]  # fmt: skip

    def span(self, node) -> Span:
        def col(row: int, column: int) -> int:
            line = self.lines[row - 1] if row <= len(self.lines) else ""
            return code_points(line, column, Unit.UTF8)

        return Span(node.lineno, col(node.lineno, node.col_offset), node.end_lineno, col(node.end_lineno, node.end_col_offset))

    def reads(self, span: Span, start: int = 0) -> Iterator[tuple[int, str]]:
        """(row, text) of each `.grad` inside an expression (or around it); the span's rows count from behind `start`."""
        span = Span(span.row + start, span.col, span.end_row + start, span.end_col)
        for node in self.gradients:
            mine = self.span(node)
            if span.contains(mine) or mine.contains(span):
                yield node.lineno, ast.unparse(node)

    def part(self, edit) -> tuple[int, int] | None:
        """(row, index) of the one name that an edit is about, in the assignment to several."""
        target, anchor = getattr(edit, "target", None), getattr(edit, "anchor", None)
        for node in self.unpacked:
            if isinstance(target, Span) and isinstance(node.value, (ast.Tuple, ast.List)):
                for index, item in enumerate(node.value.elts):
                    if self.span(item).contains(target):
                        return node.lineno, index
            elif isinstance(edit, InsertAfter) and anchor == self.span(node):
                names = {ast.unparse(n) for n in ast.walk(ast.parse(edit.code)) if isinstance(n, (ast.Name, ast.Attribute))}
                found = [i for i, item in enumerate(node.targets[0].elts) if ast.unparse(item) in names]
                if len(found) == 1:
                    return node.lineno, found[0]
        return None


class Rewriter:
    def __init__(self, files: Sequence[str], settings: engine.Settings, runner, overlay: dict[str, bytes] | None = None):
        self.files, self.settings, self.runner, self.given = list(files), settings, runner, overlay or {}
        self.original = engine.make_project(self.files, self.given, settings)
        self._rows: dict[tuple[str, bytes], Rows] = {}
        self._trees: dict[tuple[str, bytes], Syntax] = {}
        self.problems: list[Problem] = []
        self.promises = {rule.code: rule.promises for rule in settings.rules}

    def make(self, keys: Iterable[tuple] | None = None) -> Rewritten:
        """All rewrites, or only those of `keys`."""
        settings = self.settings
        if keys is not None:
            chosen = set(keys)
            settings = dataclasses.replace(settings, wanted=lambda f, project: self.key(f, project) in chosen)
        applied = engine.apply(self.files, settings, self.runner, self.given)
        if keys is None:
            self.problems = list(applied.result.problems)
        rewrites = [self.rewrite(f, project) for project, landed in applied.steps for f in landed]
        return Rewritten(applied.before, applied.after, list({r.key: r for r in rewrites}.values()), applied)

    def rows(self, path: str, project) -> Rows:
        old, new = data_of(self.original, path), data_of(project, path)
        if (path, new) not in self._rows:
            self._rows[path, new] = Rows(text_of(path, old), text_of(path, new))
        return self._rows[path, new]

    def key(self, finding: Finding, project) -> tuple:
        row = finding.span.row + self._start(finding.path, finding.cell, project)
        place = self.rows(finding.path, project).new.get(row, ("row", row))
        return (finding.code, finding.path, place, finding.message)

    def rewrite(self, finding: Finding, project) -> Rewrite:
        named: dict[str, set[int]] = {}
        edited: dict[str, set[int]] = {}
        parts: set[tuple[str, int, int]] = set()
        reads: set[tuple[str, int, str]] = set()
        first, last = finding.statement_rows
        spans = [(finding.path, finding.cell, finding.span)]
        if first:
            spans.append((finding.path, finding.cell, Span(first, 0, last, 0)))
        spans += [(r.path, r.cell, r.span) for r in finding.related]
        for path, cell, span in spans:
            named.setdefault(path, set()).update(self._original(path, span, project, cell))
            for row, text in self._syntax(path, project).reads(span, self._start(path, cell, project)):
                reads.update((path, old, text) for old in self._original(path, Span(row, 0, row, 0), project))
        for edit in finding.fix.edits:
            for names in (("anchor", "anchor"), ("target", "target"), ("first", "last")):
                first, last = (getattr(edit, name, None) for name in names)
                if isinstance(first, Span):
                    rows = self._original(edit.path, Span(first.row, 0, last.end_row, 0), project)
                    edited.setdefault(edit.path, set()).update(rows)
                    named.setdefault(edit.path, set()).update(rows)
            if (part := self._syntax(edit.path, project).part(edit)) is not None:
                row, index = part
                parts.update((edit.path, old, index) for old in self._original(edit.path, Span(row, 0, row, 0), project))
        own = sorted(self._original(finding.path, finding.span, project, finding.cell))
        row = own[0] if own else finding.span.row
        if finding.cell is not None:
            row -= self._start(finding.path, finding.cell, self.original)
        return Rewrite(
            finding,
            self.key(finding, project),
            tuple((p, tuple(sorted(r))) for p, r in named.items()),
            tuple(own),
            tuple((p, tuple(sorted(r))) for p, r in edited.items()),
            tuple(self.promises.get(finding.code, ())),
            tuple(sorted(parts)),
            tuple(sorted(reads)),
            row,
        )

    def _syntax(self, path: str, project) -> Syntax:
        data = data_of(project, path)
        if (path, data) not in self._trees:
            self._trees[path, data] = Syntax(text_of(path, data))
        return self._trees[path, data]

    def _start(self, path: str, cell: int | None, project) -> int:
        """The row of the program before the first of a notebook's cell."""
        if cell is None:
            return 0
        return next(c.row for c in cells_of(path, data_of(project, path)) if c.number == cell)

    def _original(self, path: str, span: Span, project, cell: int | None = None) -> set[int]:
        rows, start = self.rows(path, project), self._start(path, cell, project)
        out = set()
        for row in range(start + span.row, start + span.end_row + 1):
            kind, number = rows.new.get(row, ("row", row))
            if kind == "row":
                out.add(number)
            else:
                out.update(old for old, key in rows.old.items() if key == (kind, number))
        return out


def text_of(path: str, data: bytes) -> str:
    try:
        return decode(path, data).text
    except SourceError:
        return data.decode("utf-8", "replace")


def cells_of(path: str, data: bytes):
    """The cells of a notebook, with the rows at which they start in its program."""
    source = decode(path, data)
    source.text  # noqa: B018: reads the cells
    return source.cells


def in_their_cells(script: Script, files: dict[str, bytes]) -> dict[str, Cells]:
    """Those of the files that have cells, by path relative to the root."""
    out = {}
    for path, data in files.items():
        if in_cells(path):
            try:
                out[script.relative(path)] = decode(path, data)
            except SourceError:  # it won't run, either
                pass
    return out


def texts(script: Script, before: dict[str, bytes], after: dict[str, bytes]) -> Texts:
    return Texts({script.relative(p): Rows(text_of(p, before[p]), text_of(p, after[p])) for p in after})


def forgive(script: Script, rewrites: Sequence[Rewrite], none: str = "zeros", until: str = "backward") -> Forgive:
    tables: dict[str, dict[str, set[int]]] = {name: {} for name in ("rows", *FORGIVES.values())}
    for rewrite in rewrites:
        for path, rows in rewrite.rows:
            tables["rows"].setdefault(script.relative(path), set()).update(rows)
        kind = FORGIVES.get(rewrite.finding.name)
        if kind is None:
            continue
        places = {} if kind == "late" else {path: set(rows) for path, rows in rewrite.edited}
        if kind != "leaf":
            places.setdefault(rewrite.finding.path, set()).update(rewrite.own)
        for path, rows in places.items():
            tables[kind].setdefault(script.relative(path), set()).update(rows)
    pairs: dict[str, dict[str, set]] = {"parts": {}, "reads": {}}
    for name, table in pairs.items():
        for rewrite in rewrites:
            for path, row, what in getattr(rewrite, name):
                table.setdefault(script.relative(path), set()).add((row, what))
    return Forgive(
        **{name: {p: sorted(r) for p, r in table.items()} for name, table in {**tables, **pairs}.items()}, none=none, until=until
    )


def names(rewrites: Iterable[Rewrite]) -> list[str]:
    return sorted({r.finding.name for r in rewrites})


__all__ = ["Codemod", "Rewrite", "Rewriter", "Rewritten", "forgive", "names", "text_of", "texts"]

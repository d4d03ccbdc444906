"""What one fix does to the files, for reports: its line-level changes, found without rewriting whole files."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradfix.findings import DropUnusedImport, Edit, Finding, Fix, RenameImport, Span
from gradfix.old_python import with_async_renamed
from gradfix.source import SourceError, data_of, decode, in_cells, lines_of

SMALL_FILE = 120  # lines; shorter ones are not worth reducing


def by_path(edits: Iterable[Edit]) -> dict[str, tuple[Edit, ...]]:
    out: dict[str, list[Edit]] = {}
    for edit in edits:
        out.setdefault(edit.path, []).append(edit)
    return {path: tuple(group) for path, group in out.items()}


@dataclass(frozen=True, slots=True)
class Change:
    """Lines `start` to `end` (from 0, end exclusive) of the old text become `new`, from line `new_start`."""

    start: int
    end: int
    new_start: int
    new: tuple[str, ...]
    cell: int | None = None  # in a notebook, the cell whose lines these are


@dataclass(frozen=True, slots=True)
class Replacement:
    """Rows and columns from 1."""

    content: str
    row: int
    column: int
    end_row: int
    end_column: int
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Rows `row` to `end_row` (from 1, both included) become `text`, which has no final newline."""

    row: int
    end_row: int
    text: str


def changes(old: Sequence[str], new: Sequence[str]) -> tuple[Change, ...]:
    head = 0
    while head < len(old) and head < len(new) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    return tuple(
        Change(head + i1, head + i2, head + j1, tuple(b[j1:j2]))
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, a, b).get_opcodes()
        if tag != "equal"
    )


def in_cells_of(source, made: Sequence[Change]) -> tuple[Change, ...]:
    """Changes of the program of a file with cells as changes of the cells (in Markdown: of the file)."""
    program = lines_of(source.text)
    for change in reversed(made):
        program[change.start : change.end] = change.new
    out: list[Change] = []
    grown = 0  # by how many rows earlier changes moved those below
    for index, text in source.changed("".join(program)).items():
        cell = source.cells[index]
        base = source.file_row(cell, 0)
        mine = changes(cell.raw, lines_of(text))
        out += [Change(c.start + base, c.end + base, c.new_start + base + grown, c.new, cell.number) for c in mine]
        if cell.number is None:
            grown += sum(len(c.new) - (c.end - c.start) for c in mine)
    return tuple(out)


def file_lines(path: str, data: bytes) -> list[str]:
    """The lines of a file as it is on disk: of a notebook those of its JSON."""
    source = decode(path, data)
    if path.endswith(".ipynb"):
        return source.json_lines
    return source.lines() if in_cells(path) else lines_of(source.text)


def replacements(old: Sequence[str], changed: Iterable[Change]) -> list[Replacement]:
    return [Replacement("".join(c.new), *_start(old, c.start), *_start(old, c.end), c.cell) for c in changed]


FAR = 10  # unchanged lines between the changes of one fix; with more of them a reviewer can't see what it does


def suggestion(old: Sequence[str], changed: Sequence[Change]) -> Suggestion | None:
    """The changes as one replacement of whole lines; None where no such replacement says the same.

    An insertion takes a neighbouring line along, and so does what leaves nothing or only blank lines behind: readers
    disagree about what an empty text means.
    """
    if not changed:
        return None
    start, end = changed[0].start, changed[-1].end
    if end - start - sum(c.end - c.start for c in changed) > FAR:
        return None
    new, at = [], start
    for change in changed:
        new += [*old[at : change.start], *change.new]
        at = change.end
    if start == end or not "".join(new).strip():
        if end < len(old):
            new.append(old[end])
            end += 1
        elif start:
            new.insert(0, old[start - 1])
            start -= 1
    if start == end or not "".join(new).strip():
        return None
    text, newline = "".join(new), _newline(old[end - 1])
    return Suggestion(start + 1, end, text.removesuffix(newline)) if _newline(text) == newline else None


def _with(lines: Sequence[str], made: Sequence[Change]) -> list[str]:
    out = list(lines)
    for change in reversed(made):
        out[change.start : change.end] = change.new
    return out


def _newline(text: str) -> str:
    return next((end for end in ("\r\n", "\n", "\r") if text.endswith(end)), "")


def _start(lines: Sequence[str], index: int) -> tuple[int, int]:
    """Where line `index` starts; behind the last line, the end of the text."""
    if index < len(lines) or not lines or lines[-1].endswith(("\n", "\r")):
        return index + 1, 1
    return len(lines), len(lines[-1]) + 1


class Fixes:
    """Computed when asked for, once; or for many findings ahead (`prepare`), in processes."""

    def __init__(self, project):
        self.project = project
        self._cache: dict[tuple[str, tuple[Edit, ...]], tuple[Change, ...] | None] = {}
        self._lines: dict[tuple[str, int | None], list[str]] = {}
        self._reducers: dict[str, Reducer] = {}

    def lines(self, path: str, cell: int | None = None) -> list[str]:
        """The lines of a file, or of a cell of a notebook."""
        if (path, cell) not in self._lines:
            try:
                source = decode(path, data_of(self.project, path))
                self._lines[path, cell] = source.lines(cell) if in_cells(path) else lines_of(source.text)
            except SourceError:
                self._lines[path, cell] = []
        return self._lines[path, cell]

    def file_lines(self, path: str) -> list[str]:
        """The lines of the file as it is on disk: of a notebook those of its JSON."""
        return self._notebook(path).json_lines if path.endswith(".ipynb") else self.lines(path)

    def in_file(self, path: str, cell: int | None, span: Span) -> Span:
        """The span in the lines of the file, where it may be one in a cell of a notebook."""
        return span if cell is None else self._notebook(path).in_json(cell, span)

    def file_changes(self, fix: Fix) -> dict[str, tuple[Change, ...]]:
        """What `changed` says, as changes of `file_lines`."""
        return {path: self._of_file(path, made) for path, made in self.changed(fix).items()}

    def updated(self, path: str, made: Sequence[Change]) -> bytes:
        """The file with changes that `changed` gave."""
        source = decode(path, data_of(self.project, path))
        if not path.endswith(".ipynb"):
            text = "".join(_with(self.lines(path), made))
            return text.encode(source.encoding)
        by_cell = {c.number: [m for m in made if m.cell == c.number] for c in source.cells}
        return source.write({c.index: "".join(_with(c.raw, by_cell[c.number])) for c in source.cells if by_cell[c.number]})

    def _notebook(self, path: str):
        return decode(path, data_of(self.project, path))

    def _of_file(self, path: str, made: tuple[Change, ...]) -> tuple[Change, ...]:
        if not path.endswith(".ipynb"):
            return made
        return changes(self.file_lines(path), file_lines(path, self.updated(path, made)))

    def edits(self, path: str, made: Iterable[Change]) -> list[Replacement]:
        """Changes as replacements, in a notebook each in its cell."""
        return [r for change in made for r in replacements(self.lines(path, change.cell), [change])]

    def changed(self, fix: Fix) -> dict[str, tuple[Change, ...]]:
        """path -> its changes; empty when the fix can't be made."""
        out = {}
        for path, edits in by_path(fix.edits).items():
            key = (path, edits)
            if key not in self._cache:
                self._cache[key] = self._compute(path, edits)
            if self._cache[key] is None:
                return {}
            out[path] = self._cache[key]
        return out

    def replacements(self, path: str, fix: Fix) -> list[Replacement]:
        """The fix as replacements in `path`.  None of them when it touches other files too: half a fix is none."""
        changed = self.changed(fix)
        if set(changed) != {path}:
            return []
        return self.edits(path, changed[path])

    def suggestion(self, path: str, fix: Fix) -> Suggestion | None:
        """The fix as one replacement of whole lines in `path`; None where it is not one."""
        changed = self.file_changes(fix)
        return suggestion(self.file_lines(path), changed[path]) if set(changed) == {path} else None

    def _compute(self, path: str, edits: tuple[Edit, ...]) -> tuple[Change, ...] | None:
        from gradfix.rewriting import rewrite

        try:
            source = decode(path, data_of(self.project, path))
            if path not in self._reducers:
                self._reducers[path] = Reducer(source.text)
            text = self._reducers[path].reduce(edits)
            for candidate in (text, source.text) if text is not None else (source.text,):
                try:
                    new, deferred = rewrite(source.encode(candidate), [edits])
                    if not deferred:
                        made = changes(lines_of(candidate), lines_of(source.decode_code(new)))
                        return in_cells_of(source, made) if in_cells(path) else made
                except Exception:  # try the whole file; `apply` says why that fails
                    pass
        except (SourceError, UnicodeError):
            pass
        return None

    def prepare(self, findings: Iterable[Finding], runner) -> None:
        """Compute the fixes of many findings ahead, in the runner's processes, file by file."""
        todo: dict[str, list[tuple[Edit, ...]]] = {}
        for finding in findings:
            if finding.fix is not None:
                for path, edits in by_path(finding.fix.edits).items():
                    if edits not in todo.setdefault(path, []):
                        todo[path].append(edits)
        jobs = [(path, group) for path, group in sorted(todo.items())]
        if sum(len(group) for _, group in jobs) < 16 or len(jobs) < 2:
            return
        overlay = {path: self.project.overlay[path] for path in todo if path in self.project.overlay}
        for (path, group), results in zip(jobs, runner.map(_many, [(path, g, overlay.get(path)) for path, g in jobs])):
            if results is not None:
                self._cache.update({(path, edits): r for edits, r in zip(group, results)})


@dataclass
class _OneFile:
    overlay: dict[str, bytes]


def _many(job) -> list[tuple[Change, ...] | None]:
    path, group, data = job
    fixes = Fixes(_OneFile({} if data is None else {path: data}))
    return [fixes._compute(path, edits) for edits in group]


class Reducer:
    """A text with the definitions that a fix doesn't touch emptied, row by row, so that LibCST has less to read.

    An emptied definition becomes blank lines and a `pass` on its last row, so that every other row stays where it is.
    """

    def __init__(self, text: str):
        self.text = text
        self.lines = lines_of(text)
        self.tree: ast.Module | None = None
        if len(self.lines) < SMALL_FILE:
            return
        try:
            tree = ast.parse(with_async_renamed(text))  # every row stays where it is
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        units = set()  # a file of mixed indentation is left alone: LibCST takes its unit from the whole of it
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                first = node.body[0]
                if first.lineno > node.lineno:
                    line = self.lines[first.lineno - 1]
                    units.add(line[: len(line) - len(line.lstrip())])
        if len(units) <= 1:
            self.tree = tree

    def reduce(self, edits: Iterable[Edit]) -> str | None:
        if self.tree is None:
            return None
        rows = set()
        for edit in edits:
            for name in ("anchor", "owner", "target", "first", "last"):
                span = getattr(edit, name, None)
                if isinstance(span, Span):
                    rows.update((span.row, span.end_row))
            if isinstance(edit, (DropUnusedImport, RenameImport)):  # what else uses the name counts, so it stays
                word = edit.name if isinstance(edit, DropUnusedImport) else edit.old
                rows.update(row for row, line in enumerate(self.lines, 1) if word in line)
        if not rows:
            return None
        out = list(self.lines)
        self._empty(self.tree.body, rows, out)
        return "".join(out)

    def _empty(self, body, rows: set[int], out: list[str]) -> None:
        for node in body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            last = node.end_lineno
            if any(first <= row <= last for row in rows):
                if isinstance(node, ast.ClassDef):
                    self._empty(node.body, rows, out)
                continue
            start, end = self.lines[first - 1], self.lines[last - 1]
            indent = start[: len(start) - len(start.lstrip(" \t"))]
            head = start[len(indent) :]
            rest = end.encode("utf-8")[node.end_col_offset :].decode("utf-8", "replace").strip()
            if not head.startswith(("def ", "class ", "async ", "@")) or rest or first == last:
                continue
            for row in range(first, last + 1):
                line = self.lines[row - 1]
                ending = line[len(line.rstrip("\r\n")) :]
                out[row - 1] = (indent + "pass" if row == last else "") + ending

"""A file whose Python stands in cells: a notebook, or Markdown with fenced code.

The cells are one program in order, and the rest of GradFix reads that program as it reads any file.  A marker row stands
before each cell; magics and shell lines are masked by a name at the same row and column.  A cell that is no Python keeps
its rows, blank, and its marker makes what it seems to bind unknown, so that nothing is concluded from values that it may
have changed.  Marker rows and masks lead back from a rewritten program to the cells.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import keyword
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gradfix.findings import Problem, Span
from gradfix.old_python import PLACEHOLDER, with_async_renamed
from gradfix.source import Source, SourceError, lines_of, syntax_error, syntax_problem


@dataclass(frozen=True, slots=True)
class Mask:
    """What a name in the program stands for: a magic, or the `%time ` before a statement."""

    text: str
    rows: int = 1
    prefix: bool = False  # the statement behind it, on the same row, is Python


@dataclass(eq=False)
class Cell:
    number: int | None  # from 1, all kinds of cells counted; None in Markdown, whose rows are those of the file
    text: str
    index: int = 0
    row: int = 0  # the row of its marker in the program
    indent: str = ""  # what all its lines start with, left out of the program
    lines: list[str] = field(default_factory=list)  # its rows in the program, without newlines, masks as "\0N\0"
    masks: list[Mask] = field(default_factory=list)
    hidden: bool = False
    runs: bool = False  # hidden, but it does something to the values of the program
    wrong: SourceError | None = None
    outdated: bool = False  # `async` is an argument's name in it; the program has another name of that length
    bound: set[str] = field(default_factory=set)  # the names that it binds at its top level

    @cached_property
    def raw(self) -> list[str]:
        return lines_of(self.text)


class Cells(Source):
    """`text` is the program; `cells` are its parts."""

    def __init__(self, path: str, data: bytes, encoding: str, cells: list[Cell]):
        self.path, self.data, self.encoding, self.cells = path, data, encoding, cells
        for index, cell in enumerate(cells):
            cell.index = index

    @classmethod
    def read(cls, path: str, data: bytes) -> Cells:
        """The file, or SourceError where it is none of its kind."""
        raise NotImplementedError

    # ------------------------------------------------------- file -> program
    @cached_property
    def plain(self) -> str:
        """The sources of the cells as they are: enough to look for words in."""
        return "\n".join(c.text for c in self.cells)

    @cached_property
    def text(self) -> str:
        for cell in self.cells:
            read_cell(cell)
        rows = self.layout()
        return "".join(f"{row}\n" for row in rows)

    def layout(self) -> list[str]:
        rows: list[str] = []
        for cell in self.cells:
            rows.append(self.marker(cell))
            cell.row = len(rows)
            rows += self.program_lines(cell)
        return rows

    @cached_property
    def name(self) -> str:
        """Starts the names of markers and masks; nothing in the file is called so."""
        taken = set(re.findall(r"\b_[a-z]+(?=\d*\b)", self.plain))
        return next(n for n in ("_" + "z" * i + c for i in range(4) for c in "cqjvkwx") if n not in taken)

    @cached_property
    def masks(self) -> dict[str, Mask]:
        """Name -> what it stands for.  Equal texts share a name, so that a statement may move."""
        found = sorted({m for c in self.cells for m in c.masks}, key=lambda m: (len(m.text), m.text, m.prefix))
        return {f"{self.name}{i}": mask for i, mask in enumerate(found)}

    @cached_property
    def _names(self) -> dict[Mask, str]:
        return {mask: name for name, mask in self.masks.items()}

    def program_lines(self, cell: Cell) -> list[str]:
        return [re.sub("\0(\\d+)\0", lambda m: self._masked(cell.masks[int(m[1])]), line) for line in cell.lines]

    def _masked(self, mask: Mask) -> str:
        name = self._names[mask]
        return name.ljust(len(mask.text) - 1) + ";" if mask.prefix else name

    def marker(self, cell: Cell) -> str:
        at = f"{self.name}[{cell.index}]"
        if not cell.hidden or not (cell.runs or cell.wrong):
            return at
        used, bound, imports = mentioned(cell.text)
        if cell.runs:
            bound |= used
        if "backward" in cell.text:  # any tensor from above may have a gradient now
            bound = bound.union(*(c.bound for c in self.cells[: cell.index]))
        return "; ".join([at, *imports, "".join(f"{n} = " for n in sorted(bound)) + f"{self.name}()"])

    @property
    def problems(self) -> list[Problem]:
        """The cells that are no Python."""
        return self._problems(outdated=False)

    @property
    def outdated(self) -> list[Problem]:
        """The cells that are Python once `.cuda(async=True)` is repaired."""
        return self._problems(outdated=True)

    def _problems(self, outdated: bool) -> list[Problem]:
        self.text  # noqa: B018: reads the cells
        wrong = ((c, c.wrong) for c in self.cells if c.wrong is not None and c.outdated is outdated)
        return [
            Problem(self.path, e.reason, e.row and self.file_row(c, e.row), e.col and e.col + len(c.indent), c.number)
            for c, e in wrong
        ]

    # ------------------------------------------------------- places
    @property
    def code(self) -> bytes:
        return self.encode(self.text)

    def encode(self, text: str) -> bytes:
        return text.encode("utf-8")

    def decode_code(self, code: bytes) -> str:
        return code.decode("utf-8")

    @property
    def starts(self) -> tuple[int, ...]:
        """The rows of the markers."""
        self.text  # noqa: B018: lays out the cells
        return tuple(c.row for c in self.cells)

    def cell_at(self, row: int) -> Cell:
        """The cell that a row of the program belongs to."""
        self.text  # noqa: B018: lays out the cells
        before = self.cells[0]
        for cell in self.cells:
            if cell.row > row:
                break
            before = cell
        return before

    def locate(self, span: Span) -> tuple[int | None, Span]:
        """The cell of a span of the program, and the span inside it (in Markdown: inside the file)."""
        cell = self.cell_at(span.row)
        aside = len(cell.indent)
        row, end = self.file_row(cell, span.row - cell.row), self.file_row(cell, span.end_row - cell.row)
        return cell.number, Span(row, span.col + aside, end, span.end_col + aside)

    def file_row(self, cell: Cell, row: int) -> int:
        """The row by which a row of the cell is known: in a notebook that of the cell."""
        return row

    def program_row(self, number: int | None, row: int) -> int:
        """The row of the program that is known as `row` of the cell `number`."""
        self.text  # noqa: B018: lays out the cells
        return next(c.row for c in self.cells if c.number == number) + row

    def lines(self, number: int | None = None) -> list[str]:
        """The lines of a cell as they stand in the file."""
        return next((c.raw for c in self.cells if c.number == number), [])

    def shown(self, cell: Cell, line: str) -> str:
        """A line of the program as it stands in the cell, whose text it need not be (yet)."""
        return (cell.indent if line.strip() else "") + self.unmasked(line)

    def unmasked(self, line: str) -> str:
        def back(match):
            mask = self.masks.get(match[1])
            return match[0] if mask is None else mask.text + ("" if mask.prefix else match[2])

        if any(c.outdated for c in self.cells):
            line = re.sub(rf"\b{PLACEHOLDER}\b", "async", line)
        return re.sub(rf"\b({self.name}\d+)\b((?: *;)?)", back, line)

    # ------------------------------------------------------- program -> file
    def updated(self, code: bytes) -> bytes:
        parts = self.split(self.decode_code(code))
        changed = self._changed(parts)
        if not changed:
            return self.data
        data = self.write(changed)
        again = type(self).read(self.path, data)
        again.text  # noqa: B018: reads the cells
        if len(again.cells) != len(self.cells) or [again.program_lines(c) for c in again.cells] != parts:
            raise ValueError("the change can't be carried over to the cells")
        return data

    def changed(self, program: str) -> dict[int, str]:
        """The new texts of the cells, by index, that differ when the program is `program`."""
        return self._changed(self.split(program))

    def _changed(self, parts: list[list[str]]) -> dict[int, str]:
        texts = [self._rewritten(cell, part) for cell, part in zip(self.cells, parts)]
        return {i: text for i, text in enumerate(texts) if text != self.cells[i].text}

    def write(self, changed: dict[int, str]) -> bytes:
        """The file with new texts for some cells."""
        raise NotImplementedError

    def split(self, program: str) -> list[list[str]]:
        """A changed program as the lines of each cell."""
        parts: list[list[str]] = []
        ahead: list[str] = []
        inside = False
        for line in self._settled([line.rstrip("\r\n") for line in lines_of(program)]):
            if line == self._marker(len(parts)):
                parts.append([])
                inside = True
            elif line == self.name:
                inside = False
            elif inside:
                parts[-1].append(line)
            elif line.strip() and not parts:
                ahead.append(line)  # an import that went to the top of the program
            elif line.strip():
                raise ValueError("the change crosses cells")
        if len(parts) != len(self.cells):
            raise ValueError("the change crosses cells")
        for cell, part in zip(self.cells, parts):
            if ahead and not cell.hidden:
                part[:0] = ahead
                ahead = []
            while len(part) > len(cell.lines) and not part[-1].strip():
                part.pop()
            if cell.hidden and part != cell.lines:
                raise ValueError(f"the change touches {cell_name(cell)}, which is not read")
        return parts

    def _marker(self, index: int) -> str | None:
        return self.marker(self.cells[index]) if index < len(self.cells) else None

    def _settled(self, lines: list[str]) -> list[str]:
        """With `%time ` in front of its statement again, where something was put between the two."""
        out = list(lines)
        for i, line in enumerate(lines):
            mask = self.masks.get(line.strip())
            if mask is None or not mask.prefix:
                continue
            indent = line[: len(line) - len(line.lstrip())]
            homes = {
                indent + row.partition(";")[2].rstrip()
                for c in self.cells
                for row in map(str.strip, self.program_lines(c))
                if row.startswith(self._masked(mask))
            }
            home = next((j for j in range(i + 1, len(out)) if out[j] is not None and out[j].rstrip() in homes), None)
            if home is None:
                raise ValueError(f"the change takes `{mask.text.strip()}` away from its statement")
            out[home] = indent + self._masked(mask) + out[home][len(indent) :]
            out[i] = None
        return [line for line in out if line is not None]

    def _rewritten(self, cell: Cell, new: Sequence[str]) -> str:
        """The source of the cell whose program lines are `new`: rows that are equal keep every byte."""
        old = self.program_lines(cell)
        if old == list(new):
            return cell.text
        newline = next((line[len(line.rstrip("\r\n")) :] for line in cell.raw if line.endswith(("\r", "\n"))), "\n")
        out: list[str] = []
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag == "equal":
                out += cell.raw[i1:i2]
                continue
            j = j1
            while j < j2:
                out += [line + newline for line in self.shown(cell, new[j]).split("\n")]
                named = re.search(rf"\b{self.name}\d+$", new[j])
                j += self.masks[named[0]].rows if named else 1
        ended = not cell.raw or cell.raw[-1].endswith(("\r", "\n"))
        out = [line if line.endswith(("\r", "\n")) else line + newline for line in out]
        if out and not ended:
            out[-1] = out[-1].rstrip("\r\n")
        return "".join(out)


def cell_name(cell: Cell) -> str:
    return f"cell {cell.number}" if cell.number is not None else f"the code block at row {cell.row}"


# ------------------------------------------------------- reading a cell

# Cell magics whose body is Python that runs where the other cells run; other bodies are for other programs.
PYTHON_BODY = re.compile(r"%%(?:tab .*\b(?:pytorch|all)|time|timeit|capture|prun|debug|memit|mprun|lprun|ipytest|snakeviz|scalene)\b")
FOREIGN_BODY = re.compile(
    r"%%(?:!|tab|sx|system|bash|sh|cmd|script|writefile|file|html|HTML|svg|SVG|latex|markdown|javascript|js|perl|ruby|python2?|python3"
    r"|pypy|R|sql|bigquery|cython|cu|cpp|julia|octave|mermaid|css)(?![\w-])"
)


def read_cell(cell: Cell) -> None:
    """Fill in what the program holds of the cell."""
    lines = [line.rstrip("\r\n") for line in cell.raw]
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("%%") and not PYTHON_BODY.match(first.lstrip()):
        return hide(cell, runs=FOREIGN_BODY.match(first.lstrip()) is None)
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    if indent:  # IPython runs it all the same
        lines = [line[len(indent) :] if line.startswith(indent) else line for line in lines]
    text = "\n".join(lines) + "\n"
    masked = [None] * len(lines)
    tree = parse(text)
    if tree is None:
        masked = magics(text)
        rows = blank_out(lines, masked)
        text = "\n".join(rows) + "\n"
        tree = parse(text)
        if tree is None:
            cell.wrong = syntax_problem(text) or compile_problem(text)
            renamed = with_async_renamed(text)
            tree = parse(renamed) if renamed != text else None
            if tree is None:
                return hide(cell)
            cell.outdated = True
            lines = [async_renamed(line, row) for line, row in zip(lines, renamed.split("\n"))]
    else:
        rows = lines
    for node in whole_file_statements(tree, text):
        row, last = node.lineno - 1, node.end_lineno - 1
        before, behind = rows[row].encode()[: node.col_offset], rows[last].encode()[node.end_col_offset :].strip()
        if not before.strip() and (not behind or behind.startswith(b"#")):
            masked[row] = (len(before), last + 1 - row, False, len(rows[row]))
    cell.bound = {n.id for n in top_level(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    cell.indent = indent
    cell.lines, cell.masks = [], []
    row = 0
    while row < len(lines):
        line, found = lines[row], masked[row]
        if found is None:
            cell.lines.append(line)
            row += 1
            continue
        start, count, prefix, end = found
        text = line[start:end] if count == 1 else "\n".join([line[start:], *lines[row + 1 : row + count]])
        cell.masks.append(Mask(text, count, prefix))
        cell.lines.append(f"{line[:start]}\0{len(cell.masks) - 1}\0{line[end:] if count == 1 else ''}")
        cell.lines += [""] * (count - 1)
        row += count


def async_renamed(line: str, renamed: str) -> str:
    """A line of a cell with the names that `renamed`, which may have masks, has for `async`."""
    for found in re.finditer(PLACEHOLDER, renamed):
        at = found.start()
        if line[at : found.end()] == "async":
            line = line[:at] + PLACEHOLDER + line[found.end() :]
    return line


def hide(cell: Cell, runs: bool = False) -> None:
    cell.lines, cell.masks, cell.hidden, cell.runs = [""] * len(cell.raw), [], True, runs


def parse(text: str) -> ast.Module | None:
    """The tree of a cell that compiles; `await` may stand at its top level."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(text)
            compile(tree, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    return tree


def compile_problem(text: str) -> SourceError:
    try:
        compile(text, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        return syntax_error(text, error)
    except (ValueError, RecursionError, MemoryError) as error:
        return SourceError(f"cannot be parsed: {error}")
    return SourceError("cannot be parsed")


def whole_file_statements(tree: ast.Module, text: str):
    """Statements that Python takes in a cell but not further down in a file: `from __future__ import …`, and `global`
    where everything is global."""
    if "__future__" in text or re.search(r"^\s*global\s", text, re.M):
        for node in top_level(tree):
            if isinstance(node, ast.Global) or isinstance(node, ast.ImportFrom) and node.module == "__future__":
                yield node


def top_level(tree: ast.Module):
    """The nodes outside of functions and classes."""
    work: list[ast.AST] = [tree]
    while work:
        for node in ast.iter_child_nodes(work.pop()):
            yield node
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
                work.append(node)


def mentioned(text: str) -> tuple[set[str], set[str], list[str]]:
    """The names in a text that is no Python, those of them that it seems to bind, and its lines that import."""
    imports = [line for line in text.splitlines() if re.match(r"(?:import|from)\s", line) and parse(line + "\n") is not None]
    imports = [re.sub(r"\s*(?:#.*)?$", "", line) for line in imports if "__future__" not in line]
    text = re.sub(r"^(?:import|from)\s.*$|^%.*$|#.*$|'[^'\n]*'|\"[^\"\n]*\"", " ", text, flags=re.M)
    plain = re.findall(r"(?<![\w.])[^\W\d]\w*", text)
    bound = re.findall(r"^[ \t]*([^\W\d][\w, \t]*?)[ \t]*=(?!=)|\b(?:for|as|def|class)[ \t]+([^\W\d][\w, \t]*)", text, re.M)
    bound = [name for pair in bound for part in pair for name in re.findall(r"[^\W\d]\w*", part)]
    return set(filter(usable, plain)), set(filter(usable, bound)), imports


def usable(name: str) -> bool:
    return not keyword.iskeyword(name) and not hasattr(builtins, name) and name.isidentifier() and name.isascii()


# ------------------------------------------------------- magics

_TOKEN = re.compile(
    r"""(?P<newline>\r\n|\r|\n)|(?P<joined>\\(?:\r\n|\r|\n))|\#[^\r\n]*
    |'''(?:\\.|[^\\])*?(?:'''|\Z)|\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\Z)
    |'(?:\\.|[^\\'\r\n])*'?|"(?:\\.|[^\\"\r\n])*"?
    |(?P<open>[(\[{])|(?P<close>[)\]}])|[^'"\#\\()\[\]{}\r\n]+|.""",
    re.X | re.S,
)
_LINE = re.compile(r"[^\r\n]*")
_WHOLE = re.compile(r"%{1,2}[^\W\d]|!|\?")
_ASSIGNED = re.compile(r"[^=!<>()#'\"]*[^=!<>()#'\"\s:+*/%&|^@-][ \t]*=[ \t]*(?=%[^\W\d]|!)")
_HELP = re.compile(r"[^#'\"]*\?{1,2}[ \t]*$")
# What IPython takes for a magic without its `%`, as far as it stands in notebooks.
_AUTOMAGIC = re.compile(
    r"(?:pip3?|conda|mamba|cd|ls|ll|pwd|cat|cp|mv|rm|mkdir|rmdir|man|less|more|clear|run|load_ext|reload_ext|matplotlib|pylab|autoreload"
    r"|env|who|whos)(?:[ \t]+(?![-+*/%@&|^<>=!]?=|[([,.:)\]}*/+@&|^<>]|(?:in|is|and|or|if|not|for)\b)\S.*)?$"
)
# Line magics whose argument is a statement that runs where the other cells run.
_TIMED = re.compile(r"%(?:time|memit|prun|timeit)(?:[ \t]+-[nrp][ \t]*\d+|[ \t]+-[qoctsvl])*[ \t]+(?=[^\s-])")


def magics(text: str) -> list[tuple[int, int, bool, int] | None]:
    """For each line: where a magic starts, how many lines it has, whether a statement follows it, where it ends.

    A magic starts a statement or is what an assignment assigns: inside brackets or behind a backslash `%` is Python's.
    """
    lines = text.split("\n")[:-1]
    found: list = [None] * len(lines)
    at, row, depth, start = 0, 0, 0, True
    while at < len(text):
        if start and depth == 0:
            line = _LINE.match(text, at)[0]
            magic = magic_of(line)
            if magic is not None:
                column, prefix, end = magic
                count = 1
                while not prefix and lines[row + count - 1].endswith("\\") and row + count < len(lines):
                    count += 1
                found[row] = (column, count, prefix, end)
                at += sum(len(x) + 1 for x in lines[row : row + count])
                row += count
                continue
        start = False
        token = _TOKEN.match(text, at)
        at = token.end()
        row += token[0].count("\n")
        if token["newline"]:
            start = True
        elif token["open"]:
            depth += 1
        elif token["close"]:
            depth = max(0, depth - 1)
    return found


def magic_of(line: str) -> tuple[int, bool, int] | None:
    """Where the magic of a line that starts a statement starts, whether a statement follows it, and where it ends."""
    body = line.lstrip(" \t")
    at = len(line) - len(body)
    if timed := _TIMED.match(body):
        if parse(with_async_renamed(body[timed.end() :] + "\n")) is not None:
            return at, True, at + timed.end()
    if _WHOLE.match(body):
        return at, False, len(line)
    if assigned := _ASSIGNED.match(body):
        return at + assigned.end(), False, len(line)
    if body and (_HELP.match(body) or _AUTOMAGIC.match(body)) and parse(body + "\n") is None:
        return at, False, len(line)
    return None


def blank_out(lines: Sequence[str], masked) -> list[str]:
    """The lines with a name in place of each magic, for parsing only."""
    out = list(lines)
    for row, found in enumerate(masked):
        if found is not None:
            start, count, prefix, end = found
            out[row] = lines[row][:start] + ("_".ljust(end - start - 1) + ";" + lines[row][end:] if prefix else "_")
            for k in range(row + 1, row + count):
                out[k] = ""
    return out

"""The words that every part of GradFix shares: spans, edits, fixes, findings, verdicts.

This is the lowest floor of the package: it imports nothing of ours.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(str, enum.Enum):
    """How certain the harm is (`info` never fails a run)."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Applicability(str, enum.Enum):
    """`safe`: gradients that were right stay right and nothing else changes but errors, warnings and `None`."""

    SAFE = "safe"
    UNSAFE = "unsafe"


class Verdict(str, enum.Enum):
    """What the harness saw for a rewrite."""

    PRESERVED = "preserved"
    GAINED = "gained"
    REPAIRED = "repaired"
    CHANGED = "changed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A range of source text: rows from 1, columns from 0 in code points, end exclusive.

    These are LibCST's units; `ast` counts columns in UTF-8 bytes and reports count columns from 1,
    so both are converted at their edge.
    """

    row: int
    col: int
    end_row: int
    end_col: int

    def contains(self, other: Span) -> bool:
        return (self.row, self.col) <= (other.row, other.col) and (other.end_row, other.end_col) <= (
            self.end_row,
            self.end_col,
        )


# --------------------------------------------------------------------------- edits
#
# A rule says what is to happen to the tree; `gradfix.rewriting` does it with LibCST.  Spans are those of
# the nodes in the file as it was analysed.  `code` is source text, dedented, without a final newline; inside
# an expression the name `__expr__` stands for the node that is replaced (with the edits inside it applied).


@dataclass(frozen=True, slots=True)
class Edit:
    path: str


@dataclass(frozen=True, slots=True)
class InsertBefore(Edit):
    """Put the statements `code` directly before the statement `anchor`."""

    anchor: Span
    code: str


@dataclass(frozen=True, slots=True)
class InsertAfter(Edit):
    """Put the statements `code` directly after the statement `anchor`."""

    anchor: Span
    code: str


@dataclass(frozen=True, slots=True)
class InsertInBody(Edit):
    """Put the statements `code` at the top of the body of the compound statement `owner` (after a docstring)."""

    owner: Span
    code: str


@dataclass(frozen=True, slots=True)
class Wrap(Edit):
    """Put the consecutive statements `first` … `last` of one suite under `header` (`with torch.no_grad():`)."""

    first: Span
    last: Span
    header: str


@dataclass(frozen=True, slots=True)
class Move(Edit):
    """Move the statement `target` behind the statement `anchor` of the same suite (or before it)."""

    target: Span
    anchor: Span
    before: bool = False


@dataclass(frozen=True, slots=True)
class ReplaceStatement(Edit):
    """Replace the simple statement `target` by the statements `code` (none: it goes); its comments stay."""

    target: Span
    code: str


@dataclass(frozen=True, slots=True)
class ReplaceExpression(Edit):
    """Replace the expression `target` by `code`, in which `__expr__` stands for the old expression."""

    target: Span
    code: str


@dataclass(frozen=True, slots=True)
class AddFilter(Edit):
    """Add `if code` to the innermost `for` clause of the comprehension or generator expression `target`."""

    target: Span
    code: str


@dataclass(frozen=True, slots=True)
class AddArgument(Edit):
    """Add the argument `code` (`requires_grad=True`) at the end of the call `target`."""

    target: Span
    code: str


@dataclass(frozen=True, slots=True)
class RemoveArgument(Edit):
    """Remove the keyword argument `keyword` from the call `target`."""

    target: Span
    keyword: str


@dataclass(frozen=True, slots=True)
class RenameKeyword(Edit):
    """Rename the keyword argument `keyword` of the call `target` to `name`."""

    target: Span
    keyword: str
    name: str


@dataclass(frozen=True, slots=True)
class RenameAttribute(Edit):
    """Rename the attribute of the attribute expression `target` (`x.requres_grad`) to `name`."""

    target: Span
    name: str


@dataclass(frozen=True, slots=True)
class Lift(Edit):
    """Replace the expression `target` by `code`, in which `__expr__` stands for `inner`, an expression inside it.

    `Variable(x)` becomes `x`, `loss.data[0]` becomes `loss.item()`; edits inside `inner` are kept.
    """

    target: Span
    inner: Span
    code: str = "__expr__"


@dataclass(frozen=True, slots=True)
class NameArguments(Edit):
    """Turn positional arguments of the call `target` into keyword arguments at its end: (index, name) each."""

    target: Span
    names: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class RenameImport(Edit):
    """In `from module import old`, wherever it stands, import `new` instead (under the same alias, if it has one)."""

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class DropUnusedImport(Edit):
    """Remove the import that binds `name` at the top of the file, if nothing in the result uses the name."""

    name: str


@dataclass(frozen=True, slots=True)
class ReplaceToken(Edit):
    """Replace the text of the token `target` by `text`, in a file that may not parse before."""

    target: Span
    text: str


@dataclass(frozen=True, slots=True)
class EnsureImport(Edit):
    """Make `import module` stand among the imports at the top of the file (nothing if it is there)."""

    module: str


# ------------------------------------------------------------------------ findings


@dataclass(frozen=True, slots=True)
class Fix:
    """A repair: `edits` go in together or not at all.  They may touch other files than the finding's."""

    applicability: Applicability
    message: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Related:
    """A place that explains a finding: the cut, the backward, the optimizer, the creation."""

    path: str
    span: Span
    message: str
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    name: str
    path: str
    span: Span
    message: str
    severity: Severity
    fix: Fix | None = None
    related: tuple[Related, ...] = ()
    # First and last row of the statement that holds the finding: a suppression comment on any of them counts.
    statement_rows: tuple[int, int] = (0, 0)
    # In a notebook the cell, from 1, whose rows `span` and `statement_rows` count.  (Edits always have the rows of the
    # program that the cells make up.)
    cell: int | None = None

    @property
    def sort_key(self):
        return (self.path, self.cell or 0, self.span, self.code)


@dataclass(frozen=True, slots=True)
class Problem:
    """A file (or a part of the work on it) that could not be done: one line on stderr, exit code 2."""

    path: str
    reason: str
    row: int | None = None
    col: int | None = None
    cell: int | None = None

    @property
    def sort_key(self):
        return (self.path, self.cell or 0, self.row or 0, self.col or 0, self.reason)


def place_in_cell(at: Finding | Related) -> str:
    """` (cell 2:3:5)`, for readers that know the rows of the file only; nothing where there are no cells."""
    return f" ({place('', at.cell, at.span.row, at.span.col + 1)})" if at.cell else ""


def place(path: str, cell: int | None, row: int | None, col: int | None = None) -> str:
    """`train.py:3:5`, `lesson.ipynb:cell 2:3:5`: rows and columns from 1."""
    parts = [path, f"cell {cell}" if cell else "", str(row) if row else "", str(col) if row and col else ""]
    return ":".join(p for p in parts if p)

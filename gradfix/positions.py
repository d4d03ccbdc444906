"""Columns in the unit that a reader counts in.

Inside GradFix there is one type, `Span`: rows from 1, columns from 0 in code points, end exclusive.  What leaves it is
converted here, with the text of its line: SARIF and JSON count code points, rdjson UTF-8 bytes, editors UTF-16 code
units, and review comments know whole lines only.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from gradfix.findings import Span


class Unit(enum.Enum):
    CODE_POINTS = "code points"
    UTF8 = "UTF-8 bytes"
    UTF16 = "UTF-16 code units"
    LINES = "lines"


def width(text: str, unit: Unit) -> int:
    """How long `text` is, counted in `unit`."""
    if unit is Unit.UTF8 and not text.isascii():
        return len(text.encode("utf-8", "surrogatepass"))
    if unit is Unit.UTF16 and not text.isascii():
        return len(text) + sum(c > "\uffff" for c in text)
    return len(text)


def column(line: str, col: int, unit: Unit) -> int:
    """Column `col` (from 0, code points) of `line`, counted from 0 in `unit`."""
    return width(line[:col], unit)


def code_points(line: str, column: int, unit: Unit) -> int:
    """The way back.  A column inside a character is the character's start, one behind the line the line's end."""
    seen = 0
    for index, character in enumerate(line):
        step = width(character, unit)
        if seen + step > column:
            return index
        seen += step
    return len(line)


@dataclass(frozen=True, slots=True)
class Place:
    """A span as a report writes it: rows and columns from 1, end exclusive.  In whole lines there are no columns, and
    the end row is the last one."""

    row: int
    column: int | None
    end_row: int
    end_column: int | None
    cell: int | None = None  # of a notebook, all cells counted from 1; rows count inside it


def place(span: Span, lines: Sequence[str], unit: Unit = Unit.CODE_POINTS, cell: int | None = None) -> Place:
    """`span` of the text that `lines` (with their ends or without) make, in `unit`."""
    if unit is Unit.LINES:
        last = span.end_row - (span.end_col == 0 and span.end_row > span.row)
        return Place(span.row, None, last, None, cell)

    def at(row: int, col: int) -> int:
        line = lines[row - 1] if 1 <= row <= len(lines) else ""
        return column(line, col, unit) + max(0, col - len(line)) + 1

    return Place(span.row, at(span.row, span.col), span.end_row, at(span.end_row, span.end_col), cell)

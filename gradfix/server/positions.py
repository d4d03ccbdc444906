"""Rows and code points <-> the client's lines and UTF-8, UTF-16 or UTF-32 units."""

from __future__ import annotations

from lsprotocol import types
from pygls.workspace import PositionCodec

from gradfix.findings import Span
from gradfix.source import lines_of


class Text:
    """A text whose lines end at LF, CRLF and CR: so do Python's and the protocol's, but not `str.splitlines`."""

    def __init__(self, text: str, codec: PositionCodec):
        self.text, self.codec = text, codec
        self.lines = lines_of(text)

    def position(self, row: int, col: int) -> types.Position:
        """`row` from 1, `col` from 0 in code points.  A place behind the end is the end."""
        if row > len(self.lines):
            if not self.lines or self.lines[-1].endswith(("\n", "\r")):
                return types.Position(len(self.lines), 0)
            row, col = len(self.lines), len(self.lines[-1])
        line = self.lines[row - 1].rstrip("\r\n")
        return types.Position(row - 1, self.codec.client_num_units(line[:col]) if not line.isascii() else min(col, len(line)))

    def range(self, span: Span) -> types.Range:
        return types.Range(self.position(span.row, span.col), self.position(span.end_row, span.end_col))

    def point(self, position: types.Position) -> tuple[int, int]:
        """The (row, column in code points) that the client means; behind the end of a line, its end."""
        if position.line >= len(self.lines):
            return position.line + 1, 0
        line = self.lines[position.line].rstrip("\r\n")
        if line.isascii():
            return position.line + 1, min(position.character, len(line))
        left = position.character
        for col, char in enumerate(line):
            if left <= 0:
                return position.line + 1, col
            left -= self.codec.client_num_units(char)
        return position.line + 1, len(line)

"""Spans to LibCST nodes.

`ast` leaves the parentheses of an expression out of its span and counts those of a call in for a bare generator;
LibCST does the opposite, so an expression is known by its span without any parentheses.
"""

from __future__ import annotations

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from gradfix.findings import Span


class Locator:
    def __init__(self, module: cst.Module, text: str):
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.positions = wrapper.resolve(PositionProvider)
        self.parents = wrapper.resolve(ParentNodeProvider)
        self.lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self.expressions: dict = {}
        self.statements: dict = {}
        for node, where in self.positions.items():
            key = (where.start.line, where.start.column)
            if isinstance(node, cst.BaseExpression):
                span = Span(*key, where.end.line, where.end.column)
                self.expressions.setdefault(self.bare(span), []).append(node)
            elif isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                self.statements.setdefault(key, node)
                if isinstance(node, cst.FunctionDef) and node.decorators:  # `ast` starts at `def`
                    inner = self.positions[node.asynchronous or node.name]
                    line = inner.start.line
                    text_line = self.lines[line - 1]
                    self.statements[(line, len(text_line) - len(text_line.lstrip()))] = node

    def bare(self, span: Span) -> Span:
        """The span without enclosing parentheses and the whitespace inside them."""
        row, col, end_row, end_col = span.row, span.col, span.end_row, span.end_col
        while True:
            if not (self.char(row, col) == "(" and self.char(end_row, end_col - 1) == ")" and self.encloses(row, col, end_row, end_col)):
                return Span(row, col, end_row, end_col)
            row, col = self.forward(row, col + 1)
            end_row, end_col = self.backward(end_row, end_col - 1)

    def char(self, row, col):
        line = self.lines[row - 1] if 0 < row <= len(self.lines) else ""
        return line[col] if 0 <= col < len(line) else ""

    def encloses(self, row, col, end_row, end_col):
        """Does the `(` at the start belong to the `)` at the end?"""
        depth, quote, r, c = 0, "", row, col
        while (r, c) < (end_row, end_col):
            line = self.lines[r - 1]
            if c >= len(line):
                r, c = r + 1, 0
                continue
            ch = line[c]
            if quote:
                if ch == "\\":
                    c += 1
                elif line.startswith(quote, c):
                    c += len(quote) - 1
                    quote = ""
            elif ch in "\"'":
                quote = ch * 3 if line.startswith(ch * 3, c) else ch
                c += len(quote) - 1
            elif ch == "#":
                r, c = r + 1, 0
                continue
            elif ch in "([{":
                depth += 1
            elif ch in ")]}":
                depth -= 1
                if depth == 0:
                    return (r, c + 1) == (end_row, end_col)
            c += 1
        return False

    def forward(self, row, col):
        while row <= len(self.lines):
            line = self.lines[row - 1]
            while col < len(line) and line[col] in " \t\f\\":
                col += 1
            if col < len(line) and line[col] != "#":
                return row, col
            row, col = row + 1, 0
        return row, col

    def backward(self, row, col):
        while row > 0:
            line = self.lines[row - 1][:col]
            stripped = line.rstrip(" \t\f\\")
            if stripped and not stripped.lstrip().startswith("#"):
                return row, len(stripped)
            row -= 1
            col = len(self.lines[row - 1]) if row > 0 else 0
        return 1, 0

    def expression(self, span: Span, kind=cst.BaseExpression):
        for node in self.expressions.get(self.bare(span), ()):
            if isinstance(node, kind):
                return node
        return None

    def statement(self, span: Span):
        return self.statements.get((span.row, span.col))

"""Markdown: its fenced Python, one program in order, at the rows where it stands."""

from __future__ import annotations

import re

from gradfix.cells import Cell, Cells
from gradfix.source import decode_utf8, lines_of

_PYTHON = re.compile(r"\{?\s*\.?(?:python3?|py3?|ipython3?)(?=[\s,.:}]|$)", re.I)


class Markdown(Cells):
    def __init__(self, path: str, data: bytes, encoding: str, rows: list[str], fences: list[tuple[int, int]], cells: list[Cell]):
        super().__init__(path, data, encoding, cells)
        self.rows, self.fences = rows, fences  # fences: the rows, from 0, of the first line of the code and behind its last

    @classmethod
    def read(cls, path: str, data: bytes) -> Markdown:
        text, encoding = decode_utf8(data)
        rows = lines_of(text)
        fences = list(_fences(text, rows)) if "```" in text or "~~~" in text else []
        cells = [Cell(None, "".join(rows[start:end])) for start, end in fences]
        return cls(path, data, encoding, rows, fences, cells)

    def layout(self) -> list[str]:
        rows = [""] * len(self.rows)
        for cell, (start, end) in zip(self.cells, self.fences):
            cell.row = start  # from 1: the row of the fence
            rows[start - 1] = self.marker(cell)
            rows[start:end] = self.program_lines(cell)
            if end < len(rows):
                rows[end] = self.name  # the closing fence: the end of the cell
        return rows

    def _problems(self, outdated: bool):
        return []  # code in prose is often a fragment

    def lines(self, number: int | None = None) -> list[str]:
        return self.rows

    def program_row(self, number: int | None, row: int) -> int:
        return row

    def file_row(self, cell: Cell, row: int) -> int:
        return cell.row + row

    def write(self, changed: dict[int, str]) -> bytes:
        out, at = [], 0
        for index, text in sorted(changed.items()):
            start, end = self.fences[index]
            out += [*self.rows[at:start], text]
            at = end
        return "".join(out + self.rows[at:]).encode(self.encoding)


def _fences(text: str, rows: list[str]):
    """First row of the code of each Python fence, from 0, and the row behind its last."""
    from markdown_it import MarkdownIt

    for token in MarkdownIt("commonmark").parse("".join(row.rstrip("\r\n") + "\n" for row in rows)):
        if token.type == "fence" and token.map and _PYTHON.match(token.info.strip()):
            first, behind = token.map
            closed = behind - 1 > first and rows[behind - 1].strip(" >\r\n").startswith(token.markup)
            code = first + 1, behind - 1 if closed else behind
            if not any(row.lstrip(" ").startswith(">") for row in rows[slice(*code)]):  # in a quotation
                yield code

"""Notebooks: the code cells of an `.ipynb` file, and writing changed ones back into its JSON.

The JSON text itself is edited: every byte outside of changed source lines stays as it is.
"""

from __future__ import annotations

import difflib
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby, islice

from gradfix.cells import Cell, Cells
from gradfix.findings import Span
from gradfix.source import SourceError, decode_utf8, lines_of

_scan = json.decoder.scanstring
_any = json.JSONDecoder(strict=False).raw_decode
_SPACE = re.compile(r"[ \t\n\r]*")
_CHARACTER = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.S)


@dataclass
class Text:
    """A JSON string, or a list of them, in the JSON text: where it stands, and where each string does."""

    start: int
    end: int
    is_list: bool
    items: list[tuple[int, int, str]] = field(default_factory=list)  # start and end, with quotes, and value


class Notebook(Cells):
    def __init__(self, path: str, data: bytes, encoding: str, json_text: str, cells: list[Cell], texts: list[Text]):
        super().__init__(path, data, encoding, cells)
        self.json_text, self.texts = json_text, texts

    @classmethod
    def read(cls, path: str, data: bytes) -> Notebook:
        text, encoding = decode_utf8(data)
        if not text.strip():
            raise SourceError("is empty, which no notebook is")
        try:
            number, texts = _code_cells(text)
        except json.JSONDecodeError as error:
            raise SourceError(f"is no notebook: not valid JSON ({error.msg})", error.lineno, error.colno) from None
        except RecursionError:
            raise SourceError("is no notebook: its JSON is nested too deeply") from None
        cells = [Cell(n, "".join(value for *_, value in t.items)) for n, t in zip(number, texts)]
        return cls(path, data, encoding, text, cells, texts)

    # ------------------------------------------------------- places in the JSON text
    @cached_property
    def json_lines(self) -> list[str]:
        return lines_of(self.json_text)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(map(len, self.json_lines))]

    def in_json(self, number: int, span: Span) -> Span:
        """Where a span of a cell stands in the file."""
        index = next(c.index for c in self.cells if c.number == number)
        start, end = self._offset(index, span.row, span.col), self._offset(index, span.end_row, span.end_col)
        first = self._at(index, start)[0]
        last = self._at(index, end - 1)[1] if end > start else first
        return Span(*self._row_col(first), *self._row_col(last))

    def _offset(self, index: int, row: int, col: int) -> int:
        raw = self.cells[index].raw
        line = raw[row - 1].rstrip("\r\n") if row <= len(raw) else ""
        return sum(map(len, raw[: row - 1])) + min(col, len(line))

    def _at(self, index: int, offset: int) -> tuple[int, int]:
        """From where to where character `offset` of the cell is written; behind the last one, where the text ends."""
        for start, _, value in self.texts[index].items:
            if offset < len(value):
                for found in islice(_CHARACTER.finditer(self.json_text, start + 1), offset, None):
                    return found.span()
            offset -= len(value)
        end = self.texts[index].items[-1][1] - 1 if self.texts[index].items else self.texts[index].start
        return end, end

    def _row_col(self, offset: int) -> tuple[int, int]:
        row = bisect_right(self._starts, offset, hi=max(1, len(self._starts) - 1))
        return row, offset - self._starts[row - 1]

    # ------------------------------------------------------- writing
    def write(self, changed: dict[int, str]) -> bytes:
        out, at = [], 0
        for index, new in sorted(changed.items(), key=lambda item: self.texts[item[0]].start):
            where = self.texts[index]
            out += [self.json_text[at : where.start], self._rewritten_json(where, self.cells[index].text, new)]
            at = where.end
        return "".join([*out, self.json_text[at:]]).encode(self.encoding)

    def _rewritten_json(self, where: Text, old: str, new: str) -> str:
        raw = [self.json_text[start:end] for start, end, _ in where.items]
        if not where.is_list:
            return self._rewritten_string(raw[0], old, new)
        lines: list[list[tuple[int, str]]] = []  # each line of the old text as parts: which string, what of it
        ended = True
        for index, (*_, value) in enumerate(where.items):
            for part in _split(value) or [""]:
                if ended and (part or not lines):
                    lines.append([])
                lines[-1].append((index, part))
                ended = part.endswith("\n") or ended and not part
        parts: list[tuple[int | None, str]] = []
        before, after = ["".join(part for _, part in line) for line in lines], _split(new)
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            kept = [part for line in lines[i1:i2] for part in line]
            parts += kept if tag == "equal" else [(None, line) for line in after[j1:j2]]
        strings: list[tuple[int | None, str]] = []
        for index, group in groupby(parts, key=lambda part: part[0]):
            texts = [text for _, text in group]
            if index is None:
                strings += [(None, self._string(text)) for text in texts]
            else:
                whole = "".join(texts)
                strings.append((index, raw[index] if whole == where.items[index][2] else self._string(whole)))
        if not strings:
            return "[]"
        start, end = (where.items[0][0], where.items[-1][1]) if where.items else (where.start + 1, where.end - 1)
        text, between, out = self.json_text, self._between(where), []
        for before, (index, string) in zip([None, *(i for i, _ in strings)], strings):
            if before is not None and index == before + 1:  # they stood together, perhaps with odd space between them
                out.append(text[where.items[before][1] : where.items[index][0]])
            elif out:
                out.append(between)
            out.append(string)
        return text[where.start : start] + "".join(out) + text[end : where.end]

    def _between(self, where: Text) -> str:
        """What stands between two strings of a list: there, or in another list, or what follows its bracket."""
        for text in (where, *self.texts):
            if len(text.items) > 1:
                return self.json_text[text.items[0][1] : text.items[1][0]]
        lead = self.json_text[where.start + 1 : where.items[0][0]] if where.items else ""
        return "," + lead

    def _rewritten_string(self, raw: str, old: str, new: str) -> str:
        """One string with newlines inside: lines that are equal keep their escapes."""
        lines = _raw_lines(raw[1:-1])
        before, after = _split(old), _split(new)
        if len(lines) != len(before):
            return self._string(new)
        out = []
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            out += lines[i1:i2] if tag == "equal" else [self._string(line)[1:-1] for line in after[j1:j2]]
        return '"' + "".join(out) + '"'

    @cached_property
    def _escapes(self) -> tuple[bool, dict[str, str]]:
        """How this file writes characters: non-ASCII ones as escapes? and which others that need none."""
        ascii_only, special = False, {}
        for text in self.texts:
            for start, end, _ in text.items:
                for found in re.findall(r"\\(?:u[0-9a-fA-F]{4}|.)", self.json_text[start:end]):
                    char = json.loads(f'"{found}"') if not re.match(r"\\u[dD][89a-fA-F]", found) else "\ud800"
                    if ord(char) >= 128:
                        ascii_only = True
                    elif json.dumps(char)[1:-1] != found:
                        special[char] = found
        return ascii_only, special

    def _string(self, value: str) -> str:
        ascii_only, special = self._escapes
        out = json.dumps(value, ensure_ascii=ascii_only)
        if not special:
            return out
        return '"' + "".join(special.get(json.loads(f'"{p}"'), p) for p in re.findall(r"\\u....|\\.|[^\\]", out[1:-1])) + '"'


def _split(text: str) -> list[str]:
    parts = text.split("\n")
    return [p + "\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _raw_lines(raw: str) -> list[str]:
    """The inside of a JSON string cut behind each newline that it stands for."""
    out, start = [], 0
    for escape in re.finditer(r"\\(?:u[0-9a-fA-F]{4}|.)", raw):
        if escape[0] == "\\n" or escape[0].lower() == "\\u000a":
            out.append(raw[start : escape.end()])
            start = escape.end()
    return out + ([raw[start:]] if start < len(raw) else [])


# ------------------------------------------------------- finding the cells in the JSON text


def _code_cells(text: str) -> tuple[list[int], list[Text]]:
    """Numbers and sources of the Python cells."""
    at = _space(text, 0)
    if text[at : at + 1] != "{":
        raise SourceError("is no notebook: its JSON is no object", *_row_col(text, at))
    top = dict(_members(text, at))
    end = _space(text, max((e for _, e in top.values()), default=at + 1))
    end = _space(text, end + 1)
    if end < len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    if "cells" in top:
        starts = [top["cells"][0]]
    elif "worksheets" in top:  # notebooks of 2011 to 2015
        sheets = [dict(_members(text, start)) for start, _ in _items(text, top["worksheets"][0])]
        starts = [sheet["cells"][0] for sheet in sheets if "cells" in sheet]
    else:
        raise SourceError("is no notebook: it has no cells", 1, 1)
    numbers, texts, number = [], [], 0
    if not _is_python(_value(text, top.get("metadata"))):
        return numbers, texts
    for start in starts:
        for cell_start, _ in _items(text, start):
            number += 1
            cell = dict(_members(text, cell_start))
            if _value(text, cell.get("cell_type")) != "code":
                continue
            where = cell.get("source", cell.get("input"))
            if where is not None and _cell_is_python(text, cell):
                numbers.append(number)
                texts.append(_text(text, number, *where))
    return numbers, texts


def _is_python(metadata) -> bool:
    metadata = metadata if isinstance(metadata, dict) else {}
    for holder, key in (("language_info", "name"), ("kernelspec", "language")):
        info = metadata.get(holder)
        if isinstance(info, dict) and isinstance(info.get(key), str) and info[key]:
            return info[key].lower().startswith(("python", "ipython"))
    return True


def _cell_is_python(text: str, cell: dict) -> bool:
    language = _value(text, cell.get("language"))
    metadata = _value(text, cell.get("metadata"))
    if isinstance(metadata, dict) and isinstance(metadata.get("vscode"), dict):
        language = metadata["vscode"].get("languageId", language)
    return not isinstance(language, str) or language.lower() in ("python", "ipython", "")


def _text(text: str, number: int, start: int, end: int) -> Text:
    where = Text(start, end, text[start] == "[")
    spans = _items(text, start) if where.is_list else [(start, end)]
    for s, e in spans:
        if text[s] != '"':
            raise SourceError(f"the source of cell {number} is neither text nor a list of lines", *_row_col(text, s))
        where.items.append((s, e, _scan(text, s + 1, False)[0]))
    return where


def _value(text: str, where: tuple[int, int] | None):
    return None if where is None else json.loads(text[where[0] : where[1]], strict=False)


def _members(text: str, at: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Keys of an object, and where their values stand."""
    if text[at : at + 1] != "{":
        raise SourceError("is no notebook: a list or value stands where an object must", *_row_col(text, at))
    at = _space(text, at + 1)
    if text[at : at + 1] == "}":
        return
    while True:
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        key, at = _scan(text, at + 1, False)
        at = _space(text, at)
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
        start = _space(text, at + 1)
        at = _end(text, start)
        yield key, (start, at)
        at = _space(text, at)
        if text[at : at + 1] == "}":
            return
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _space(text, at + 1)


def _items(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Where the values of a list stand."""
    if text[at : at + 1] != "[":
        raise SourceError("is no notebook: a value stands where a list must", *_row_col(text, at))
    at = _space(text, at + 1)
    if text[at : at + 1] == "]":
        return
    while True:
        end = _end(text, at)
        yield at, end
        at = _space(text, end)
        if text[at : at + 1] == "]":
            return
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _space(text, at + 1)


def _space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()


def _end(text: str, at: int) -> int:
    """Where the value that starts at `at` ends."""
    if text[at : at + 1] == '"':
        return _scan(text, at + 1, False)[1]
    return _any(text, at)[1]


def _row_col(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)

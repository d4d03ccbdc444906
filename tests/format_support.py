"""Readers of the output formats, written from their specifications and not from ours: each finds the text that a
finding stands on, and applies the fixes, from nothing but the report and the files."""

from __future__ import annotations

import io
import json
import os
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import jsonschema
import xmlschema

SCHEMAS = Path(__file__).parent / "schemas"

FILES = {
    "tabs_crlf.py": (
        "# é𝄞\r\nimport torch\r\n\r\n\r\ndef train():\r\n\tx = torch.randn(3, requires_grad=True)\r\n"
        "\ts = 'é𝄞'; h = x * 2\r\n\th.sum().backward()\r\n\tprint('𝄞é', h.grad)\r\n"
        "\tlow = torch.randn(3, requires_grad=True) * 0.1  # é\r\n\tlow.sum().backward()\r\n\tprint('𝄞\té', low.grad)\r\n"
    ),
    "no_newline.py": (
        "import torch\n\nnet = torch.nn.Linear(3, 3)\nnet.bias.requires_grad_(False)\nnet(torch.randn(2, 3)).sum().backward()\n"
        "total = 0.0\nfor é in net.parameters():\n    '𝄞'; total += é.grad.norm().item()"
    ),
    "sub/latin.py": (
        "# -*- coding: latin-1 -*-\nimport torch\n\nw = torch.randn(3, requires_grad=True)\n"
        "é = 'é'; (w * 2).sum().backward()\n'é'; w -= 0.1 * w.grad\n"
    ).encode("latin-1"),
    "bom and space.py": "\ufeffimport torch\n\nv = '𝄞é', torch.tensor(\n    [1, 2], requires_grad=True\n)\n",
    "broken.py": "import torch\nx = (\n",
}
# What stands at each finding, as a person reads it.
PLACES = {
    ("tabs_crlf.py", "GF101"): "h.grad",
    ("tabs_crlf.py", "GF102"): "torch.randn(3, requires_grad=True)",
    ("no_newline.py", "GF301"): "é.grad",
    ("sub/latin.py", "GF502"): "w -= 0.1 * w.grad",
    ("bom and space.py", "GF202"): "torch.tensor(\n    [1, 2], requires_grad=True\n)",
}
ROWS = {
    ("tabs_crlf.py", "GF101"): (9, 9),
    ("tabs_crlf.py", "GF102"): (10, 10),
    ("no_newline.py", "GF301"): (8, 8),
    ("sub/latin.py", "GF502"): (6, 6),
    ("bom and space.py", "GF202"): (3, 5),
}


def write_files(folder: Path, files=FILES) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


class Text:
    """A file as lines with their ends."""

    def __init__(self, path):
        self.data = Path(path).read_bytes()
        self.encoding = tokenize.detect_encoding(io.BytesIO(self.data).readline)[0]
        self.text = self.data.decode(self.encoding)
        self.starts = [0, *(m.end() for m in re.finditer("\r\n|\r|\n", self.text))]
        self.unit = "code points"

    def offset(self, row: int, column: int) -> int:
        """Row and column from 1, the column in `unit`."""
        start = self.starts[row - 1]
        if self.unit == "code points":
            return start + column - 1
        codec, size = {"bytes": ("utf-8", 1), "utf-16": ("utf-16-le", 2)}[self.unit]
        line = self.text[start:].encode(codec)
        return start + len(line[: (column - 1) * size].decode(codec))

    def rows(self, row: int, end_row: int) -> tuple[int, int]:
        """The offsets of whole rows, without the last one's end."""
        start = self.starts[row - 1]
        end = self.starts[end_row] if end_row < len(self.starts) else len(self.text)
        return start, len(self.text[:end].rstrip("\r\n")) if self.text[start:end].strip("\r\n") else start

    def replaced(self, changes: list[tuple[int, int, str]]) -> bytes:
        text = self.text
        for start, end, new in sorted(changes, reverse=True):
            assert 0 <= start <= end <= len(text)
            text = text[:start] + new + text[end:]
        return text.encode(self.encoding)


@dataclass
class Fix:
    """Changes of files: path -> [(start, end, new)], offsets of the text as it was."""

    changes: dict[str, list[tuple[int, int, str]]]


@dataclass
class Read:
    path: str
    code: str | None
    text: str | None  # what stands at the finding
    rows: tuple[int, int] | None
    fix: Fix | None = None


def validate(name: str, value) -> None:
    jsonschema.validate(value, json.loads((SCHEMAS / name).read_text()))


# ------------------------------------------------------------------------------ json


def read_json(output: str) -> list[Read]:
    return [_json_entry(e) for e in json.loads(output)]


def read_json_lines(output: str) -> list[Read]:
    return [_json_entry(json.loads(line)) for line in output.splitlines()]


def _json_entry(entry: dict) -> Read:
    path = entry["filename"]
    if entry["code"] is None:
        return Read(path, None, None, None)
    file = Text(path)
    start, end = entry["location"], entry["end_location"]
    found = file.text[file.offset(start["row"], start["column"]) : file.offset(end["row"], end["column"])]
    fix = None
    if entry["fix"]:
        files = entry["fix"].get("files") or [{"filename": path, "edits": entry["fix"]["edits"]}]
        fix = Fix({f["filename"]: [_json_edit(Text(f["filename"]), e) for e in f["edits"]] for f in files})
    return Read(path, entry["code"], found, (start["row"], end["row"]), fix)


def _json_edit(file: Text, edit: dict) -> tuple[int, int, str]:
    start, end = edit["location"], edit["end_location"]
    return file.offset(start["row"], start["column"]), file.offset(end["row"], end["column"]), edit["content"]


# ----------------------------------------------------------------------------- sarif


def read_sarif(output: str) -> list[Read]:
    log = json.loads(output)
    validate("sarif-2.1.0.json", log)
    (run,) = log["runs"]
    unit = {"unicodeCodePoints": "code points", "utf16CodeUnits": "utf-16"}[run["columnKind"]]
    rules = run["tool"]["driver"]["rules"]
    out = []
    for note in run["invocations"][0]["toolExecutionNotifications"]:
        out.append(Read(_sarif_path(note["locations"][0]["physicalLocation"]), None, None, None))
    assert run["invocations"][0]["executionSuccessful"] is (not out)
    marks = [r["partialFingerprints"]["gradfix/v1"] for r in run["results"]]
    assert len(set(marks)) == len(marks)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        rule = rules[result["ruleIndex"]]
        for name in ("shortDescription", "fullDescription"):
            assert 0 < len(rule[name]["text"]) <= 1024
        assert rule["help"]["text"]
        where = result["locations"][0]["physicalLocation"]
        path = _sarif_path(where)
        start, end = _sarif_region(path, where["region"], unit)
        fix = None
        for made in result.get("fixes", ()):
            names = [_sarif_path(c) for c in made["artifactChanges"]]
            assert len(set(names)) == len(names)
            fix = Fix(
                {
                    name: [
                        (*_sarif_region(name, r["deletedRegion"], unit), r.get("insertedContent", {}).get("text", ""))
                        for r in change["replacements"]
                    ]
                    for name, change in zip(names, made["artifactChanges"])
                }
            )
        rows = where["region"]["startLine"], where["region"]["endLine"]
        out.append(Read(path, result["ruleId"], Text(path).text[start:end], rows, fix))
        for related in result.get("relatedLocations", ()):
            _sarif_region(_sarif_path(related["physicalLocation"]), related["physicalLocation"]["region"], unit)
    return out


def _sarif_path(where: dict) -> str:
    uri = where["artifactLocation"]["uri"]
    assert not urlsplit(uri).scheme and not uri.startswith("/"), uri
    return unquote(uri)


def _sarif_region(path: str, region: dict, unit: str) -> tuple[int, int]:
    file = Text(path)
    file.unit = unit
    start = file.offset(region["startLine"], region["startColumn"])
    end = file.offset(region["endLine"], region["endColumn"])
    assert start <= end
    return start, end


# ---------------------------------------------------------------------------- rdjson


def read_rdjson(output: str) -> list[Read]:
    result = json.loads(output)
    validate("rdjson.json", result)
    return [_rd_entry(d) for d in result["diagnostics"]]


def read_rdjsonl(output: str) -> list[Read]:
    entries = [json.loads(line) for line in output.splitlines()]
    for entry in entries:
        validate("rdjsonl.json", entry)
    return [_rd_entry(d) for d in entries]


def _rd_entry(d: dict) -> Read:
    path = d["location"]["path"]
    if "code" not in d:
        return Read(path, None, None, None)
    start, end = _rd_range(path, d["location"]["range"])
    rows = d["location"]["range"]["start"]["line"], d["location"]["range"]["end"]["line"]
    made = d.get("suggestions", [])
    assert len(made) <= 1, "reviewdog takes one"
    fix = Fix({path: [(*_rd_range(path, s["range"]), s["text"]) for s in made]}) if made else None
    for s in made:
        assert "column" not in s["range"]["start"], "review comments replace whole lines"
    for related in d.get("related_locations", ()):
        _rd_range(related["location"]["path"], related["location"]["range"])
    return Read(path, d["code"]["value"], Text(path).text[start:end], rows, fix)


def _rd_range(path: str, where: dict) -> tuple[int, int]:
    file = Text(path)
    file.unit = "bytes"
    start, end = where["start"], where["end"]
    if "column" not in start and "column" not in end:
        return file.rows(start["line"], end["line"])
    return file.offset(start["line"], start["column"]), file.offset(end["line"], end["column"])


# ---------------------------------------------------------------- formats without fixes


def read_github(output: str) -> list[Read]:
    """As the runner does: `::name key=value,…::message`, each unescaped."""
    out = []
    for line in output.splitlines():
        match = re.fullmatch(r"::(error|warning|notice) ([^:]*)::(.*)", line)
        assert match, line
        given = dict(part.split("=", 1) for part in match[2].split(","))
        given = {k: _unescape(v, ((":", "%3A"), (",", "%2C"))) for k, v in given.items()}
        assert _unescape(match[3])
        path, code = given["file"], re.fullmatch(r"GradFix(?: (\w+) \([\w-]+\))?", given["title"])[1]
        if code is None:
            out.append(Read(path, None, None, None))
            continue
        row, end_row, text = int(given["line"]), int(given["endLine"]), None
        if "col" in given:
            assert row == end_row, "columns are for one line"
            file = Text(path)
            text = file.text[file.offset(row, int(given["col"])) : file.offset(row, int(given["endColumn"]))]
        else:
            assert row != end_row
        out.append(Read(path, code, text, (row, end_row)))
    return out


def _unescape(text: str, more=()) -> str:
    for plain, escaped in (*more, ("\r", "%0D"), ("\n", "%0A"), ("%", "%25")):
        text = text.replace(escaped, plain)
    return text


def read_gitlab(output: str) -> list[Read]:
    entries = json.loads(output)
    assert not output.startswith("\ufeff") and isinstance(entries, list)
    marks = [e["fingerprint"] for e in entries]
    assert len(set(marks)) == len(marks), "fingerprints are unique"
    out = []
    for e in entries:
        validate("gitlab-code-quality.json", e)
        assert e["severity"] in ("info", "minor", "major", "critical", "blocker")
        path, lines = e["location"]["path"], e["location"]["lines"]
        assert not os.path.isabs(path)
        code = e["check_name"] if e["check_name"].startswith("GF") else None
        assert code is None or e["description"].startswith(code)
        out.append(Read(path, code, None, (lines["begin"], lines["end"]) if code else None))
    return out


def read_junit(output: str) -> list[Read]:
    xmlschema.XMLSchema(str(SCHEMAS / "junit-10.xsd")).validate(io.StringIO(output))
    top, out = ElementTree.fromstring(output), []
    for suite in top:
        cases = suite.findall("testcase")
        assert int(suite.get("tests")) == len(cases)
        assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
        assert int(suite.get("errors")) == len(suite.findall("testcase/error"))
        assert len({c.get("name") for c in cases}) == len(cases)
        for case in cases:
            if case.find("error") is not None:
                out.append(Read(case.get("classname"), None, None, None))
            elif (failure := case.find("failure")) is not None:
                row, column = map(int, re.match(r".*?:(\d+):(\d+): ", failure.text).groups())
                file = Text(case.get("classname"))
                rest = file.text[file.offset(row, column) :]  # the end is not said
                out.append(Read(case.get("classname"), case.get("name").split()[0], rest, (row, row)))
    for name in ("tests", "failures", "errors"):
        assert int(top.get(name)) == sum(int(suite.get(name)) for suite in top)
    return out


READERS = {
    "json": read_json,
    "json-lines": read_json_lines,
    "sarif": read_sarif,
    "rdjson": read_rdjson,
    "rdjsonl": read_rdjsonl,
    "github": read_github,
    "gitlab": read_gitlab,
    "junit": read_junit,
}
WITH_FIXES = ("json", "json-lines", "sarif", "rdjson", "rdjsonl")
WITH_COLUMNS = (*WITH_FIXES, "github")


def apply_once(found: list[Read]) -> bool:
    """Apply every fix that touches nothing of those before it; was there one?"""
    taken: dict[str, list[tuple[int, int, str]]] = {}
    for read in found:
        if read.fix is None:
            continue
        if any(
            start <= other_end and other_start <= end
            for path, changes in read.fix.changes.items()
            for start, end, _ in changes
            for other_start, other_end, _ in taken.get(path, ())
        ):
            continue
        for path, changes in read.fix.changes.items():
            taken.setdefault(path, []).extend(changes)
    for path, changes in taken.items():
        Path(path).write_bytes(Text(path).replaced(changes))
    return bool(taken)

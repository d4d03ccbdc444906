"""A file of known findings, so that a run reports only what is new.

An entry names rule, file, scope and normalised source, never a line: code may move around it.  Paths are relative to
the folder of the baseline file.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from gradfix.engine import Result, Settings
from gradfix.findings import Finding
from gradfix.fingerprints import Key, keys, relative
from gradfix.preview import Fixes
from gradfix.source import SourceError, atomic_write, read_bytes

VERSION = 1


class BaselineError(Exception):
    pass


class Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    path: str
    code: str
    scope: str
    source: str
    count: int = 1


class Content(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    findings: list[Entry]


@dataclass
class Compared:
    new: list[Finding]
    known: int
    vanished: list[tuple[Key, int]]  # entries that nothing matched any more, and how often


def read(path: str) -> Counter[Key]:
    if os.path.exists(path) and not os.path.isfile(path):  # a device may never end
        raise BaselineError(f"{path}: is no file")
    try:
        content = msgspec.json.decode(read_bytes(path), type=Content)
    except SourceError as error:
        raise BaselineError(f"{path}: {error.reason}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: is no baseline: {error}") from None
    if content.version != VERSION:
        raise BaselineError(f"{path}: has version {content.version}; this gradfix reads version {VERSION}")
    out: Counter[Key] = Counter()
    for e in content.findings:
        out[Key(e.path, e.code, e.scope, e.source)] += e.count
    return out


def compare(path: str, result: Result, settings: Settings) -> Compared:
    """The findings that the baseline doesn't know, and the entries of what was checked that are gone."""
    left = read(path)
    new = []
    for finding, key in zip(result.findings, _keys(path, result)):
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(finding)
    judged = _judged(path, result, settings)
    vanished = sorted((key, n) for key, n in left.items() if n > 0 and judged(key))
    return Compared(new, len(result.findings) - len(new), vanished)


def write(path: str, result: Result, settings: Settings) -> int:
    """Make the findings the known ones; what this run did not judge (other files, other rules) stays.  How many there are."""
    found = Counter(_keys(path, result))
    if os.path.exists(path):
        judged = _judged(path, result, settings)
        found.update({key: n for key, n in read(path).items() if not judged(key)})
    entries = [{"path": k.path, "code": k.code, "scope": k.scope, "source": k.source, "count": found[k]} for k in sorted(found)]
    rows = ",\n".join("    " + json.dumps(e, ensure_ascii=False) for e in entries)
    text = f'{{\n  "version": {VERSION},\n  "findings": [{chr(10) + rows + chr(10) + "  " if rows else ""}]\n}}\n'
    try:
        atomic_write(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise BaselineError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    return found.total()


def _base(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


def _keys(path: str, result: Result) -> list[Key]:
    return keys(result.findings, Fixes(result.project).lines, _base(path))


def _judged(path: str, result: Result, settings: Settings):
    """Whether a run could have found what a key names: its file was read, or is gone, and its rule ran."""
    base = _base(path)
    unread = {p.path for p in result.problems}
    checked = {relative(f, base) for f in result.files if f not in unread}

    def judged(key: Key) -> bool:
        if key.code not in settings.active:
            return key.code not in {r.code for r in settings.rules}
        return key.path in checked or not os.path.exists(os.path.join(base, key.path))

    return judged


def describe(vanished: Iterable[tuple[Key, int]]) -> list[str]:
    return [f"{k.path}: {k.code}{f' in {k.scope}' if k.scope else ''}: {k.source}{f' ({n} times)' if n > 1 else ''}" for k, n in vanished]

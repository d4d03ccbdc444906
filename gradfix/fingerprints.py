"""What a finding is known by when its line moves: rule, file, scope and normalised source."""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gradfix.findings import Finding, Span
from gradfix.source import lines_of

LONGEST = 160


@dataclass(frozen=True, slots=True, order=True)
class Key:
    path: str
    code: str
    scope: str  # `Net.forward`; empty at module level
    source: str

    @property
    def digest(self) -> str:
        parts = (self.path, self.code, self.scope, self.source)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def keys(findings: Iterable[Finding], lines: Callable[[str, int | None], Sequence[str]], base: str = ".") -> list[Key]:
    """The key of each finding.  `lines` gives the text of a file or of a cell; paths are relative to the folder `base`."""
    scopes: dict[tuple[str, int | None], Scopes] = {}
    out = []
    for f in findings:
        text, where = lines(f.path, f.cell), (f.path, f.cell)
        if where not in scopes:
            scopes[where] = Scopes("".join(text))
        out.append(Key(relative(f.path, base), f.code, scopes[where].at(f.span), source(text, f.span)))
    return out


def fingerprints(keys: Iterable[Key]) -> list[str]:
    """A digest for each key, in order, different for each occurrence of the same key."""
    seen: Counter = Counter()
    out = []
    for key in keys:
        seen[key] += 1
        out.append(hashlib.sha256(f"{key.digest}:{seen[key]}".encode()).hexdigest()[:32])
    return out


def relative(path: str, base: str) -> str:
    try:
        path = os.path.relpath(path, base)
    except ValueError:  # another drive
        path = os.path.abspath(path)
    return path.replace(os.sep, "/").encode("utf-8", "backslashreplace").decode("utf-8")


class Scopes:
    """The functions and classes of a text, and which of them a span lies in."""

    def __init__(self, text: str):
        self.found: list[tuple[int, int, str]] = []
        try:
            self._collect(ast.parse(text).body, "")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass

    def _collect(self, body: Iterable[ast.AST], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = prefix + node.name
                self.found.append((node.lineno, node.end_lineno or node.lineno, name))
                self._collect(node.body, name + ".")
            elif isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                self._collect(ast.iter_child_nodes(node), prefix)

    def at(self, span: Span) -> str:
        """The innermost one; a definition holds what stands on its first row, too."""
        return max(
            ((first, -last, name) for first, last, name in self.found if first <= span.row <= last), default=(0, 0, "")
        )[2]


def source(lines: Sequence[str], span: Span) -> str:
    """The text of a span, without what a formatter may change."""
    picked = list(lines[span.row - 1 : span.end_row])
    if picked:
        picked[-1] = picked[-1][: span.end_col]
        picked[0] = picked[0][span.col :]
    text = "".join(picked)
    if "#" in text:
        text = _without_comments(text)
    text = re.sub(r"\\?\s+", " ", text.replace("'", '"')).strip()
    text = re.sub(r" ?([^\w ]) ?", r"\1", text)
    text = re.sub(r",([)\]}])", r"\1", text)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # a notebook may hold half a surrogate pair
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return text


def _without_comments(text: str) -> str:
    from gradfix.suppressions import comments

    out = lines_of(text)
    for row, col, comment in comments(text):
        line = out[row - 1]
        out[row - 1] = line[:col] + line[col + len(comment) :]
    return "".join(out)

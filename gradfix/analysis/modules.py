"""The checked files as Python modules: parsing, spans, names, and imports between the files."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass, field
from functools import cached_property

from gradfix.findings import Span

# Trees are dropped when they stand for more source than this (a tree is about twenty times its source).
TREES_CHARACTERS = 8_000_000

# What a function must hold to be a root of the analysis: a gradient, a backward, a flag that is set or misspelt, a parameter that is changed.
# Each pattern starts with a literal and stands behind a plain search for it, which is what makes this cheap.
_ROOTS = tuple(
    (literal, literal.decode(), re.compile(pattern), re.compile(pattern.decode()))
    for literal, pattern in (
        (b".grad", rb"\.grad\b"),
        (b"backward(", rb"backward\("),
        (b"requires_grad", rb"requires_grad(?:\s*=\s*True|_\(\s*(?:True)?\))"),
        (b"def training_step", rb"def training_step\("),  # on whose value a trainer runs backward
        (b"def compute_loss", rb"def compute_loss\("),
        (b".weight", rb"\.weight(?:\[[^\]\n]*\])?(?:\s*[-+*/]=|\.[a-z]+_\()"),  # changed in place, which raises while grad mode is on
        (b"parameters():", rb"parameters\(\):\s+(?:if [^\n]+\s+)?\w+(?:\.(?!requires_grad_)[a-z_]+_\(|\s*[-+*/]=)"),
        (b"req", rb"req(?!uires_grad\b)\w*g\w*d\w*\s*=(?!=)"),
    )
)
# What a file must hold to be looked at for code of PyTorch 0.2 to 1.4, in runs that ask for it.
LEGACY = re.compile(
    rb"\bVariable\b|\bvolatile\b|\.data\b|\basync\s*=|\b(?:add|sub)_?\(|\badd(?:cmul|cdiv|mm|mv|r|bmm)_?\(|\bbaddbmm_?\("
    rb"|\bclip_grad_norm\b|\binit\b|\bF\b|\bfunctional\b|\bNLLLoss2d\b"
)
IMPORT = re.compile(rb"^\s*(?:from\s+(\.*)([\w.]*)\s+import|import\s+([\w.]+))", re.M)


def holds_root(data: bytes) -> bool:
    return any(literal in data and pattern.search(data) for literal, _, pattern, _ in _ROOTS)


def root_rows(text: str) -> list[int]:
    """The rows on which root tokens stand, in order."""
    at = sorted(m.start() for _, literal, _, pattern in _ROOTS if literal in text for m in pattern.finditer(text))
    rows, row, last = [], 1, 0
    for position in at:
        row += text.count("\n", last, position)
        last = position
        rows.append(row)
    return rows


@dataclass
class Project:
    """The files of one run.  `overlay` holds contents that replace those on disk (`apply` works in rounds)."""

    files: tuple[str, ...]
    overlay: dict[str, bytes] = field(default_factory=dict)
    target_torch: tuple[int, int] = (2, 13)
    needs: frozenset[str] = frozenset()  # what of the analysis the rules of this run need beyond that of a plain run

    def __post_init__(self):
        self.files = tuple(self.files)
        self._known = {os.path.normpath(p): p for p in self.files}
        self.token = os.urandom(8)  # what workers know it by: its caches are worth keeping between chunks
        self._modules: dict[str, Module | None] = {}
        self._parsed = 0
        self._roots: dict[str, bool] = {}
        self._imports: dict[str, tuple] = {}

    def __getstate__(self):
        return {"files": self.files, "overlay": self.overlay, "target_torch": self.target_torch, "needs": self.needs, "token": self.token}

    def __setstate__(self, state):
        token = state.pop("token")
        self.__dict__.update(state)
        self.__post_init__()
        self.token = token

    def data(self, path: str) -> bytes:
        if path in self.overlay:
            return self.overlay[path]
        with open(path, "rb") as handle:
            return handle.read()

    def code(self, path: str) -> bytes:
        """The bytes in which to look for words: those of the file, or of its cells."""
        from gradfix.source import SourceError, decode, in_cells

        data = self.data(path)
        if not in_cells(path):
            return data
        try:
            return decode(path, data).plain.encode("utf-8", "replace")
        except SourceError:
            return b""

    def holds_root(self, path: str) -> bool:
        if path not in self._roots:
            try:
                self._roots[path] = holds_root(self.code(path))
            except OSError:
                self._roots[path] = False
        return self._roots[path]

    def imports(self, path: str) -> tuple[str, ...]:
        """The checked files that a file imports."""
        if path not in self._imports:
            try:
                found = IMPORT.findall(self.code(path))
            except OSError:
                found = []
            targets = (self.resolve(path, (name or plain).decode("utf-8", "replace"), len(dots)) for dots, name, plain in found)
            self._imports[path] = tuple(dict.fromkeys(t for t in targets if t and t != path))
        return self._imports[path]

    def imports_root(self, path: str) -> bool:
        """Does the file import, perhaps through others, a checked file that holds a root?"""
        seen, work = {path}, [path]
        while work and len(seen) < 200:
            for target in self.imports(work.pop()):
                if target not in seen:
                    if self.holds_root(target):
                        return True
                    seen.add(target)
                    work.append(target)
        return False

    def text(self, path: str) -> str:
        from gradfix.source import decode

        return decode(path, self.data(path)).text

    def module(self, path: str) -> Module | None:
        """The parsed module, or None when it can't be read or parsed (said elsewhere, once)."""
        from gradfix.source import decode

        if path not in self._modules:
            try:
                source = decode(path, self.data(path))
                text = source.text
                self._parsed += len(text)
                if self._parsed > TREES_CHARACTERS:
                    self._modules.clear()
                    self._parsed = len(text)
                self._modules[path] = self._parse(path, source)
            except Exception:
                self._modules[path] = None
        return self._modules[path]

    def _parse(self, path: str, source) -> Module:
        text = source.text
        try:
            return Module(path, text, ast.parse(text), source.starts)
        except SyntaxError:
            if "async-argument" not in self.needs:
                raise
        from gradfix.old_python import with_async_renamed

        text = with_async_renamed(text)
        return Module(path, text, ast.parse(text))

    def resolve(self, importer: str, dotted: str, level: int = 0) -> str | None:
        """The checked file that `import dotted` in `importer` means: searched from its folder upwards."""
        folder = os.path.dirname(os.path.normpath(importer))
        parts = [p for p in dotted.split(".") if p]
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            return self._at(folder, parts)
        for _ in range(12):
            if found := self._at(folder, parts):
                return found
            if not folder or folder == os.path.dirname(folder):
                return None
            folder = os.path.dirname(folder)
        return None

    def _at(self, folder: str, parts: list[str]) -> str | None:
        base = os.path.normpath(os.path.join(folder, *parts)) if parts else folder
        return self._known.get(base + ".py") or self._known.get(os.path.normpath(os.path.join(base, "__init__.py")))


class Module:
    def __init__(self, path: str, text: str, tree: ast.Module, cells: tuple[int, ...] = ()):
        self.path, self.text, self.tree = path, text, tree
        self.cells = cells  # the rows behind which the cells of a notebook start
        self._lines: list[str] | None = None

    @property
    def lines(self) -> list[str]:
        if self._lines is None:
            self._lines = re.split("\r\n|\r|\n", self.text)
        return self._lines

    @cached_property
    def syntax(self):
        from gradfix.analysis.syntax import Syntax

        return Syntax(self)

    def _chars(self, row: int, byte_col: int) -> int:
        line = self.lines[row - 1] if row <= len(self.lines) else ""
        if line.isascii():
            return byte_col
        return len(line.encode("utf-8")[:byte_col].decode("utf-8", "replace"))

    def span(self, node: ast.AST) -> Span:
        """The node's span in code points (`ast` counts UTF-8 bytes)."""
        return Span(
            node.lineno,
            self._chars(node.lineno, node.col_offset),
            node.end_lineno,
            self._chars(node.end_lineno, node.end_col_offset),
        )

    @cached_property
    def _full_lines(self) -> list[str]:
        """With their ends, split as the parser does."""
        return re.findall("[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", self.text)

    def source(self, node: ast.AST) -> str:
        """`ast.get_source_segment`, which would split the whole text again for each node."""
        lines = self._full_lines[node.lineno - 1 : node.end_lineno]
        if not lines:
            return ast.unparse(node)
        lines[-1] = lines[-1].encode("utf-8")[: node.end_col_offset].decode("utf-8", "replace")
        lines[0] = lines[0].encode("utf-8")[node.col_offset :].decode("utf-8", "replace")
        return "".join(lines) or ast.unparse(node)

    def imports_torch(self) -> bool:
        return re.search(r"^\s*(?:import|from)\s+torch\b", self.text, re.M) is not None

    def torch_name(self) -> str | None:
        """The name by which the module knows torch, if it imports it at top level."""
        for stmt in self.tree.body:
            if isinstance(stmt, ast.Import):
                for alias in stmt.names:
                    if alias.name == "torch" or (alias.name.startswith("torch.") and not alias.asname):
                        return alias.asname or "torch"
        return None



"""The checked files as Python modules: parsing, spans, names, and imports between the files."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass, field
from functools import lru_cache

from gradfix.findings import Span

# What a file must hold for one of its functions to be a root of the analysis.
ROOT_TOKENS = re.compile(rb"\.grad\b(?!_)|backward|requ\w*_?grad|zero_grad|Parameter\s*\(")


@dataclass
class Project:
    """The files of one run.  `overlay` holds contents that replace those on disk (`apply` works in rounds)."""

    files: tuple[str, ...]
    overlay: dict[str, bytes] = field(default_factory=dict)
    target_torch: tuple[int, int] = (2, 13)

    def __post_init__(self):
        self.files = tuple(self.files)
        self._known = {os.path.normpath(p): p for p in self.files}
        self._modules: dict[str, Module | None] = {}

    def __getstate__(self):
        return {"files": self.files, "overlay": self.overlay, "target_torch": self.target_torch}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.__post_init__()

    def data(self, path: str) -> bytes:
        if path in self.overlay:
            return self.overlay[path]
        with open(path, "rb") as handle:
            return handle.read()

    def text(self, path: str) -> str:
        from gradfix.source import decode

        return decode(path, self.data(path)).text

    def module(self, path: str) -> Module | None:
        """The parsed module, or None when it can't be read or parsed (said elsewhere, once)."""
        if path not in self._modules:
            if len(self._modules) > 300:
                self._modules.clear()
            try:
                text = self.text(path)
                self._modules[path] = Module(path, text, ast.parse(text))
            except Exception:
                self._modules[path] = None
        return self._modules[path]

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
    def __init__(self, path: str, text: str, tree: ast.Module):
        self.path, self.text, self.tree = path, text, tree
        self._lines: list[str] | None = None

    @property
    def lines(self) -> list[str]:
        if self._lines is None:
            self._lines = re.split("\r\n|\r|\n", self.text)
        return self._lines

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

    def source(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def torch_name(self) -> str | None:
        """The name by which the module knows torch, if it imports it at top level."""
        for stmt in self.tree.body:
            if isinstance(stmt, ast.Import):
                for alias in stmt.names:
                    if alias.name == "torch" or (alias.name.startswith("torch.") and not alias.asname):
                        return alias.asname or "torch"
        return None



"""One workspace folder: its config, its files, and what the analysis says of the texts in the editor."""

from __future__ import annotations

import dataclasses
import gc
import io
import json
import os
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradfix import codemod, config, discovery, engine, preview
from gradfix.findings import Finding, Problem, Span
from gradfix.server.warm import Cancelled, WarmRunner
from gradfix.source import SourceError, decode, lines_of, syntax_problem

__all__ = ["Cancelled", "Document", "Folder", "Options"]


@dataclass(frozen=True)
class Options:
    """What the command line of the server puts on top of every folder's config."""

    select: Sequence[str] | None = None
    extend_select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    target_torch: str | None = None
    config: str | None = None
    isolated: bool = False


@dataclass
class CellText:
    """A cell of an open notebook; `language` is None where it holds prose."""

    uri: str
    text: str
    version: int | None
    language: str | None


@dataclass
class Document:
    """An open text, or notebook with the JSON of its cells for a text, and what is known of this version of it."""

    uri: str
    path: str
    text: str
    version: int | None = None
    findings: list[Finding] = field(default_factory=list)  # with spans in `text`
    problems: list[Problem] = field(default_factory=list)
    cells: Sequence[CellText] | None = None  # of a notebook, in order
    fixable: bool = True  # False while the text is no Python: the findings are those of the last text that was


def notebook_text(cells: Sequence[CellText]) -> str:
    """The notebook that the cells make."""
    made = [
        {"cell_type": "markdown", "source": c.text}
        if c.language is None
        else {"cell_type": "code", "metadata": {"vscode": {"languageId": c.language}}, "source": c.text}
        for c in cells
    ]
    return json.dumps({"cells": made, "metadata": {}})


def encoded(text: str) -> bytes:
    """The text as its file would hold it, in the encoding that it declares."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(text.encode("utf-8", "surrogatepass")).readline)
        return text.encode(encoding)
    except (SyntaxError, UnicodeError, LookupError):
        return text.encode("utf-8", "surrogatepass")  # decoding says what is wrong with it


def wrong_with(path: str, data: bytes) -> Problem | None:
    try:
        wrong = syntax_problem(decode(path, data).text)
    except SourceError as error:
        wrong = error
    return Problem(path, wrong.reason, wrong.row, wrong.col) if wrong is not None else None


class Folder:
    """`root` is a workspace folder, or a file that lies in none (`alone`)."""

    def __init__(self, root: str, options: Options, alone: bool = False):
        self.root, self.options, self.alone = root, options, alone
        self.rules = codemod.load()
        self.runner = WarmRunner()
        self.settings: engine.Settings | None = None
        self.config_error: str | None = None
        self.result: engine.Result | None = None
        self.fixes: preview.Fixes | None = None
        self._config_stamp: object = ()
        self._excludes: list[discovery.Patterns] = []
        self._on_disk: dict[str, tuple | None] = {}
        self._given: dict[str, tuple[str, bytes, Problem | None]] = {}  # path -> the text it has in the editor
        self._good: dict[str, bytes] = {}  # path -> the last text that was Python
        self.refresh()

    # ------------------------------------------------------------------ what is on disk
    def refresh(self) -> None:
        """Look at the disk again: the config, the files, and which of them changed."""
        self._read_config()
        found = [] if self.alone else discovery.discover([self.root], self._excludes)[0]
        before = self._on_disk
        self._on_disk = {os.path.abspath(p): stamp(p) for p in found}
        if self.runner.warm is not None:
            self.runner.warm.changed([p for p, now in self._on_disk.items() if before.get(p) != now])

    def _read_config(self) -> None:
        path = None
        if not self.options.isolated:
            path = self.options.config or config.find_config(os.path.dirname(self.root) if self.alone else self.root)
        now = (path, stamp(path) if path else None)
        if now == self._config_stamp:
            return
        self._config_stamp = now
        conf, base = config.Config(), self.root
        try:
            if path is not None:
                found, base = config.read_config(path)
                conf = found or conf
            settings = self._settings(conf, base)
            self.config_error = None
        except config.ConfigError as error:
            self.config_error = str(error)
            if self.settings is not None:
                return  # the last config that was right stays
            conf, base = config.Config(), self.root
            settings = self._settings(conf, base)
        self.settings = settings
        self._excludes = [discovery.Patterns(base, conf.exclude)]

    def _settings(self, conf: config.Config, base: str) -> engine.Settings:
        o = self.options
        return engine.settings_from(
            conf, base, self.rules,
            select=o.select, extend_select=o.extend_select, ignore=o.ignore, target_torch=o.target_torch,
        )  # fmt: skip

    # ------------------------------------------------------------------ findings
    def check(self, documents: Sequence[Document]) -> None:
        """Fill in the findings of the open documents, as `gradfix check` of the folder would with these texts."""
        overlay = self._overlay(documents)
        files = sorted({*self._on_disk, *overlay})
        collected = gc.isenabled()
        gc.disable()
        try:
            self.result = engine.check(files, self.settings, self.runner, overlay)
        finally:
            if collected:
                gc.enable()
        self.fixes = preview.Fixes(self.result.project)
        found: dict[str, list[Finding]] = {d.path: [] for d in documents}
        for finding in self.result.findings:
            if finding.path in found:
                found[finding.path].append(engine.with_settings(finding, self.settings))
        for document in documents:
            self._fill(document, found[document.path])

    def _overlay(self, documents: Sequence[Document]) -> dict[str, bytes]:
        """The texts that the analysis reads: of a text that is no Python at the moment, the last that was."""
        overlay = {}
        for document in documents:
            path = document.path = self._known_as(document.path)
            if path not in self._on_disk and self._is_excluded(path):
                continue
            text, data, wrong = self._given.get(path, (None, b"", None))
            if text != document.text:
                data = encoded(document.text)
                wrong = wrong_with(path, data)
                self._given[path] = (document.text, data, wrong)
                if wrong is None:
                    self._good[path] = data
            overlay[path] = self._good.get(path, data)
        for path in [p for p in self._given if p not in overlay]:  # closed
            del self._given[path]
            self._good.pop(path, None)
        return overlay

    def _known_as(self, path: str) -> str:
        """The name by which the project knows a file that the editor may have opened by a link."""
        if path not in self._on_disk and (real := os.path.realpath(path)) in self._on_disk:
            return real
        return path

    def _is_excluded(self, path: str) -> bool:
        if self.alone:
            return False
        inside = os.path.relpath(path, self.root).split(os.sep)[:-1]
        return not discovery.DEFAULT_EXCLUDES.isdisjoint(inside) or any(p.verdict(path) for p in self._excludes)

    def _fill(self, document: Document, findings: list[Finding]) -> None:
        path = document.path
        if path not in self._given:
            document.findings, document.problems = [], []
            return
        wrong = self._given[path][2]
        document.fixable = wrong is None or path not in self._good
        if document.fixable:
            document.findings = findings
            document.problems = [p for p in self.result.problems if p.path == path]
        else:
            changes = preview.changes(lines_of(decode(path, self._good[path]).text), lines_of(document.text))
            document.findings = [f for finding in findings if (f := moved(finding, changes)) is not None]
            document.problems = [wrong]

    # ------------------------------------------------------------------ fixes
    def changed_by(self, finding: Finding) -> dict[str, list[preview.Replacement]]:
        """path -> what the fix of a finding of the last check replaces there; empty where it can't be made.

        In a notebook that is open each replacement names its cell; of another the lines are those of its file.
        """
        changed, in_files = self.fixes.changed(finding.fix), self.fixes.file_changes(finding.fix)
        return {
            path: self.fixes.edits(path, made)
            if path in self._given
            else preview.replacements(self.fixes.file_lines(path), in_files[path])
            for path, made in changed.items()
        }

    def fix_all(self, document: Document) -> list[preview.Replacement]:
        """What `gradfix apply` would replace in the document, by safe fixes that touch no other file."""
        overlay = dict(self.result.project.overlay)
        settings = dataclasses.replace(self.settings, only=frozenset({document.path}))
        with self.result.project.trial():
            done = engine.apply(self.result.files, settings, self.runner, overlay)
        if document.path not in done.after:
            return []
        if document.cells is not None:
            before, after = decode(document.path, encoded(document.text)), decode(document.path, done.after[document.path])
            changes = [
                dataclasses.replace(change, cell=a.number)
                for a, b in zip(before.cells, after.cells)
                for change in preview.changes(a.raw, b.raw)
            ]
            return self.fixes.edits(document.path, changes)
        old = lines_of(document.text)
        return preview.replacements(old, preview.changes(old, lines_of(decode(document.path, done.after[document.path]).text)))

    def has_safe_fix(self, document: Document) -> bool:
        return any(
            engine.is_safe(f, self.settings) and all(e.path == document.path for e in f.fix.edits) for f in document.findings
        )

    def text_of(self, path: str) -> str | None:
        """The text of any file, as the analysis read it."""
        try:
            return "".join(preview.file_lines(path, self.result.project.data(path)))
        except (OSError, SourceError):
            return None


def stamp(path: str) -> tuple | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size


def moved(finding: Finding, changes: Sequence[preview.Change]) -> Finding | None:
    """The finding after changes elsewhere in its file; None where they touch it."""
    first, last = finding.span.row - 1, finding.span.end_row - 1
    shift = 0
    for change in changes:
        if change.end <= first:
            shift += len(change.new) - (change.end - change.start)
        elif change.start <= last:
            return None
    s = finding.span
    return dataclasses.replace(finding, span=Span(s.row + shift, s.col, s.end_row + shift, s.end_col), related=())

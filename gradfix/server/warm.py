"""A project that stays in memory: after an edit only the files that read the edited one are analysed again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager

from gradfix.analysis import Project
from gradfix.runner import Part, Runner, work


class Cancelled(Exception):
    """The work is no longer wanted: a newer text has come."""


class Reads:
    """What the analysis of one file asked the project for."""

    def __init__(self):
        self.contents: set[str] = set()  # files whose text it followed
        self.outlines: set[str] = set()  # files of which it asked what they import and whether they hold a root
        self.resolved: dict[tuple, str | None] = {}  # imports, and the files that they meant


class WarmProject(Project):
    """Keeps, per file, what the analysis that starts there observed, until something that it read changes."""

    def __post_init__(self):
        super().__post_init__()
        self.parts: dict[str, Part] = {}
        self._reads: dict[str, Reads] = {}
        self._reading: Reads | None = None
        self._resolutions: dict[tuple, str | None] = {}
        self._hashes: dict[str, int | None] = {}  # of the contents that were read

    @property
    def needs(self) -> frozenset[str]:
        return self._needs

    @needs.setter
    def needs(self, needs: frozenset[str]) -> None:
        """Other rules may need more of the analysis: then all is observed anew."""
        if needs != self.__dict__.setdefault("_needs", needs):
            self._needs = needs
            for known in (self.parts, self._reads, self._modules, self._hashes, self._roots, self._imports):
                known.clear()

    # ------------------------------------------------------------------ what is read
    def module(self, path):
        self._note(path)
        return super().module(path)

    def data(self, path):
        self._note(path)
        data = super().data(path)
        self._hashes.setdefault(path, hash(data))
        return data

    def holds_root(self, path):
        return self._outline(path, super().holds_root)

    def imports(self, path):
        return self._outline(path, super().imports)

    def resolve(self, importer, dotted, level=0):
        key = (importer, dotted, level)
        if key not in self._resolutions:
            self._resolutions[key] = super().resolve(importer, dotted, level)
        if self._reading is not None:
            self._reading.resolved[key] = self._resolutions[key]
        return self._resolutions[key]

    def _note(self, path: str) -> None:
        if self._reading is not None:
            self._reading.contents.add(path)

    def _outline(self, path: str, ask: Callable):
        """Reading a file for its outline is no reading of its text: most edits leave the outline as it was."""
        reading = self._reading
        if reading is not None:
            reading.outlines.add(path)
        self._reading = None
        try:
            return ask(path)
        finally:
            self._reading = reading

    @contextmanager
    def _recording(self, path: str):
        reads = self._reads[path] = Reads()
        reads.contents.add(path)
        self._reading = reads
        try:
            yield
        finally:
            self._reading = None

    def observe(self, path: str) -> Part:
        if path not in self.parts:
            with self._recording(path):
                part = work(self, [path])
            self.parts[path] = part
        return self.parts[path]

    @contextmanager
    def trial(self):
        """Texts are tried out inside; afterwards the project is what it was, with what it knew."""
        kept = {name: dict(value) if isinstance(value, dict) else value for name, value in self.__dict__.items()}
        try:
            yield
        finally:
            self.__dict__.update(kept)

    # ------------------------------------------------------------------ what changes
    def set_overlay(self, overlay: dict[str, bytes]) -> None:
        """The texts that stand for those on disk."""
        changed = {p for p in {*overlay, *self.overlay} if overlay.get(p) is not self.overlay.get(p)}
        self.overlay = dict(overlay)
        self.changed(changed)

    def changed(self, paths: Iterable[str]) -> None:
        """Forget what was seen of these files, and what was observed by reading them, where their contents differ."""
        paths = {path for path in paths if self._differs(path)}
        if not paths:
            return
        outlines = set()
        for path in paths:
            self._modules.pop(path, None)
            before = self._roots.pop(path, None), self._imports.pop(path, None)
            if before != (None, None) and before != self._outline_of(path, before):
                outlines.add(path)
        self._forget(lambda reads: not reads.contents.isdisjoint(paths) or not reads.outlines.isdisjoint(outlines))

    def _differs(self, path: str) -> bool:
        if path not in self._hashes:
            return True
        seen = self._hashes.pop(path)
        try:
            self.data(path)
        except OSError:
            return True
        return self._hashes[path] != seen

    def _outline_of(self, path: str, before: tuple) -> tuple:
        """The outline now, in so far as it was asked for before."""
        return tuple(ask(path) if old is not None else None for ask, old in zip((self.holds_root, self.imports), before))

    def set_files(self, files: Sequence[str]) -> None:
        """The files of the project; what an import means may change with them."""
        if tuple(files) == self.files:
            return
        self.files = tuple(files)
        self._known = dict(Project(self.files)._known)
        self._resolutions.clear()
        imported, self._imports = self._imports, {}
        known = set(self.files)
        for path in [p for p in self.parts if p not in known]:
            del self.parts[path], self._reads[path]
        outlines = {path for path, old in imported.items() if self.imports(path) != old}
        self._forget(
            lambda reads: (
                not reads.outlines.isdisjoint(outlines)
                or any(self.resolve(*key) != meant for key, meant in reads.resolved.items())
            )
        )

    def _forget(self, stale: Callable[[Reads], bool]) -> None:
        for path in [p for p in self.parts if stale(self._reads[p])]:
            del self.parts[path], self._reads[path]


class WarmRunner(Runner):
    """Checks one warm project again and again, in this thread, until `cancelled` says stop."""

    def __init__(self):
        super().__init__(jobs=1)
        self.warm: WarmProject | None = None
        self.cancelled: Callable[[], bool] = lambda: False
        self.progress: Callable[[int, int], None] = lambda done, total: None

    def project(self, files, overlay, target_torch):
        if self.warm is None or self.warm.target_torch != target_torch:
            self.warm = WarmProject(tuple(files), dict(overlay), target_torch)
        self.warm.set_overlay(overlay)
        self.warm.set_files(files)
        return self.warm

    def observe(self, project, paths):
        todo = [path for path in paths if path not in project.parts]
        for number, path in enumerate(todo):
            if self.cancelled():
                raise Cancelled
            self.progress(number, len(todo))
            project.observe(path)
        if len(todo) > 50:
            # What a big load made lives long: later collections need not look at it again.
            gc.collect()
            gc.freeze()
        if self.cancelled():
            raise Cancelled
        return [project.parts[path] for path in paths]

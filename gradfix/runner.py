"""Many files: chunks, processes, progress."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field

from gradfix.findings import Problem
from gradfix.source import SourceError, decode, in_cells, syntax_problem

POOL_FROM_BYTES = 64 * 1024
CHUNK_BYTES = 512 * 1024
# The analysis parses only files that hold its words.  That the others are Python at all is checked up to this total.
SYNTAX_BYTES = 16 * 1024 * 1024


@dataclass
class Part:
    """What one chunk of files gave."""

    observations: list = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)  # files that hold suppression comments of ours


# In a worker: the project of the chunks so far, with what it has parsed, and the bytes since garbage was collected.
_worker = {"project": None, "bytes": 0}
COLLECT_BYTES = 6 * 1024 * 1024


def _known(project):
    token = getattr(project, "token", None)
    if token is None:
        return project
    if _worker["project"] is None or _worker["project"].token != token:
        _worker["project"] = project
    return _worker["project"]


def work(project, paths: Sequence[str], syntax: bool = True) -> Part:
    """In a worker: observe a chunk; when that crashes, each file by itself, so that only one is lost."""
    from gradfix.analysis import observe

    project = _known(project)
    collected = gc.isenabled()
    gc.disable()  # trees are all live while they are walked: collecting would only cost; see the end of this function
    part = Part()
    unread: dict[str, bytes] = {}
    try:
        for path in paths:
            try:
                data = project.overlay.get(path)
                if data is None:
                    with open(path, "rb") as handle:
                        data = handle.read()
            except OSError:
                continue  # the analysis says so
            if b"gradfix:" in data:
                part.marked.append(path)
            if syntax:
                unread[path] = data
        try:
            part.observations.append(observe(project, paths))
        except Exception as error:
            if len(paths) == 1:
                part.problems.append(Problem(paths[0], f"the analysis crashed: {describe(error)}"))
                return part
            for path in paths:
                try:
                    part.observations.append(observe(project, [path]))
                except Exception as error:
                    part.problems.append(Problem(path, f"the analysis crashed: {describe(error)}"))
        _check_syntax(project, unread, part)
    finally:
        _worker["bytes"] += sum(_size(project, p) for p in paths)
        if _worker["bytes"] > COLLECT_BYTES:  # what the analysis left in cycles
            _worker["bytes"] = 0
            gc.collect()
        if collected:
            gc.enable()
    return part


def _check_syntax(project, unread: dict[str, bytes], part: Part) -> None:
    """Files that the analysis had no reason to parse are parsed here, for their errors only."""
    named = {p.path for o in part.observations for p in o.problems} | {p.path for p in part.problems}
    parsed = getattr(project, "_modules", {})
    for path, data in unread.items():
        if path in named or parsed.get(path) is not None:
            continue
        try:
            source = decode(path, data)
            part.problems += [*source.problems, *source.outdated]
            wrong = syntax_problem(source.text) if not in_cells(path) else None
        except SourceError as error:
            wrong = error
        if wrong is not None:
            part.problems.append(Problem(path, wrong.reason, wrong.row, wrong.col))


def describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if len(text) > 200:
        text = text[:199] + "…"
    trace, where = error.__traceback__, ""
    while trace is not None:
        where = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}{': ' + text if text else ''}{where}"


def _worker_start():
    import signal
    import warnings

    warnings.simplefilter("ignore", SyntaxWarning)
    warnings.simplefilter("ignore", DeprecationWarning)

    gc.disable()
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except (ValueError, OSError):
        pass


def _size(project, path: str) -> int:
    """How much there is to read; of a notebook most is outputs, which are skipped."""
    try:
        size = len(project.overlay[path]) if path in project.overlay else os.path.getsize(path)
    except OSError:
        return 0
    return size // 8 if path.endswith(".ipynb") else size


def chunks(project, paths: Sequence[str], jobs: int) -> list[list[str]]:
    """Files of one folder stay together (they import each other); big folders are cut."""
    sizes = {p: _size(project, p) for p in paths}
    limit = min(CHUNK_BYTES, max(POOL_FROM_BYTES // 2, sum(sizes.values()) // (jobs * 4) + 1))
    out: list[list[str]] = []
    here: list[str] = []
    weight = 0
    for path in sorted(paths, key=lambda p: (os.path.dirname(p), p)):
        if here and weight + sizes[path] > limit:
            out.append(here)
            here, weight = [], 0
        here.append(path)
        weight += sizes[path]
    if here:
        out.append(here)
    out.sort(key=lambda c: -sum(sizes[p] for p in c))
    return out


@contextmanager
def apart():
    """Worker processes that start meanwhile don't look for Python's own modules in the working folder."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


class Runner:
    """Runs the analysis over files, in this process or in a pool that lives as long as the runner."""

    def __init__(self, jobs: int | None = None, progress: bool = False):
        self.jobs = max(1, jobs or usable_cpus())
        self.progress = progress
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self, cancel: bool = False):
        if self._pool is not None:
            self._pool.shutdown(wait=not cancel, cancel_futures=True)
            self._pool = None

    def project(self, files: Sequence[str], overlay: dict[str, bytes], target_torch: tuple[int, int]):
        """The project of one check (the language server's runner keeps its own from check to check)."""
        from gradfix.analysis import Project

        return Project(tuple(files), dict(overlay), target_torch)

    def observe(self, project, paths: Sequence[str]) -> list[Part]:
        if not paths:
            return []
        total = sum(_size(project, p) for p in paths)
        syntax = total <= SYNTAX_BYTES
        if len(paths) == 1 or total < POOL_FROM_BYTES:
            return [work(project, list(paths), syntax)]
        parts_of = chunks(project, paths, self.jobs)
        if self.jobs == 1 or len(parts_of) == 1:
            with Progress(len(paths), self.progress) as bar:
                return [bar.advance(len(chunk), work(project, chunk, syntax)) for chunk in parts_of]
        if self._pool is None:
            self._pool = ProcessPoolExecutor(min(self.jobs, len(parts_of)), initializer=_worker_start)
        done: dict[int, Part] = {}
        lost: list[int] = []
        try:
            with apart():
                futures = {self._pool.submit(work, project, chunk, syntax): i for i, chunk in enumerate(parts_of)}
        except BrokenProcessPool:
            self.close(cancel=True)
            return [p for chunk in parts_of for p in self._alone(project, chunk, syntax)]
        with Progress(len(paths), self.progress) as bar:
            try:
                for future in as_completed(futures):
                    index = futures[future]
                    try:
                        done[index] = future.result()
                    except BrokenProcessPool:
                        lost.append(index)
                    except Exception as error:  # what can't be sent back
                        why = f"the analysis crashed: {describe(error)}"
                        done[index] = Part(problems=[Problem(p, why) for p in parts_of[index]])
                    bar.advance(len(parts_of[index]))
            except BaseException:
                self.close(cancel=True)
                raise
        if lost:
            self.close(cancel=True)
            for index in lost:
                for part in self._alone(project, parts_of[index], syntax):
                    done[len(done) + len(parts_of)] = part
        return [done[i] for i in sorted(done)]

    def map(self, function, jobs: Sequence) -> list:
        """`function` of each job, in the pool where there is one to gain; None where a process died."""
        if self.jobs == 1 or len(jobs) < 2:
            return [function(job) for job in jobs]
        if self._pool is None:
            self._pool = ProcessPoolExecutor(min(self.jobs, len(jobs)), initializer=_worker_start)
        try:
            with apart():
                return list(self._pool.map(function, jobs))
        except BrokenProcessPool:
            self.close(cancel=True)
            return [None] * len(jobs)

    def _alone(self, project, chunk: list[str], syntax: bool) -> list[Part]:
        """A chunk whose worker died (of this chunk or of another one): once more, cut down to the file that kills."""
        try:
            with apart(), ProcessPoolExecutor(1, initializer=_worker_start) as pool:
                return [pool.submit(work, project, chunk, syntax).result()]
        except BrokenProcessPool:
            if len(chunk) == 1:
                return [Part(problems=[Problem(chunk[0], "the process that analysed it was killed (out of memory?)")])]
            half = len(chunk) // 2
            return self._alone(project, chunk[:half], syntax) + self._alone(project, chunk[half:], syntax)


def usable_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


class Progress:
    """A bar on stderr, shown only on a terminal and only once the work has taken a second."""

    def __init__(self, total: int, wanted: bool):
        self.total, self.count = total, 0
        self.wanted = wanted and sys.stderr.isatty()
        self.start = time.monotonic()
        self.bar = self.task = None

    def __enter__(self):
        return self

    def advance(self, by: int, result=None):
        self.count += by
        if self.wanted:
            self._show()
        return result

    def _show(self):
        if self.bar is None and time.monotonic() - self.start > 1 and self.count < self.total:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(
                TextColumn("Checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self.task = self.bar.add_task("", total=self.total)
            self.bar.start()
        if self.bar is not None:
            self.bar.update(self.task, completed=self.count)

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.stop()

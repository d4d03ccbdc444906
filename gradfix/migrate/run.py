"""One run: jobs to an executor, records to the journal, news to the progress."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gradfix.migrate import plan, worker
from gradfix.migrate.executors import executor
from gradfix.migrate.journal import Journal
from gradfix.migrate.records import Job, Record, dumps, loads
from gradfix.migrate.repository import failure
from gradfix.runner import describe
from gradfix.source import atomic_write

IN_FLIGHT = 64  # jobs that wait at the executor beyond those that run: enough for any, and soon cancelled


@dataclass
class Settings:
    cluster: str | None
    jobs: int
    branch: str | None
    patches: str | None
    restart: bool


def scratch_of(journal: str) -> str:
    """Where the copies are: one folder per journal, so that what a killed run left is found and removed."""
    name = plan.digest([os.path.realpath(journal)])[:16]
    return os.path.join(os.path.realpath(tempfile.gettempdir()), f"gradfix-migrate-{name}")


def run(jobs: Sequence[Job], journal: Journal, settings: Settings, progress) -> tuple[list[Record], str]:
    """The records, in the order of the jobs, and when the run was started."""
    identities = [plan.identity(job) for job in jobs]
    aim = [settings.branch or "", os.path.abspath(settings.patches) if settings.patches else ""]
    started = journal.begin(
        plan.digest([*aim, *identities]), [(i, job.name) for i, job in zip(identities, jobs)], settings.restart
    )
    branch = settings.branch or f"gradfix/{started.date}"
    records = started.records()
    progress.begin(len(jobs), started.started if started.resumed else None, list(records.values()))
    for folder in _stale(jobs):
        shutil.rmtree(folder, ignore_errors=True)

    def keep(position: int, record: Record):
        if record.state == "same":  # as it was: the older record stands
            record = older[position]
        record.name = jobs[position].name
        if settings.patches is not None and record.state == "done":
            try:
                write_patches(os.path.join(settings.patches, record.name), record)
            except OSError as error:
                reason = f"{error.filename or settings.patches}: {(error.strerror or str(error)).lower()}"
                record = failure(jobs[position], reason)
        started.keep(position, record)
        records[position] = record
        progress.done(record)

    older: dict[int, Record] = {}
    waiting = []
    for position, job in enumerate(jobs):
        if position in records:
            continue
        job = msgspec.structs.replace(job, branch=branch)
        last = None if settings.restart else journal.latest(identities[position])
        if last is not None and (settings.branch is None or last.branch in (None, settings.branch)):
            older[position] = last
            job.known = {"base": last.base, "branch": last.branch, "tip": last.tip}
        waiting.append((position, job))
    if waiting:
        for _, job in waiting:
            job.processes = max(1, settings.jobs // len(waiting)) if settings.cluster is None else 1
        try:
            with executor(settings.cluster, settings.jobs) as pool:
                for position, record in finished(pool, waiting, settings.jobs + IN_FLIGHT, progress):
                    keep(position, record)
        finally:
            for folder in _stale(jobs):  # what workers that were ended have left
                shutil.rmtree(folder, ignore_errors=True)
    started.finish()
    return [records[i] for i in range(len(jobs))], started.started


def finished(pool: concurrent.futures.Executor, waiting: list[tuple[int, Job]], most: int, progress):
    """(position, record) of each job as it is done."""
    todo = iter(waiting)
    running: dict[concurrent.futures.Future, tuple[int, Job]] = {}
    while True:
        while len(running) < most and (following := next(todo, None)) is not None:
            running[pool.submit(worker.run, dumps(following[1]))] = following
        if not running:
            return
        # An engine elsewhere need not say what it has begun; it takes the jobs in order.
        begun = [job.name for future, (_, job) in running.items() if future.running()]
        progress.current(begun or [job.name for _, job in running.values()])
        done, _ = concurrent.futures.wait(running, 1.0, concurrent.futures.FIRST_COMPLETED)
        for future in done:
            position, job = running.pop(future)
            try:
                yield position, loads(future.result(), Record)
            except (Exception, concurrent.futures.CancelledError) as error:  # the engine lost it for good
                yield position, failure(job, f"the worker was lost: {describe(error)}")


def _stale(jobs: Sequence[Job]) -> list[str]:
    """What a run that was killed has left of copies and half-made clones."""
    found = [job.scratch for job in jobs]
    for clones in {job.clones for job in jobs}:
        with contextlib.suppress(OSError):
            found += [entry.path for entry in os.scandir(clones) if entry.name.endswith(".half")]
    return sorted(set(found))


def write_patches(folder: str, record: Record) -> None:
    """`NNNN-CODE-name.patch` for each commit, and no others of that form."""
    if record.commits:
        os.makedirs(folder, exist_ok=True)
    names = set()
    for number, commit in enumerate(record.commits, 1):
        name = f"{number:04}-{commit.code}-{commit.rule}.patch"
        atomic_write(os.path.join(folder, name), commit.patch.encode("utf-8", "surrogateescape"))
        names.add(name)
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            if re.fullmatch(r"\d{4}-[A-Z]+\d+-.*\.patch", name) and name not in names:
                os.unlink(os.path.join(folder, name))
        if not names and not os.listdir(folder):
            os.rmdir(folder)

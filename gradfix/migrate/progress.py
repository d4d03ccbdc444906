"""How far the run is: a bar on a terminal, else one line per repository."""

from __future__ import annotations

import sys
import time

from gradfix.findings import place
from gradfix.migrate.records import Record
from gradfix.reports import count


def outcome(record: Record) -> str:
    """What became of a repository, in a few words."""
    if record.state == "failed":
        return f"failed: {record.error}"
    state = "unchanged" if not record.commits else "would be changed" if record.mode == "dry-run" else "changed"
    rest = details(record)
    return state + (": " if record.commits else "; " if rest else "") + rest


def details(record: Record) -> str:
    parts = []
    if record.commits:
        text = f"{fixes(record.fixed)} in {count(len(record.changed_files), 'file')}"
        if record.branch:
            text += f", {count(len(record.commits), 'commit')} on {record.branch}"
        elif record.mode == "patches":
            text += f", {len(record.commits)} {'patch' if len(record.commits) == 1 else 'patches'}"
        parts.append(text)
    if record.left:
        parts.append(f"{count(len(record.left), 'finding')} left")
    if record.problems:
        parts.append(count(len(record.problems), "problem"))
    if record.verdict:
        parts.append(record.verdict)
    return "; ".join(parts)


def fixes(number: int) -> str:
    return f"{number} {'fix' if number == 1 else 'fixes'}"


def problem_lines(record: Record) -> list[str]:
    return [f"error: {record.name}/{place(p.path, p.cell, p.row, p.column)}: {p.message}" for p in record.problems]


class Plain:
    """One line per repository, for logs."""

    def __init__(self, say, quiet: bool = False):
        self.say, self.quiet = say, quiet
        self.total = self.count = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def begin(self, total: int, resumed: str | None, records: list[Record]) -> None:
        self.total, self.count = total, len(records)
        if resumed and not self.quiet:
            self.say(f"Resuming the run of {resumed}: {len(records)} of {count(total, 'repository').replace('ys', 'ies')} done.")

    def current(self, names: list[str]) -> None:
        pass

    def done(self, record: Record) -> None:
        self.count += 1
        if not self.quiet:
            self.say(f"[{self.count}/{self.total}] {record.name}: {outcome(record)} ({record.seconds:.1f} s)")


class Bar(Plain):
    """Bar, rate, counts and the repositories in work; failures scroll by above it."""

    def __enter__(self):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.text import Text

        self.text = Text
        self.changed = self.failed = 0
        self.start = time.monotonic()
        self.bar = Progress(
            TextColumn("Migrating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[counts]}"),
            TextColumn("{task.fields[names]}", style="dim", markup=False),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=None, rate="", counts="", names="")
        self.bar.start()
        return self

    def __exit__(self, *_):
        self.bar.stop()

    def begin(self, total, resumed, records):
        super().begin(total, resumed, records)
        self.before = len(records)
        self.changed = sum(r.changed for r in records)
        self.failed = sum(r.state == "failed" for r in records)
        self._update()

    def current(self, names):
        more = f" +{len(names) - 2}" if len(names) > 2 else ""
        self.bar.update(self.task, names=", ".join(n[:24] for n in names[:2]) + more)
        self._update()

    def done(self, record):
        self.count += 1
        self.changed += record.changed
        self.failed += record.state == "failed"
        if record.state == "failed":
            self.bar.console.print(self.text(f"{record.name}: {outcome(record)}", style="red"))
        self._update()

    def _update(self):
        rate = (self.count - self.before) / max(0.1, time.monotonic() - self.start)
        shown = f"{rate:.1f}/s" if rate >= 1 or not rate else f"{rate * 60:.1f}/min"
        counts = f"{self.changed} changed, {self.failed} failed"
        self.bar.update(self.task, total=self.total, completed=self.count, rate=shown, counts=counts)


def progress(say, quiet: bool):
    return Bar(say, quiet) if sys.stderr.isatty() and not quiet else Plain(say, quiet)

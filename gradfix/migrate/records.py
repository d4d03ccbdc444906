"""What goes to a worker (a job) and what comes back (a record).  Both travel, and rest in the journal, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

Mode = Literal["dry-run", "branch", "patches"]
Kind = Literal["folder", "git", "url"]


class Options(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """What may be said for each repository: in the manifest, or on the command line for all."""

    paths: list[str] = []
    select: list[str] | None = None
    extend_select: list[str] = []
    ignore: list[str] = []
    unfixable: list[str] = []
    extend_safe_fixes: list[str] = []
    exclude: list[str] = []
    target_torch: str | None = None
    unsafe_fixes: bool | None = None
    isolated: bool | None = None
    verify_command: str | list[str] | None = None
    verify_scripts: list[str] = []
    timeout: float | None = None
    memory: int | None = None  # MiB


class Job(msgspec.Struct, kw_only=True):
    name: str
    source: str  # as it was given; a path is absolute
    kind: Kind
    options: Options
    mode: Mode
    branch: str
    clones: str  # where repositories given by URL are kept
    scratch: str
    processes: int = 1
    known: dict[str, Any] | None = None  # base, branch and tip of an earlier record of the same job


class Commit(msgspec.Struct, kw_only=True):
    """What one rule did."""

    code: str
    rule: str
    subject: str
    fixes: int
    files: list[str]
    diff: str
    hash: str
    verdict: str | None = None
    patch: str = ""  # only in mode `patches`


class Row(msgspec.Struct, kw_only=True):
    """A finding that is left, or (without a code) a problem: a file that could not be done."""

    path: str
    message: str
    row: int | None = None
    column: int | None = None
    cell: int | None = None
    code: str | None = None
    rule: str | None = None
    severity: str | None = None
    fix: str | None = None  # the applicability of the fix that was not made


class Trial(msgspec.Struct, kw_only=True):
    """One run of the verify command."""

    code: int | None  # None: it ran out of time
    seconds: float
    output: str  # the end of it


class Verification(msgspec.Struct, kw_only=True):
    """A command that was run before and after, or scripts whose gradients were compared."""

    command: str
    verdict: str
    reason: str
    before: Trial | None = None
    after: Trial | None = None


WORST_FIRST = ("failed", "changed", "repaired", "gained", "preserved", "inconclusive")


def worst(verdicts: Iterable[str]) -> str | None:
    """What several witnesses say together: one that knows nothing takes nothing from the others."""
    return min(verdicts, key=WORST_FIRST.index, default=None)


class Record(msgspec.Struct, kw_only=True):
    """What became of one repository."""

    name: str
    source: str
    state: Literal["done", "failed", "same"]  # same: nothing changed since the record that the job names
    mode: str = "dry-run"
    error: str | None = None
    base: str | None = None
    branch: str | None = None
    tip: str | None = None
    location: str | None = None  # the repository that has the branch, where that is a clone of ours
    files: int = 0
    found: dict[str, int] = {}
    commits: list[Commit] = []
    dropped: list[Commit] = []  # rewrites that the verify command refused
    left: list[Row] = []
    problems: list[Row] = []
    notes: list[str] = []
    verifications: list[Verification] = []
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        return bool(self.commits)

    @property
    def verdict(self) -> str | None:
        return worst(v.verdict for v in self.verifications)

    @property
    def fixed(self) -> int:
        return sum(c.fixes for c in self.commits)

    @property
    def changed_files(self) -> list[str]:
        return sorted({f for c in self.commits for f in c.files})


def dumps(value) -> str:
    """JSON in ASCII: names of files need not be Unicode."""
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def loads(text: str, kind):
    return msgspec.convert(json.loads(text), kind)

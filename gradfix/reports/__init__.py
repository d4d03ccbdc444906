"""One file per output format; each has `write(report, out)`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradfix import fingerprints
from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Finding, Problem, Related, Severity, Span
from gradfix.positions import Place, Unit, place
from gradfix.preview import Fixes


@dataclass
class Report:
    findings: list[Finding]
    problems: list[Problem]
    fixes: Fixes
    color: bool = False
    quiet: bool = False
    fixed: int = 0
    unsafe_fixes: bool = False
    command: str = "check"
    files: int = 0
    rules: Sequence[Codemod] = ()
    notes: list[str] = field(default_factory=list)  # what the writer has to say besides, for stderr

    def place(self, at: Finding | Related, unit: Unit = Unit.CODE_POINTS) -> Place:
        """Where it stands in its file: of a notebook, in its JSON."""
        return place(self.fixes.in_file(at.path, at.cell, at.span), self.fixes.file_lines(at.path), unit)

    def spot(self, p: Problem) -> tuple[int | None, int | None]:
        """Row and column, from 1, of a problem in its file."""
        if p.cell is None or not p.row:
            return p.row, p.col
        col = (p.col or 1) - 1
        at = self.fixes.in_file(p.path, p.cell, Span(p.row, col, p.row, col))
        return at.row, at.col + 1 if p.col else None

    def rule(self, code: str) -> Codemod | None:
        return next((r for r in self.rules if r.code == code), None)

    def fingerprints(self) -> list[str]:
        """One for each finding: the same in the next run, even when its line has moved."""
        return fingerprints.fingerprints(fingerprints.keys(self.findings, self.fixes.lines, root()))


def root() -> str:
    """The folder that code hosts count paths from: the CI job's checkout, else the repository around the working folder."""
    here = os.path.realpath(os.getcwd())
    for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        if (folder := os.environ.get(name)) and os.path.isdir(folder):
            folder = os.path.realpath(folder)
            if here == folder or here.startswith(folder.rstrip(os.sep) + os.sep):
                return folder
    folder = here
    while not os.path.exists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return here
        folder = parent
    return folder


def from_root(path: str) -> str:
    """`path` from `root()` on, links resolved and with slashes; absolute where it lies outside."""
    absolute, top = os.path.realpath(path), root()
    inside = absolute.startswith(top.rstrip(os.sep) + os.sep)
    return (os.path.relpath(absolute, top) if inside else absolute).replace(os.sep, "/")


def count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def summary(report: Report) -> str:
    findings = report.findings
    parts = []
    for severity, word in ((Severity.ERROR, "error"), (Severity.WARNING, "warning")):
        if number := sum(f.severity is severity for f in findings):
            parts.append(count(number, word))
    if number := sum(f.severity is Severity.INFO for f in findings):
        parts.append(f"{number} info")
    lines = []
    if report.fixed:
        rest = f" {', '.join(parts)} left." if parts else ""
        lines.append(f"Fixed {count(report.fixed, 'finding')}.{rest}")
    elif parts:
        lines.append(f"Found {', '.join(parts)}.")
    elif not report.problems and report.files:
        lines.append("No findings.")
    safe = sum(f.fix is not None and f.fix.applicability is Applicability.SAFE for f in findings)
    unsafe = sum(f.fix is not None for f in findings) - safe
    if report.command == "check" and (safe or unsafe):
        text = []
        if safe:
            text.append(f"{safe} fixable with `gradfix apply`")
        if unsafe:
            text.append(f"{unsafe}{'' if safe else ' fixable'} with `gradfix apply --unsafe-fixes`")
        lines.append(", ".join(text) + " (`--dry-run` shows the diff first).")
    elif report.command == "apply" and unsafe and not report.unsafe_fixes:
        lines.append(f"{count(unsafe, 'more fix').replace('fixs', 'fixes')} with `--unsafe-fixes`.")
    return "\n".join(lines)


def writer(name: str):
    import importlib

    return importlib.import_module("gradfix.reports." + name.replace("-", "_")).write

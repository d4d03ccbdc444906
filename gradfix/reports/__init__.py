"""One file per output format; each has `write(report, out)`."""

from __future__ import annotations

from dataclasses import dataclass

from gradfix.findings import Applicability, Finding, Problem, Severity
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

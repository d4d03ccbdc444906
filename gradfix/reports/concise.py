"""One line per finding."""

from __future__ import annotations

from gradfix.findings import place
from gradfix.reports import Report, summary
from gradfix.reports.style import SEVERITY, styler


def mark(finding) -> str:
    if finding.fix is None:
        return ""
    return f"[{finding.fix.applicability.value} fix] "


def write(report: Report, out) -> None:
    style = styler(report.color)
    for f in report.findings:
        where = place(f.path, f.cell, f.span.row, f.span.col + 1)
        where = style(f.path, "bold") + where[len(f.path) :]
        severity = style(f.severity.value, SEVERITY[f.severity.value], "bold")
        out.write(f"{where}: {severity} {f.code} ({f.name}) {style(mark(f), 'cyan')}{' '.join(f.message.split())}\n")
    if not report.quiet and (text := summary(report)):
        out.write(text + "\n")

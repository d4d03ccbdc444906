"""GitLab's Code Quality report: whole lines, paths from the repository's root, one fingerprint for each finding."""

from __future__ import annotations

import hashlib

from gradfix.findings import Finding, Problem, place_in_cell
from gradfix.positions import Unit
from gradfix.reports import Report, from_root
from gradfix.reports.json import dumps

SEVERITIES = {"error": "major", "warning": "minor", "info": "info"}


def finding_entry(report: Report, f: Finding, fingerprint: str) -> dict:
    place = report.place(f, Unit.LINES)
    return {
        "description": f"{f.code} ({f.name}): {f.message}{place_in_cell(f)}",  # the rule is shown nowhere else
        "check_name": f.code,
        "fingerprint": fingerprint,
        "severity": SEVERITIES[f.severity.value],
        "location": {"path": from_root(f.path), "lines": {"begin": place.row, "end": place.end_row}},
    }


def problem_entry(report: Report, p: Problem) -> dict:
    path, row = from_root(p.path), report.spot(p)[0] or 1
    known_by = f"{path}\0{row}\0{p.col}\0{p.reason}".encode("utf-8", "surrogateescape")
    return {
        "description": p.reason,
        "check_name": "unreadable",
        "fingerprint": hashlib.sha256(known_by).hexdigest()[:32],
        "severity": "critical",
        "location": {"path": path, "lines": {"begin": row, "end": row}},
    }


def write(report: Report, out) -> None:
    entries = [problem_entry(report, p) for p in report.problems]
    entries += [finding_entry(report, f, mark) for f, mark in zip(report.findings, report.fingerprints())]
    out.write("[\n" + ",\n".join("  " + dumps(e) for e in entries) + "\n]\n" if entries else "[]\n")

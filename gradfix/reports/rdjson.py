"""reviewdog's diagnostic format: columns in UTF-8 bytes; a fix is one replacement of whole lines.

reviewdog posts the first suggestion of a diagnostic and complains about the others, so there is at most one.
"""

from __future__ import annotations

import os

from gradfix.findings import Finding, Problem, Related, place_in_cell
from gradfix.positions import Unit
from gradfix.reports import Report
from gradfix.reports.json import dumps

SOURCE = {"name": "GradFix"}


def diagnostic(report: Report, f: Finding) -> dict:
    message = f"{f.message} ({f.name}){place_in_cell(f)}"
    entry = {
        "message": message,
        "location": location(report, f),
        "severity": f.severity.value.upper(),
        "source": SOURCE,
        "code": {"value": f.code},
    }
    rule = report.rule(f.code)
    if rule is not None and rule.url:
        entry["code"]["url"] = rule.url
    if f.fix is not None and report.fixes.changed(f.fix):
        if (made := report.fixes.suggestion(f.path, f.fix)) is not None:
            lines = {"start": {"line": made.row}, "end": {"line": made.end_row}}
            entry["suggestions"] = [{"range": lines, "text": made.text}]
        else:
            option = " --unsafe-fixes" if f.fix.applicability.value == "unsafe" else ""
            entry["message"] += f"; the fix changes places far apart, `gradfix apply{option}` makes it"
    if f.related:
        entry["related_locations"] = [
            {"message": r.message + place_in_cell(r), "location": location(report, r)} for r in f.related
        ]
    return entry


def location(report: Report, at: Finding | Related) -> dict:
    place = report.place(at, Unit.UTF8)
    return {
        "path": at.path.replace(os.sep, "/"),
        "range": {
            "start": {"line": place.row, "column": place.column},
            "end": {"line": place.end_row, "column": place.end_column},
        },
    }


def problem(report: Report, p: Problem) -> dict:
    where: dict = {"path": p.path.replace(os.sep, "/")}
    if row := report.spot(p)[0]:
        where["range"] = {"start": {"line": row}}
    return {"message": p.reason, "location": where, "severity": "ERROR", "source": SOURCE}


def diagnostics(report: Report) -> list[dict]:
    return [problem(report, p) for p in report.problems] + [diagnostic(report, f) for f in report.findings]


def write(report: Report, out) -> None:
    found = ",\n".join("  " + dumps(d) for d in diagnostics(report))
    out.write(f'{{"source": {dumps(SOURCE)}, "diagnostics": [{chr(10) + found + chr(10) if found else ""}]}}\n')

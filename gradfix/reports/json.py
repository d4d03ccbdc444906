"""A list of findings in ruff's shape.

A reader of ruff's output applies `edits` to `filename`.  A fix that touches another file has no `edits`, for half of it
would be wrong; it has `files` instead: a list of `{"filename", "edits"}`.
"""

from __future__ import annotations

from gradfix.findings import Finding, Problem
from gradfix.preview import Replacement
from gradfix.reports import Report


def place(row: int, column: int) -> dict:
    return {"row": row, "column": column}


def in_cell(cell: int | None) -> dict:
    """Where a part of a finding stands in a notebook: perhaps in another cell than the finding."""
    return {} if cell is None else {"cell": cell}


def edits(made: list[Replacement]) -> list[dict]:
    return [
        {
            "content": r.content,
            "location": place(r.row, r.column),
            "end_location": place(r.end_row, r.end_column),
            **in_cell(r.cell),
        }
        for r in made
    ]


def finding_entry(report: Report, f: Finding) -> dict:
    fix = None
    if f.fix is not None:
        fix = {
            "applicability": f.fix.applicability.value,
            "message": f.fix.message,
            "edits": edits(report.fixes.replacements(f.path, f.fix)),
        }
        changed = report.fixes.changed(f.fix)
        if set(changed) - {f.path}:
            fix["files"] = [
                {"filename": path, "edits": edits(report.fixes.edits(path, changed[path]))} for path in sorted(changed)
            ]
    rule = report.rule(f.code)
    last = f.statement_rows[1] or f.span.end_row
    return {
        "code": f.code,
        "name": f.name,
        "message": f.message,
        "filename": f.path,
        "cell": f.cell,
        "location": place(f.span.row, f.span.col + 1),
        "end_location": place(f.span.end_row, f.span.end_col + 1),
        "severity": f.severity.value,
        "url": rule.url if rule is not None else None,
        "noqa_row": last,
        "fix": fix,
        "related": [
            {"filename": r.path, "location": place(r.span.row, r.span.col + 1), "message": r.message, **in_cell(r.cell)}
            for r in f.related
        ],
    }


def problem_entry(p: Problem) -> dict:
    here = place(p.row or 1, p.col or 1)
    return {
        "code": None,
        "name": None,
        "message": p.reason,
        "filename": p.path,
        "cell": p.cell,
        "location": here,
        "end_location": dict(here),
        "severity": "error",
        "url": None,
        "noqa_row": None,
        "fix": None,
        "related": [],
    }


def entries(report: Report) -> list[dict]:
    found = [problem_entry(p) for p in report.problems] + [finding_entry(report, f) for f in report.findings]
    return sorted(
        found, key=lambda e: (e["filename"], e["cell"] or 0, e["location"]["row"], e["location"]["column"], e["code"] or "")
    )


def dumps(value) -> str:
    import json

    return json.dumps(value, ensure_ascii=True)


def write(report: Report, out) -> None:
    found = entries(report)
    if not found:
        out.write("[]\n")
        return
    out.write("[\n" + ",\n".join("  " + dumps(e) for e in found) + "\n]\n")

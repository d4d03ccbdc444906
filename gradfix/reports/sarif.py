"""SARIF 2.1.0: one run, columns in code points, URIs relative to the repository, a fingerprint for each result."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from gradfix import __version__
from gradfix.findings import Finding, Problem, Related, place_in_cell
from gradfix.preview import Replacement, replacements
from gradfix.reports import Report, count, from_root
from gradfix.reports.json import dumps

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}
LONGEST = 1024  # what code scanning takes of a description


# Code scanning refuses a file with more.
MOST_RESULTS = 25_000
MOST_BYTES = 10_000_000  # compressed
RANK = {"error": 0, "warning": 1, "info": 2}


def write(report: Report, out) -> None:
    codes = sorted({f.code for f in report.findings})
    # Most severe first, so that what there is no room for is the least severe.
    order = sorted(range(len(report.findings)), key=lambda i: RANK[report.findings[i].severity.value])
    marks = report.fingerprints()
    kept = sorted(order[:MOST_RESULTS])
    results = {i: result(report, f := report.findings[i], codes.index(f.code), marks[i]) for i in kept}
    text = dumps(document(report, codes, list(results.values())))
    if len(text) > MOST_BYTES:
        empty = dumps(document(report, codes, []))
        fit = how_many_fit([empty, *(dumps(results[i]) for i in order if i in results)], MOST_BYTES) - 1
        if fit < len(results):
            kept = sorted(order[: max(fit, 0)])
            text = dumps(document(report, codes, [results[i] for i in kept]))
    out.write(text + "\n")
    if len(kept) < len(report.findings):
        report.notes.append(left_out(report.findings, set(kept)))


def document(report: Report, codes: Sequence[str], results: Sequence[dict]) -> dict:
    run = {
        "tool": {
            "driver": {
                "name": "GradFix",
                "semanticVersion": __version__,
                "rules": [describe_rule(report, code) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not report.problems,
                "toolExecutionNotifications": [notification(report, p) for p in report.problems],
            }
        ],
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def how_many_fit(texts: Sequence[str], room: int) -> int:
    """How many of the texts, from the first on, take at most `room` bytes compressed.

    What is counted is more than it comes to in the end: the compressor is made to give out all that it holds, and it
    works at its lowest level.
    """
    squeeze, size, waiting, fit = zlib.compressobj(1), 0, 0, 0
    for number, text in enumerate(texts, 1):
        size += len(squeeze.compress(text.encode()))
        waiting += len(text)
        if waiting > room // 100 or number == len(texts):
            size += len(squeeze.flush(zlib.Z_SYNC_FLUSH))
            waiting = 0
            if size > room:
                return fit
            fit = number
    return fit


def left_out(findings: Sequence[Finding], kept: set[int]) -> str:
    missing = Counter(f.severity.value for i, f in enumerate(findings) if i not in kept)
    what = ", ".join(f"{missing[name]} {name}" if name == "info" else count(missing[name], name) for name in RANK if missing[name])
    return (
        f"warning: the report has the {len(kept)} most severe of {len(findings)} findings, for code scanning takes no more "
        f"in one file; left out: {what} (choose paths or rules to see them)"
    )


def describe_rule(report: Report, code: str) -> dict:
    rule = report.rule(code)
    name = rule.name if rule is not None else next(f.name for f in report.findings if f.code == code)
    summary = (rule.summary if rule is not None else "") or name
    text = (rule.doc if rule is not None else "") or summary
    entry = {
        "id": code,
        "name": name,
        "shortDescription": {"text": shorten(summary)},
        "fullDescription": {"text": shorten(summary)},
        "help": {"text": text, "markdown": text},
        "properties": {"tags": ["pytorch", "autograd"], "precision": "high"},
    }
    if rule is not None and rule.url:
        entry["helpUri"] = rule.url
    return entry


def shorten(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def result(report: Report, f: Finding, rule: int, fingerprint: str) -> dict:
    entry = {
        "ruleId": f.code,
        "ruleIndex": rule,
        "level": LEVELS[f.severity.value],
        "message": {"text": f.message + place_in_cell(f)},
        "locations": [{"physicalLocation": physical(report, f)}],
        "partialFingerprints": {"gradfix/v1": fingerprint},
    }
    if f.related:
        entry["relatedLocations"] = [
            {"id": number, "physicalLocation": physical(report, r), "message": {"text": r.message + place_in_cell(r)}}
            for number, r in enumerate(f.related, 1)
        ]
    if f.fix is not None and (changed := report.fixes.file_changes(f.fix)):
        entry["fixes"] = [
            {
                "description": {"text": f.fix.message},
                "artifactChanges": [
                    {
                        "artifactLocation": artifact(path),
                        "replacements": [replacement(r) for r in replacements(report.fixes.file_lines(path), changed[path])],
                    }
                    for path in sorted(changed)
                ],
                "properties": {"applicability": f.fix.applicability.value},
            }
        ]
    return entry


def physical(report: Report, at: Finding | Related) -> dict:
    place = report.place(at)
    return {"artifactLocation": artifact(at.path), "region": region(place.row, place.column, place.end_row, place.end_column)}


def region(row: int, column: int, end_row: int, end_column: int) -> dict:
    return {"startLine": row, "startColumn": column, "endLine": end_row, "endColumn": end_column}


def replacement(r: Replacement) -> dict:
    """Places are those of the file as it is; a region without length inserts, nothing inserted deletes."""
    entry: dict = {"deletedRegion": region(r.row, r.column, r.end_row, r.end_column)}
    if r.content:
        entry["insertedContent"] = {"text": r.content}
    return entry


def artifact(path: str) -> dict:
    name = from_root(path)
    return {"uri": Path(name).as_uri() if os.path.isabs(name) else quote(os.fsencode(name))}


def notification(report: Report, p: Problem) -> dict:
    where: dict = {"artifactLocation": artifact(p.path)}
    row, col = report.spot(p)
    if row:
        where["region"] = {"startLine": row, **({"startColumn": col} if col else {})}
    return {"level": "error", "message": {"text": p.reason}, "locations": [{"physicalLocation": where}]}

"""Workflow commands, which GitHub Actions turns into annotations."""

from __future__ import annotations

from gradfix.findings import place_in_cell
from gradfix.reports import Report, from_root

COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def write(report: Report, out) -> None:
    for p in report.problems:
        row, col = report.spot(p)
        where = {"file": from_root(p.path), "line": row, "col": col, "title": "GradFix"}
        out.write(command("error", where, p.reason))
    for f in report.findings:
        place = report.place(f)
        where = {"file": from_root(f.path), "line": place.row, "endLine": place.end_row}
        if place.row == place.end_row:  # columns of several lines are refused
            where |= {"col": place.column, "endColumn": place.end_column}
        where["title"] = f"GradFix {f.code} ({f.name})"
        out.write(command(COMMANDS[f.severity.value], where, f.message + place_in_cell(f)))


def command(name: str, properties: dict, message: str) -> str:
    given = ",".join(f"{key}={escape_property(str(value))}" for key, value in properties.items() if value is not None)
    return f"::{name} {given}::{escape(message)}\n"


def escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    return escape(text).replace(":", "%3A").replace(",", "%2C")

"""The diagnostics of the `rdjson` format, one a line."""

from gradfix.reports import Report
from gradfix.reports.json import dumps
from gradfix.reports.rdjson import diagnostics


def write(report: Report, out) -> None:
    for entry in diagnostics(report):
        out.write(dumps(entry) + "\n")

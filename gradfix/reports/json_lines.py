"""The entries of the `json` format, one a line."""

from gradfix.reports import Report
from gradfix.reports.json import dumps, entries


def write(report: Report, out) -> None:
    for entry in entries(report):
        out.write(dumps(entry) + "\n")

"""Each finding with its source line, the places that explain it, and its fix as a small diff."""

from __future__ import annotations

import unicodedata
from itertools import groupby

from gradfix.findings import Finding, Span, place
from gradfix.reports import Report, summary
from gradfix.reports.style import SEVERITY, styler

TAB = "    "
WIDEST = 160
NEWLINE = "\r\n"


def write(report: Report, out) -> None:
    style = styler(report.color)
    for finding in report.findings:
        out.write("\n".join(block(report, finding, style)) + "\n\n")
    if not report.quiet and (text := summary(report)):
        out.write(text + "\n")


def block(report: Report, finding: Finding, style) -> list[str]:
    color = SEVERITY[finding.severity.value]
    head = style(f"{finding.severity.value}[{finding.code}]", color, "bold")
    out = [f"{head} {style(finding.name, 'bold')}: {finding.message}"]
    home = (finding.path, finding.cell)
    related = sorted(finding.related, key=lambda r: (r.path != finding.path, r.path, r.cell or 0, r.span))
    width = len(str(max([finding.span.end_row, *(r.span.row for r in related)])))
    margin = " " * width
    bar = style("|", "blue")
    arrow = style("-->", "blue")

    places = [(home, finding.span, "", "^", color)]
    places += [((r.path, r.cell), r.span, r.message, "-", "blue") for r in related]
    out.append(f"{margin} {arrow} {place(*home, finding.span.row, finding.span.col + 1)}")
    # The places of the finding's own file (or cell) in one excerpt, in order; others below.
    own = sorted((p for p in places if p[0] == home), key=lambda p: (p[1].row, p[1].col))
    out.append(f"{margin} {bar}")
    last = None
    for where, span, message, sign, tint in own:
        if last is not None and span.row > last + 1:
            out.append(style("...", "blue"))
        out += excerpt(report, where, span, message, sign, tint, width, style, show=span.row != last)
        last = span.row if sign == "-" else max(span.row, min(span.end_row, span.row))
    current = None
    for where, span, message, sign, tint in places:
        if where == home:
            continue
        if where != current:
            out.append(f"{margin} {bar}")
            out.append(f"{margin} {style(':::', 'blue')} {place(*where, span.row, span.col + 1)}")
            out.append(f"{margin} {bar}")
            current = where
        out += excerpt(report, where, span, message, sign, tint, width, style)
    out.append(f"{margin} {bar}")
    if finding.fix is not None:
        kind = finding.fix.applicability.value
        note = f"{margin} {style('=', 'blue')} {style(kind + ' fix', 'green' if kind == 'safe' else 'yellow', 'bold')}"
        out.append(f"{note}: {finding.fix.message}")
        for path, changed in sorted(report.fixes.changed(finding.fix).items()):
            for cell, group in groupby(changed, key=lambda change: change.cell):
                if (path, cell) != home:
                    out.append(f"{margin} {style(':::', 'blue')} {place(path, cell, None)}")
                out += small_diff(report.fixes.lines(path, cell), list(group), width, style)
    return out


def expand(line: str, upto: int | None = None) -> str:
    """The line (or its first `upto` characters) as shown: tabs as blanks, control characters as dots."""
    part = line if upto is None else line[:upto]
    return "".join(TAB if c == "\t" else "\u00b7" if unicodedata.category(c) in ("Cc", "Cs") else c for c in part)


def columns(text: str) -> int:
    """How wide the text stands on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def excerpt(report, where, span: Span, message, sign, tint, width, style, show=True) -> list[str]:
    lines = report.fixes.lines(*where)
    if not 1 <= span.row <= len(lines):
        return [f"{' ' * width} {style('|', 'blue')} {message}"] if message else []
    raw = lines[span.row - 1].rstrip("\r\n")
    end = span.end_col if span.end_row == span.row else len(raw.rstrip())
    start = min(span.col, len(raw))
    indent = len(raw) - len(raw.lstrip())
    if start < indent and sign == "-":
        start = indent
    line = expand(raw)
    lead = columns(expand(raw, start))
    carets = max(1, columns(expand(raw[start:end])))
    if columns(line) > WIDEST:
        cut = max(0, min(lead - 40, columns(line) - WIDEST))
        line = ("…" if cut else "") + line[cut : cut + WIDEST] + "…"
        lead = lead - cut + bool(cut)
        carets = min(carets, max(1, WIDEST - lead))
    out = []
    if show:
        out.append(f"{style(str(span.row).rjust(width) + ' |', 'blue')} {line}".rstrip())
    underline = style(" ".join([sign * carets, message]).rstrip(), tint, "bold")
    out.append(f"{' ' * width} {style('|', 'blue')} {' ' * lead}{underline}")
    return out


def small_diff(old: list[str], changed, width: int, style, context: int = 1) -> list[str]:
    out = []
    shown = None  # the first old line that is not shown yet
    for position, change in enumerate(changed):
        shift = change.new_start - change.start
        start = max(0, change.start - context)
        if shown is not None:
            if start > shown:
                out.append(style("...", "blue"))
            start = max(start, shown)
        for index in range(start, change.start):
            out.append(_diff_line(index + 1 + shift, " ", old[index], width, style))
        for index in range(change.start, change.end):
            out.append(_diff_line(index + 1, "-", old[index], width, style))
        for row, line in enumerate(change.new, change.new_start + 1):
            out.append(_diff_line(row, "+", line, width, style))
        stop = change.end + context
        if position + 1 < len(changed):
            stop = min(stop, changed[position + 1].start)
        after = change.new_start + len(change.new) - change.end
        for index in range(change.end, min(stop, len(old))):
            out.append(_diff_line(index + 1 + after, " ", old[index], width, style))
        shown = stop
    return out


def _diff_line(row, sign, line, width, style) -> str:
    tint = {"-": ("red",), "+": ("green",), " ": ()}[sign]
    return f"{style(str(row).rjust(width), 'blue')} {style(f'{sign} {expand(line.rstrip(NEWLINE))}'.rstrip(), *tint)}".rstrip()

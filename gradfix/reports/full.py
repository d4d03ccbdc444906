"""Each finding with its source line, the places that explain it, and its fix as a small diff."""

from __future__ import annotations

import difflib
import io
import unicodedata

from gradfix.findings import Finding, Span
from gradfix.reports import Report, summary
from gradfix.reports.style import SEVERITY, styler

TAB = "    "
WIDEST = 160


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
    related = sorted(finding.related, key=lambda r: (r.path != finding.path, r.path, r.span))
    width = len(str(max([finding.span.end_row, *(r.span.row for r in related)])))
    margin = " " * width
    bar = style("|", "blue")
    arrow = style("-->", "blue")

    places = [(finding.path, finding.span, "", "^", color)]
    places += [(r.path, r.span, r.message, "-", "blue") for r in related]
    out.append(f"{margin} {arrow} {finding.path}:{finding.span.row}:{finding.span.col + 1}")
    # The places of the finding's own file in one excerpt, in order; other files below.
    own = sorted((p for p in places if p[0] == finding.path), key=lambda p: (p[1].row, p[1].col))
    out.append(f"{margin} {bar}")
    last = None
    for path, span, message, sign, tint in own:
        if last is not None and span.row > last + 1:
            out.append(style("...", "blue"))
        out += excerpt(report, path, span, message, sign, tint, width, style, show=span.row != last)
        last = span.row if sign == "-" else max(span.row, min(span.end_row, span.row))
    current = None
    for path, span, message, sign, tint in places:
        if path == finding.path:
            continue
        if path != current:
            out.append(f"{margin} {bar}")
            out.append(f"{margin} {style(':::', 'blue')} {path}:{span.row}:{span.col + 1}")
            out.append(f"{margin} {bar}")
            current = path
        out += excerpt(report, path, span, message, sign, tint, width, style)
    out.append(f"{margin} {bar}")
    if finding.fix is not None:
        kind = finding.fix.applicability.value
        note = f"{margin} {style('=', 'blue')} {style(kind + ' fix', 'green' if kind == 'safe' else 'yellow', 'bold')}"
        out.append(f"{note}: {finding.fix.message}")
        for path, (before, after) in sorted(report.fixes.changed(finding.fix).items()):
            if path != finding.path:
                out.append(f"{margin} {style(':::', 'blue')} {path}")
            out += small_diff(before, after, width, style)
    return out


def expand(line: str, upto: int | None = None) -> str:
    """The line (or its first `upto` characters) as shown: tabs as blanks, control characters as dots."""
    part = line if upto is None else line[:upto]
    return "".join(TAB if c == "\t" else "\u00b7" if unicodedata.category(c) in ("Cc", "Cs") else c for c in part)


def columns(text: str) -> int:
    """How wide the text stands on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def excerpt(report, path, span: Span, message, sign, tint, width, style, show=True) -> list[str]:
    lines = report.lines(path)
    if not 1 <= span.row <= len(lines):
        return [f"{' ' * width} {style('|', 'blue')} {message}"] if message else []
    raw = lines[span.row - 1]
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


def small_diff(before: str, after: str, width: int, style, context: int = 1) -> list[str]:
    old = [line.rstrip("\r\n") for line in io.StringIO(before, newline="").readlines()]
    new = [line.rstrip("\r\n") for line in io.StringIO(after, newline="").readlines()]
    out = []
    groups = difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context)
    for index, group in enumerate(groups):
        if index:
            out.append(style("...", "blue"))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                for row, line in enumerate(old[i1:i2], j1 + 1):
                    out.append(_diff_line(row, " ", line, width, style))
                continue
            for row, line in enumerate(old[i1:i2], i1 + 1):
                out.append(_diff_line(row, "-", line, width, style))
            for row, line in enumerate(new[j1:j2], j1 + 1):
                out.append(_diff_line(row, "+", line, width, style))
    return out


def _diff_line(row, sign, line, width, style) -> str:
    tint = {"-": ("red",), "+": ("green",), " ": ()}[sign]
    return f"{style(str(row).rjust(width), 'blue')} {style(f'{sign} {expand(line)}'.rstrip(), *tint)}".rstrip()

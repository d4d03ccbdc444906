"""JUnit XML: a suite for each file, a failing case for each finding; `info` passes, and says so in its output."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gradfix.findings import Finding, Problem, Severity, place
from gradfix.reports import Report

NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(report: Report, out) -> None:
    suites: dict[str, list[Finding | Problem]] = {}
    for p in report.problems:
        suites.setdefault(p.path, []).append(p)
    for f in report.findings:
        suites.setdefault(f.path, []).append(f)
    top = Element("testsuites", name="gradfix")
    for path, entries in sorted(suites.items()):
        suite = SubElement(top, "testsuite", name=clean(path), package="gradfix")
        for name, entry in zip(names(entries), entries):
            case = SubElement(suite, "testcase", name=clean(name), classname=clean(path))
            add_outcome(case, entry)
    if not suites:
        SubElement(SubElement(top, "testsuite", name="gradfix"), "testcase", name="no findings", classname="gradfix")
    for element in (top, *top.findall("testsuite")):
        for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
            element.set(attribute, str(sum(1 for _ in element.iter(tag))))
    indent(top)
    out.write('<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(top, encoding="unicode") + "\n")


def names(entries: list[Finding | Problem]) -> list[str]:
    """What a case is called: unique in its suite, for readers keep one of two equal ones."""
    seen: Counter = Counter()
    out = []
    for e in entries:
        name = f"{e.code} {e.name} at {place('', e.cell, e.span.row, e.span.col + 1)}" if isinstance(e, Finding) else "readable"
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def add_outcome(case: Element, entry: Finding | Problem) -> None:
    if isinstance(entry, Problem):
        where = place(entry.path, entry.cell, entry.row)
        SubElement(case, "error", message=clean(entry.reason), type="error").text = clean(f"{where}: {entry.reason}")
        return
    text = [f"{place(e.path, e.cell, e.span.row, e.span.col + 1)}: {e.message}" for e in (entry, *entry.related)]
    if entry.fix is not None:
        text.append(f"{entry.fix.applicability.value} fix: {entry.fix.message}")
    if entry.severity is Severity.INFO:
        SubElement(case, "system-out").text = clean("\n".join(text))
    else:
        failure = SubElement(case, "failure", message=clean(entry.message), type=entry.severity.value)
        failure.text = clean("\n".join(text))


def clean(text: str) -> str:
    """Without what XML 1.0 can't hold."""
    return NO_XML.sub(lambda m: m[0].encode("unicode_escape", "backslashreplace").decode("ascii"), text)

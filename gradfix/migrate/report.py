"""What a run did, for people (HTML, Markdown, text) and for programs (JSON)."""

from __future__ import annotations

import html
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from gradfix.config import ConfigError
from gradfix.findings import place
from gradfix.migrate.progress import details, fixes, outcome
from gradfix.migrate.records import Record
from gradfix.reports import count
from gradfix.source import atomic_write

VERDICTS = ("preserved", "gained", "repaired", "changed", "failed", "inconclusive", "not verified")
SHOWN_LINES = 4000  # of one diff in the HTML; the branch, the patch and the JSON hold all of it
SHOWN_ROWS = 500
MARKDOWN_LIMIT = 60_000  # characters: a pull request takes about 65,000


def check_target(path: str) -> None:
    if not path.endswith((".html", ".htm")):
        raise ConfigError(f"--report {path}: wants a name that ends in .html (the JSON and the Markdown go beside it)")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ConfigError(f"--report {path}: there is no folder {folder}")


def write(path: str, records: Sequence[Record], started: str) -> list[str]:
    stem = path.rpartition(".")[0]
    made = []
    for name, text in (
        (path, as_html(records, started)),
        (f"{stem}.json", as_json(records, started)),
        (f"{stem}.md", as_markdown(records)),
    ):
        try:
            atomic_write(name, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise ConfigError(f"{name}: {(error.strerror or str(error)).lower()}") from None
        made.append(name)
    return made


# ------------------------------------------------------------------------- counts


@dataclass
class Rule:
    code: str
    name: str
    found: int = 0
    fixed: int = 0
    left: int = 0

    @property
    def shown(self) -> int:  # a fix may lay bare findings that the first look did not see
        return self.fixed + self.left


@dataclass
class Totals:
    repositories: int
    changed: int
    failed: int
    found: int
    fixed: int
    left: int
    files: int
    changed_files: int
    problems: int
    rules: list[Rule] = field(default_factory=list)
    verdicts: dict[str, int] = field(default_factory=dict)

    @property
    def shown(self) -> int:
        return self.fixed + self.left


def totals(records: Sequence[Record]) -> Totals:
    rules: dict[str, Rule] = {}
    names = rule_names()

    def rule(code: str) -> Rule:
        return rules.setdefault(code, Rule(code, names.get(code, code)))

    verdicts: Counter = Counter()
    for record in records:
        for code, number in record.found.items():
            rule(code).found += number
        for commit in record.commits:
            rule(commit.code).fixed += commit.fixes
            verdicts[commit.verdict or "not verified"] += 1
        for commit in record.dropped:
            verdicts[commit.verdict or "not verified"] += 1
        for row in record.left:
            rule(row.code).left += 1
    return Totals(
        repositories=len(records),
        changed=sum(r.changed for r in records),
        failed=sum(r.state == "failed" for r in records),
        found=sum(sum(r.found.values()) for r in records),
        fixed=sum(r.fixed for r in records),
        left=sum(len(r.left) for r in records),
        files=sum(r.files for r in records),
        changed_files=sum(len(r.changed_files) for r in records),
        problems=sum(len(r.problems) for r in records),
        rules=sorted(rules.values(), key=lambda r: (-r.shown, r.code)),
        verdicts={v: verdicts[v] for v in VERDICTS if verdicts[v]},
    )


def is_dry(records: Sequence[Record]) -> bool:
    return all(r.mode == "dry-run" for r in records)


def rule_names() -> dict[str, str]:
    from gradfix import codemod

    return {r.code: r.name for r in codemod.load()}


def repositories(number: int) -> str:
    return f"{number} {'repository' if number == 1 else 'repositories'}"


# --------------------------------------------------------------------------- text


def as_text(records: Sequence[Record], quiet: bool) -> str:
    """A line for each repository that changed or has findings, and a line for all."""
    t = totals(records)
    dry = is_dry(records)
    lines = []
    if not quiet:
        rows = [r for r in records if r.commits or r.left]
        wide = max((len(r.name) for r in rows), default=0)
        lines += [printable(f"{r.name.ljust(wide)}  {outcome(r)}") for r in rows]
        if rows:
            lines.append("")
    parts = [f"{t.changed} {'would change' if dry else 'changed'}", f"{t.repositories - t.changed - t.failed} unchanged"]
    if t.failed:
        parts.append(f"{t.failed} failed")
    lines.append(f"{repositories(t.repositories)}: {', '.join(parts)}.")
    done = f"{t.fixed} fixable" if dry else f"{t.fixed} fixed"
    lines.append(f"{count(t.shown, 'finding')}: {done}, {t.left} left. {unread(t.problems)}".rstrip())
    if dry and t.changed and not quiet:
        lines.append("Nothing was written; --write makes branches, --patches DIR writes patches, --report FILE.html shows the diffs.")
    return "\n".join(lines) + "\n"


def unread(number: int) -> str:
    return f"{count(number, 'file')} could not be done." if number else ""


def printable(text: str) -> str:
    """Nothing in a name or a message may steer a terminal or a page."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


# --------------------------------------------------------------------------- JSON


def as_json(records: Sequence[Record], started: str) -> str:
    from gradfix import __version__

    t = totals(records)
    summary = {f: getattr(t, f) for f in ("repositories", "changed", "failed", "found", "fixed", "left", "files", "changed_files", "problems", "verdicts")}
    rules = [{"code": r.code, "name": r.name, "found": r.found, "fixed": r.fixed, "left": r.left} for r in t.rules]
    repos = [msgspec.to_builtins(r) for r in records]
    for repo in repos:
        for commit in repo["commits"] + repo["dropped"]:
            commit.pop("patch")
    whole = {"gradfix": __version__, "started": started, "summary": summary, "rules": rules, "repositories": repos}
    return json.dumps(whole, indent=1, ensure_ascii=True) + "\n"


# ----------------------------------------------------------------------- Markdown


def as_markdown(records: Sequence[Record]) -> str:
    """A summary that fits into a pull request."""
    t = totals(records)
    dry = is_dry(records)
    out = ["# GradFix migration", ""]
    word = "would change" if dry else "changed"
    out.append(
        f"{repositories(t.repositories)}, {count(t.files, 'file')}: **{fixes(t.fixed)}** in {count(t.changed_files, 'file')} "
        f"of {repositories(t.changed)} {word}, {count(t.left, 'finding')} left"
        + (f", {t.failed} failed" if t.failed else "") + ". " + unread(t.problems)
    )  # fmt: skip
    if t.rules:
        out += ["", "| rule | | fixed | left |", "| --- | --- | ---: | ---: |"]
        out += [f"| {r.code} | {r.name} | {r.fixed} | {r.left} |" for r in t.rules]
    if t.verdicts and set(t.verdicts) != {"not verified"}:
        out += ["", "Verdicts: " + ", ".join(f"{n} {v}" for v, n in t.verdicts.items()) + "."]
    if len(records) > 1:
        out += ["", "| repository | fixes | left | problems | result |", "| --- | ---: | ---: | ---: | --- |"]
        rows = [f"| {escaped(r.name)} | {r.fixed} | {len(r.left)} | {len(r.problems)} | {escaped(result(r))} |" for r in records]
        out += fitting(rows, len(rows), MARKDOWN_LIMIT // 2, "| … {} more, in the report | | | | |")
    told = [r for r in records if has_details(r)]
    sections = ("\n".join(["", summary_line(r), "", *markdown_details(r), "", "</details>"]) for r in told)
    room = MARKDOWN_LIMIT - sum(len(line) + 1 for line in out)
    out += fitting(sections, len(told), room, "\n… {} more repositories in the report")
    return "\n".join(out).rstrip() + "\n"


def summary_line(r: Record) -> str:
    """HTML, in which Markdown's escapes mean nothing."""
    name = html.escape(printable(r.name)).replace("@", "@\u200b")
    return f"<details><summary><b>{name}</b>: {status(r)}</summary>"


def markdown_details(r: Record) -> list[str]:
    lines = []
    if r.error:
        lines.append(f"- failed: {escaped(r.error)}")
    for c in r.commits:
        verdict = f", {c.verdict}" if c.verdict else ""
        lines.append(f"- {c.rule} ({c.code}): {fixes(c.fixes)} in {count(len(c.files), 'file')}{verdict}")
    for c in r.dropped:
        lines.append(f"- left out: {c.rule} ({c.code}), {c.verdict}")
    for v in r.verifications:
        lines.append(f"- {v.verdict}: `{printable(v.command).replace('`', chr(39))}`: {escaped(v.reason)}")
    lines += [f"- {escaped(note)}" for note in r.notes]
    problems = (f"- {escaped(place(p.path, p.cell, p.row))}: {escaped(p.message)}" for p in r.problems)
    lines += fitting(problems, len(r.problems), 3000, "- … {} more problems")
    return lines or ["Nothing changed."]


def fitting(rows: Iterable[str], number: int, room: int, rest: str) -> list[str]:
    """As many of the `number` rows as there is room for, and a line that counts the others."""
    kept: list[str] = []
    for row in rows:
        room -= len(row) + 1
        if room < len(rest):
            return [*kept, rest.format(number - len(kept))]
        kept.append(row)
    return kept


def result(r: Record) -> str:
    if r.state == "failed":
        return f"failed: {r.error}"
    verdict = f", {r.verdict}" if r.verdict else ""
    if not r.commits:
        return f"unchanged{verdict}"
    where = r.branch or ("patches" if r.mode == "patches" else "would change")
    return f"{where} ({count(len(r.commits), 'commit')}){verdict}"


def escaped(text: str) -> str:
    """Plain text in Markdown: no markup, no HTML, no mention, on one line."""
    text = printable(" ".join(text.split()))
    return re.sub(r"([\\`*_\[\]<>|~#&])", r"\\\1", text).replace("@", "@\u200b")


# --------------------------------------------------------------------------- HTML


@dataclass
class Line:
    """A line of a diff: what kind, its numbers, and its text in three parts, of which the middle one changed."""

    kind: str  # " ", "+", "-", "@", "note"
    old: int | None
    new: int | None
    head: str
    middle: str = ""
    tail: str = ""


@dataclass
class FileDiff:
    path: str
    lines: list[Line]
    cut: int = 0  # lines that are not shown

    @property
    def added(self) -> int:
        return sum(line.kind == "+" for line in self.lines)

    @property
    def removed(self) -> int:
        return sum(line.kind == "-" for line in self.lines)


def parse_diff(diff: str, most: int = SHOWN_LINES) -> list[FileDiff]:
    out: list[FileDiff] = []
    old = new = old_left = new_left = 0
    for text in diff.split("\n")[:-1]:
        text = text.removesuffix("\r")
        if old_left <= 0 and new_left <= 0:
            if text.startswith("diff --git "):
                out.append(FileDiff(text.rpartition(" b/")[2], []))
            elif text.startswith("+++ ") and out:
                out[-1].path = unquoted(text[4:]).removeprefix("b/")
            elif match := re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)", text):
                old, new = int(match[1]), int(match[3])
                old_left, new_left = int(match[2] or 1), int(match[4] or 1)
                out[-1].lines.append(Line("@", None, None, match[5].strip()))
            elif text.startswith("\\ ") and out:
                out[-1].lines.append(Line("note", None, None, text[2:]))
            elif text.startswith("Binary files") and out:
                out[-1].lines.append(Line("note", None, None, text))
            continue
        kind, rest = text[:1], visible(text[1:])
        if kind == "\\":
            out[-1].lines.append(Line("note", None, None, text[2:]))
        elif kind == "+":
            out[-1].lines.append(Line("+", None, new, rest))
            new, new_left = new + 1, new_left - 1
        elif kind == "-":
            out[-1].lines.append(Line("-", old, None, rest))
            old, old_left = old + 1, old_left - 1
        else:
            out[-1].lines.append(Line(" ", old, new, rest))
            old, new, old_left, new_left = old + 1, new + 1, old_left - 1, new_left - 1
    for file in out:
        mark_changes(file.lines)
        if len(file.lines) > most:
            file.cut = len(file.lines) - most
            del file.lines[most:]
        most = max(0, most - len(file.lines))
    return out


def unquoted(name: str) -> str:
    """git puts names with odd characters into quotes, as C would; it ends others in a tab where they hold a space."""
    name = name.removesuffix("\t")
    if not name.startswith('"'):
        return name
    escapes = {"n": b"\n", "t": b"\t", '"': b'"', "\\": b"\\", "a": b"\a", "b": b"\b", "f": b"\f", "r": b"\r", "v": b"\v"}
    raw = name[1:-1].encode("utf-8", "surrogateescape")
    decoded = re.sub(
        rb"\\([0-7]{3}|.)", lambda m: bytes([int(m[1], 8)]) if len(m[1]) == 3 else escapes.get(m[1].decode("latin-1"), m[1]), raw
    )
    return decoded.decode("utf-8", "surrogateescape")


def visible(text: str) -> str:
    """Characters that a page would hide, or that turn the order of others around, as escapes."""
    return "".join(c if c == "\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else f"\\u{ord(c):04x}" for c in text)


def mark_changes(lines: list[Line]) -> None:
    """In as many removed lines as added ones after them: what differs between the two of a pair."""
    i = 0
    while i < len(lines):
        start = i
        while i < len(lines) and lines[i].kind == "-":
            i += 1
        middle = i
        while i < len(lines) and lines[i].kind == "+":
            i += 1
        if 0 < middle - start == i - middle:
            for a, b in zip(lines[start:middle], lines[middle:i]):
                mark_pair(a, b)
        i = max(i, start + 1)


def mark_pair(a: Line, b: Line) -> None:
    one, two = a.head, b.head
    head = len(os.path.commonprefix([one, two]))
    tail = len(os.path.commonprefix([one[head:][::-1], two[head:][::-1]]))
    if head + tail < 0.3 * max(len(one), len(two)):  # little in common: marks would only confuse
        return
    for line, text in ((a, one), (b, two)):
        end = len(text) - tail
        line.head, line.middle, line.tail = text[:head], text[head:end], text[end:]


def as_html(records: Sequence[Record], started: str) -> str:
    import jinja2

    from gradfix import __version__

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gradfix.migrate", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(visible=visible, place=place, details=details, fixes=fixes, count=count, repositories=repositories)
    records = [msgspec.structs.replace(r, name=visible(r.name), branch=r.branch and visible(r.branch)) for r in records]
    t = totals(records)
    ranked = sorted((r for r in records if r.fixed or r.left), key=lambda r: (-(r.fixed + len(r.left)), r.name))
    return environment.get_template("report.html").render(
        version=__version__,
        started=started,
        dry=is_dry(records),
        totals=t,
        records=records,
        ranked=ranked[:25],
        more_ranked=max(0, len(ranked) - 25),
        parse_diff=parse_diff,
        status=status,
        has_details=has_details,
        shown_rows=SHOWN_ROWS,
        most_by_rule=max((r.shown for r in t.rules), default=1),
        most_by_repo=max((r.fixed + len(r.left) for r in ranked), default=1),
    )


def status(r: Record) -> str:
    if r.state == "failed":
        return "failed"
    if r.commits:
        return "would change" if r.mode == "dry-run" else "changed"
    return "unchanged"


def has_details(r: Record) -> bool:
    return bool(r.commits or r.dropped or r.left or r.problems or r.error or r.notes or r.verifications)

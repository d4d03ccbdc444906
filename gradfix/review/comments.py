"""Findings -> review comments: where each stands in the diff, and what a click on it would put there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gradfix import engine, fingerprints
from gradfix.findings import Finding
from gradfix.preview import Change, Fixes, file_lines
from gradfix.preview import changes as line_changes
from gradfix.review.changes import Changes, FileChange
from gradfix.review.select import git_rows, keys, places
from gradfix.source import SourceError, data_of


@dataclass
class Item:
    """A finding, how it is recognised in a later run, and its fix as a diff where there is no suggestion for it."""

    finding: Finding
    fingerprint: str
    row: int  # of the file
    diff: str = ""
    note: str = ""  # why the fix is no suggestion


@dataclass
class Comment:
    file: FileChange
    start: int  # rows of the new file, both inclusive, inside one hunk
    end: int
    items: list[Item]
    suggestion: list[str] | None = None  # the lines that replace rows `start` to `end`, without their ends

    def here(self, item: Item, local: str) -> bool:
        """Whether the comment stands where the finding does."""
        return item.finding.path == local and self.start <= item.row <= self.end


@dataclass
class Review:
    changes: Changes
    comments: list[Comment] = field(default_factory=list)
    elsewhere: list[Item] = field(default_factory=list)  # no line of theirs is in the diff

    @property
    def items(self) -> list[Item]:
        return [item for comment in self.comments for item in comment.items] + self.elsewhere


def build(
    all_findings: list[Finding],
    result,
    changes: Changes,
    settings,
    runner,
    unproven: Mapping[Finding, str] = MappingProxyType({}),
) -> Review:
    """`result` has the findings under review, with their fixes as the settings want them (`engine.with_settings`).

    `unproven` are those whose fixes are no suggestions, and why.
    """
    fixes = Fixes(result.project)
    fixes.prepare(result.findings, runner)
    items = _items(result.findings, fixes, changes.root)
    waiting: dict[str, list[Item]] = {}
    for item in items:
        fix = item.finding.fix
        if fix is None or not fix.edits:
            continue
        item.diff = _diff(item.finding, fixes, result.project)
        if not settings.unsafe_fixes and not engine.is_safe(item.finding, settings):
            item.note = "The fix is unsafe: check that this is what you mean."
        elif _spreads(item.finding):
            item.note = "The fix touches more than one file, so it can't be a suggestion."
        elif item.finding in unproven:
            item.note = f"The fix did not prove right ({unproven[item.finding]}), so it is no suggestion."
        elif fix.edits[0].path in changes.by_path and item.diff:
            waiting.setdefault(fix.edits[0].path, []).append(item)
        else:
            item.note = "The fix lies outside of the diff, so it can't be a suggestion."
    review = Review(changes)
    if waiting:
        offered = [f for f in result.findings if f not in unproven]
        after = _apply(all_findings, offered, result, changes.root, settings, runner)
        for path, group in waiting.items():
            review.comments += _suggestions(path, group, fixes, after.get(path), changes.by_path[path])
    placed = {id(item) for comment in review.comments for item in comment.items}
    for item in items:
        if id(item) not in placed:
            comment = _plain(item, fixes, changes)
            if comment is None:
                review.elsewhere.append(item)
            else:
                review.comments.append(comment)
    order = {id(item): i for i, item in enumerate(items)}
    for comment in review.comments:
        comment.items.sort(key=lambda item: order[id(item)])
    review.comments.sort(key=lambda c: (c.file.path, c.start, order[id(c.items[0])]))
    return review


def _spreads(finding: Finding) -> bool:
    return len({edit.path for edit in finding.fix.edits}) > 1


def _apply(all_findings: list[Finding], offered: list[Finding], result, root: str, settings, runner) -> dict[str, bytes]:
    """What `apply` makes of the files, if all it sees are the findings whose fixes are offered and what comes of those."""
    reviewed = {_place(f) for f in offered}
    others = [f for f in all_findings if _place(f) not in reviewed]
    known = Counter(keys(others, result.project, root))
    rounds = 0

    def look(files, settings, runner, overlay):
        nonlocal rounds
        rounds += 1
        now = engine.check(files, settings, runner, overlay)
        if rounds == 1:
            seen = [f for f in now.findings if _place(f) in reviewed]
        else:  # the places have moved
            left, seen = known.copy(), []
            for finding, key in zip(now.findings, keys(now.findings, now.project, root)):
                if left[key] > 0:
                    left[key] -= 1
                else:
                    seen.append(finding)
        return replace(now, findings=[f for f in seen if f.fix is None or not _spreads(f)])

    return engine.apply(result.files, settings, runner, result.project.overlay, look).after


def _place(finding: Finding) -> tuple:
    return finding.code, finding.path, finding.cell, finding.span


def _items(findings: list[Finding], fixes: Fixes, root: str) -> list[Item]:
    marks = fingerprints.fingerprints(keys(findings, fixes.project, root))
    return [Item(f, mark[:16], fixes.in_file(f.path, f.cell, f.span).row) for f, mark in zip(findings, marks)]


# ------------------------------------------------------------------------ suggestions


@dataclass
class _Group:
    """Fixes that can't be told apart by lines, with the changes that they make together."""

    items: list[Item]
    changes: list[Change]
    start: int = 0  # lines from 0, both inclusive
    end: int = 0

    def measure(self, size: int) -> None:
        self.start = min(_first(c, size) for c in self.changes)
        self.end = max(_last(c, size) for c in self.changes)


def _first(change: Change, size: int) -> int:
    """An insertion replaces the line that it precedes, at the end of the file the one that it follows."""
    return min(change.start, max(size - 1, 0)) if change.start == change.end else change.start


def _last(change: Change, size: int) -> int:
    return _first(change, size) if change.start == change.end else change.end - 1


def _suggestions(path: str, items: list[Item], fixes: Fixes, after: bytes | None, file: FileChange) -> list[Comment]:
    """The outcome of all fixes of a file, cut at lines that stay."""
    lines = fixes.file_lines(path)
    if after is None or any(line.endswith("\r") for line in lines):
        for item in items:
            item.note = "The fix can't be a suggestion; `gradfix apply` makes it, or says why not."
        return []
    joined = file_lines(path, after)
    comments = []
    groups = _groups(items, line_changes(lines, joined), fixes, path, len(lines))
    for group in groups:
        if file.hunk(group.start + 1, group.end + 1) is None:
            _step_back(group, groups)
        rows = group.start + 1, group.end + 1
        new = _replaced(lines, group)
        text = [line.rstrip("\r\n") for line in new]
        if file.hunk(*rows) is None:
            note = "The fix reaches beyond one part of the diff, so it can't be a suggestion."
        elif applied(lines, *rows, text)[group.start : group.start + len(new)] != new:
            note = "The fix changes line ends, so it can't be a suggestion."
        else:
            comments.append(Comment(file, *rows, group.items, text))
            continue
        for item in group.items:
            item.note = note
    return comments


def _groups(items: list[Item], joint, fixes: Fixes, path: str, size: int) -> list[_Group]:
    groups = [_Group([], [change]) for change in joint]
    for group in groups:
        group.measure(size)
    for item in items:
        own = fixes.file_changes(item.finding.fix).get(path, ())
        mine = [g for g in groups if any(_meet(a, b) for a in own for b in g.changes)]
        if not mine:
            item.note = "Other fixes keep this one from being a suggestion; apply them, then run gradfix again."
            continue
        groups = [g for g in groups if not any(g is m for m in mine)]
        groups.append(_Group([*(i for g in mine for i in g.items), item], [c for g in mine for c in g.changes]))
        groups[-1].measure(size)
    return [group for group in _merged(groups, size) if group.items]


def _merged(groups: list[_Group], size: int) -> list[_Group]:
    """Groups that share a line become one."""
    merged: list[_Group] = []
    for group in sorted(groups, key=lambda g: (g.start, g.end)):
        if merged and group.start <= merged[-1].end:
            merged[-1] = _Group(merged[-1].items + group.items, merged[-1].changes + group.changes)
            merged[-1].measure(size)
        else:
            merged.append(group)
    return merged


def _step_back(group: _Group, groups: list[_Group]) -> None:
    """Let an insertion replace the line that it follows, where no other suggestion has that line."""
    before = group.changes[0].start - 1
    inserts = len(group.changes) == 1 and group.changes[0].start == group.changes[0].end
    if inserts and before >= 0 and not any(g.start <= before <= g.end for g in groups):
        group.start = group.end = before


def _meet(a: Change, b: Change) -> bool:
    return a.start <= b.end and b.start <= a.end


def _replaced(lines: list[str], group: _Group) -> list[str]:
    out, at = [], group.start
    for change in sorted(group.changes, key=lambda c: c.start):
        out += lines[at : change.start]
        out += change.new
        at = max(at, change.end)
    return out + lines[at : group.end + 1]


def applied(lines: list[str], start: int, end: int, suggestion: list[str]) -> list[str]:
    """What a platform makes of a suggestion: whole lines; line ends are the file's, also where the last one has none."""
    old = lines[start - 1 : end]
    ending = "\r\n" if (old[0] if old[0].endswith("\n") else lines[0]).endswith("\r\n") else "\n"
    new = [line + ending for line in suggestion]
    if new and not old[-1].endswith("\n"):
        new[-1] = suggestion[-1]
    return lines[: start - 1] + new + lines[end:]


def _diff(finding: Finding, fixes: Fixes, project) -> str:
    out = []
    for path, changed in sorted(fixes.changed(finding.fix).items()):
        try:
            old, new = data_of(project, path), fixes.updated(path, changed)
        except SourceError:
            return ""
        out.append(engine.unified_diff(path, old, new))
    return "".join(out)


# ---------------------------------------------------------------------------- places


def _plain(item: Item, fixes: Fixes, changes: Changes) -> Comment | None:
    """A comment where the finding stands, else where a cause that it names does: on a changed line if there is one."""
    found = None
    for index, at in enumerate(places(item.finding)):
        file = changes.by_path.get(at.path)
        if file is None:
            continue
        rows = git_rows(fixes, at)
        inside = [row for row in rows if file.hunk(row, row) is not None]
        if not inside:
            continue
        start = inside[0]
        if start != rows[0]:  # a long statement of which a later row changed
            start = next((row for row in inside if file.touches([row], context=False)), start)
        comment = Comment(file, start, min(rows[-1], file.hunk(start, start).end), [item])
        if index == 0 or file.touches(rows, context=False):
            return comment
        found = found or comment
    return found

"""Which findings a change introduces."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import replace

from gradfix import fingerprints
from gradfix.engine import Result, check
from gradfix.findings import Finding, Problem, Related, Span
from gradfix.preview import Fixes
from gradfix.review.changes import SUFFIXES, Changes, misfit, old_contents, raw_lines
from gradfix.source import SourceError, read_bytes


def fitting(changes: Changes) -> tuple[Changes, list[Problem]]:
    """The change without the files on which it does not fit, and a problem for each of those."""
    files, problems = [], []
    for file in changes.files:
        if file.deleted or not file.hunks or not file.path.endswith(SUFFIXES):
            files.append(file)
            continue
        path = changes.local(file.path)
        if os.path.islink(path):  # the diff has its target for a text
            continue
        try:
            lines = raw_lines(read_bytes(path))
        except SourceError as error:
            problems.append(Problem(path, f"is in the diff, but can't be read: {error.reason}"))
            continue
        row = next((row for hunk in file.hunks if (row := misfit(hunk, lines)) is not None), None)
        if row is None:
            files.append(file)
        else:
            problems.append(Problem(path, "the diff does not fit this file: it was made from other contents", row))
    return Changes(changes.root, files, changes.head, changes.base, changes.start), problems


def introduced(result: Result, changes: Changes, mode: str, settings, runner) -> list[Finding]:
    """Those findings of `result` that `mode` keeps.

    `added` and `context` keep what lies on changed lines, or names a cause there, and also what the old contents did
    not have: a line that was removed lies nowhere.
    """
    if mode == "none":
        return result.findings
    if mode == "file":
        return [f for f in result.findings if any(at.path in changes.by_path for at in places(f))]
    kept, rest, fixes = [], [], Fixes(result.project)
    for finding in result.findings:
        near = any(
            at.path in changes.by_path and changes.by_path[at.path].touches(git_rows(fixes, at), mode == "context")
            for at in places(finding)
        )
        (kept if near else rest).append(finding)
    if rest:
        kept += _new(rest, result, changes, settings, runner)
    chosen = set(map(id, kept))
    return [f for f in result.findings if id(f) in chosen]


def places(finding: Finding) -> list[Finding | Related]:
    return [finding, *finding.related]


def rows_of(span: Span) -> range:
    last = span.end_row - 1 if span.end_col == 0 and span.end_row > span.row else span.end_row
    return range(span.row, last + 1)


def git_rows(fixes: Fixes, at: Finding | Related) -> range:
    """The rows of a place as git counts them: those of the file, and not at a lone carriage return, as Python does."""
    rows, lines = rows_of(fixes.in_file(at.path, at.cell, at.span)), fixes.file_lines(at.path)
    if not any(line.endswith("\r") for line in lines):
        return rows
    before = sum(line.endswith("\n") for line in lines[: rows.start - 1])
    inside = sum(line.endswith("\n") for line in lines[rows.start - 1 : rows.stop - 2])
    return range(before + 1, before + inside + 2)


def _new(findings: list[Finding], result: Result, changes: Changes, settings, runner) -> list[Finding]:
    """Those of `findings` that the old contents do not have."""
    try:
        old = old_contents(changes)
    except SourceError:
        return []
    files = [path for path in result.files if old.get(path, b"") is not None]
    # Markdown is read where the settings want that, and then some of it is among the files of today.
    endings = (".py", ".pyw", ".ipynb", *([".md"] if any(path.endswith(".md") for path in result.files) else []))
    files += [p for p, data in old.items() if data is not None and p not in files and p.endswith(endings)]
    overlay = {**result.project.overlay, **{p: data for p, data in old.items() if data is not None}}
    before = check(sorted(files), settings, runner, overlay)
    renamed = {f.path: f.old_path for f in changes.files if f.old_path and not f.deleted}
    lost = {p.path for p in before.problems}
    old_fixes, new_fixes = Fixes(before.project), Fixes(result.project)

    def old_place(finding: Finding, key: fingerprints.Key) -> tuple | None:
        """What an unchanged line is known by, whatever became of the code around it."""
        row, file = git_rows(new_fixes, finding)[0], changes.by_path.get(finding.path)
        row = row if file is None else file.old_row(row)
        return row and (key.path, key.code, key.source, row)

    known: dict[tuple, list[fingerprints.Key]] = defaultdict(list)
    for finding, key in zip(before.findings, keys(before.findings, before.project, changes.root)):
        known[key.path, key.code, key.source, git_rows(old_fixes, finding)[0]].append(key)
    left = []
    for finding, key in zip(findings, keys(findings, result.project, changes.root)):
        key = replace(key, path=renamed.get(key.path, key.path))
        if same := known.get(old_place(finding, key)):
            same.pop()
        else:
            left.append((finding, key))
    moved = Counter(key for same in known.values() for key in same)
    out = []
    for finding, key in left:
        if moved[key] > 0:
            moved[key] -= 1
        elif changes.local(key.path) not in lost:
            out.append(finding)
    return out


def keys(findings: list[Finding], project, root: str) -> list[fingerprints.Key]:
    """What findings are known by, with paths from the root of the repository."""

    return fingerprints.keys(findings, Fixes(project).lines, root)

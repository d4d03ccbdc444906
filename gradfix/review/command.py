"""What `gradfix review` does; `gradfix.cli` reads its options and prints what it returns."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass, field, replace

from gradfix import engine
from gradfix.findings import Finding, Problem, place
from gradfix.review import ReviewError, changes, comments, payload, select, stored
from gradfix.review.posting import NotPosted
from gradfix.source import SourceError, read_bytes


@dataclass
class Options:
    base: str | None = None
    diff: str | None = None
    filter: str = "added"
    format: str = "text"
    post: str | None = None
    stored: str | None = None  # a payload made elsewhere
    number: int | None = None  # of the pull or merge request
    outdated: str = "leave"
    verify: bool = False
    verify_command: str | None = None
    timeout: float = 60.0
    untracked: bool = True


@dataclass
class Outcome:
    result: engine.Result  # its findings are those that the change introduces
    all_findings: list[Finding]
    problems: list[Problem]
    unproven: dict[Finding, str] = field(default_factory=dict)  # findings whose fixes did not prove right, and why
    text: str | None = None  # for stdout; None: the findings themselves, in the format `report_as`
    report_as: str = "full"
    notes: tuple[str, ...] = ()  # for stderr


def target(options: Options):
    """The pull or merge request to post to."""
    module = importlib.import_module(f"gradfix.review.{options.post}")
    kind = module.Pull if options.post == "github" else module.MergeRequest
    return kind(options.number)


def given_bytes(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return read_bytes(name)
    except SourceError as error:
        raise ReviewError(f"{name}: {error.reason}") from None


def check_options(options: Options) -> None:
    if options.base and options.diff:
        raise ReviewError("--base and --diff exclude each other")
    if options.stored and not options.post:
        raise ReviewError("--from needs --post")
    if options.stored and (options.base or options.diff):
        raise ReviewError("--from goes with neither --base nor --diff: what it holds is chosen already")
    if options.stored and options.verify:
        raise ReviewError("--from posts what is there: --verify belongs to the job that makes it")
    if not (options.base or options.diff or options.post):
        raise ReviewError("a review needs a change: --base REV (such as origin/main) or --diff FILE")


def post_stored(options: Options) -> str:
    """Post what another job made.  What happened, in a line."""
    document = stored.read(given_bytes(options.stored), options.post, options.stored)
    try:
        request = target(options)
        if (heads := stored.head_of(document)) and heads != {request.head}:
            return f"Posted nothing: the review is of commit {', '.join(sorted(heads))[:40]}, the head is {request.head}."
        document = stored.fresh(document, options.post, request.posted(), request.changes("."))
        if document is None:
            return "Posted nothing: all of it is there already."
        request.post(document)
    except NotPosted as error:
        raise ReviewError(str(error)) from None
    return f"Posted {_size(document)}."


def review(session, options: Options, runner) -> Outcome:
    request, unreachable = None, ""
    if options.post:
        try:
            request = target(options)
        except NotPosted as error:
            unreachable = str(error)
    if options.base:
        # The platform does not have them, and could show nothing there.
        known_to_all = options.post or options.format in ("github", "gitlab")
        untracked = set(session.files) if options.untracked and not known_to_all else set()
        change = changes.from_git(options.base, untracked)
    elif options.diff:
        change = changes.from_diff(given_bytes(options.diff))
    elif request is None:
        raise ReviewError(f"the change can't be had: {unreachable}; --base REV or --diff FILE gives it")
    else:
        try:
            change = request.changes(changes.likely_root())
        except NotPosted as error:
            raise ReviewError(f"the change can't be had: {error}; --base REV or --diff FILE gives it") from None
    change, problems = select.fitting(change)

    result = engine.check(session.files, session.settings, runner, session.overlay)
    notes = [
        f"warning: {f.path}: the diff does not have its lines; findings on them may be missing (--base REV knows them)"
        for f in change.files
        if f.hidden and f.old_path is not None and not f.deleted and f.path.endswith(changes.SUFFIXES)
    ]
    if options.filter != "none":
        result, note = _without_old_problems(result, change)
        notes += note
    found = select.introduced(result, change, options.filter, session.settings, runner)
    found = [engine.with_settings(f, session.settings) for f in found]
    outcome = Outcome(replace(result, findings=found), result.findings, problems, notes=tuple(notes))

    if options.verify:
        outcome.unproven = _unproven(session, options, outcome, runner)
    if options.post:
        if request is not None:
            try:
                outcome.notes += tuple(_post(request, options, outcome, session.settings, change, runner))
                outcome.text = ""
                return outcome
            except NotPosted as error:
                unreachable = str(error)
        outcome.notes += (f"warning: nothing was posted: {unreachable}",)
        outcome.report_as = "github" if options.post == "github" else "full"
        return outcome
    if options.format in ("github", "gitlab"):
        made = comments.build(outcome.all_findings, outcome.result, change, session.settings, runner, outcome.unproven)
        outcome.text = json.dumps(getattr(payload, options.format)(made), indent=2, ensure_ascii=True) + "\n"
    elif options.format == "rdjson":  # who reads it offers each fix by a click
        outcome.report_as = "rdjson"
        clickable = [
            f if _may_click(f, session.settings) and f not in outcome.unproven else replace(f, fix=None) for f in found
        ]
        outcome.result = replace(outcome.result, findings=clickable)
    return outcome


def _without_old_problems(result: engine.Result, change: changes.Changes):
    """A file that can't be read is no failure of a change that does not touch it.  The result, and what to say."""
    old = [p for p in result.problems if p.path not in change.by_path]
    if not old:
        return result, []
    first = min(old, key=lambda p: p.sort_key)
    more = f", and {payload.count(len(old) - 1, 'more file')}" if len(old) > 1 else ""
    note = f"warning: not read, and not part of the change: {place(first.path, first.cell, first.row)}: {first.reason}{more}"
    return replace(result, problems=[p for p in result.problems if p.path in change.by_path]), [note]


def _unproven(session, options: Options, outcome: Outcome, runner) -> dict[Finding, str]:
    """Runs the code under review."""
    from gradfix.harness import command
    from gradfix.harness.run import HarnessError

    found, project = outcome.result.findings, outcome.result.project
    offered = [f for f in found if f.fix is not None and _may_click(f, session.settings)]
    if not offered:
        return {}
    try:
        why = command.unproven(session, runner, offered, project, options.verify_command, options.timeout)
    except HarnessError as error:
        outcome.problems.append(Problem(".", str(error)))
        return dict.fromkeys(offered, "it could not be tried")
    for f in why if not session.quiet else ():
        command.say(f"not proven: {place(f.path, f.cell, f.span.row)} {f.code} {f.name}: {why[f]}")
    return why


def _may_click(finding: Finding, settings) -> bool:
    return settings.unsafe_fixes or engine.is_safe(finding, settings)


def _post(request, options: Options, outcome: Outcome, settings, change: changes.Changes, runner):
    """Post what is not there yet.  Lines that say what happened."""
    # Comments can stand only where the platform's own diff has lines, and where those are the lines that were analysed.
    theirs, strange = select.fitting(request.changes(change.root))
    made = comments.build(outcome.all_findings, outcome.result, theirs, settings, runner, outcome.unproven)
    current = {item.fingerprint for item in made.items}
    known = request.posted()
    made.comments = [c for c in made.comments if any(i.fingerprint not in known for i in c.items)]
    made.elsewhere = [i for i in made.elsewhere if i.fingerprint not in known]
    for problem in strange:
        yield f"warning: {problem.path}: the checked-out file is not the one under review; check out its head commit"
    if made.comments or made.elsewhere:
        document = getattr(payload, options.post)(made, known=len(current & known))
        request.post(document)
        yield f"Posted {_size(document)}."
    else:
        yield "Posted nothing: " + ("all of it is there already." if current else "no findings.")
    if options.outdated == "remove" and (gone := request.tidy(current)):
        yield f"Removed {payload.count(gone, 'outdated comment')}."


def _size(document: dict) -> str:
    return payload.count(len(document.get("comments", document.get("discussions", ()))), "comment")

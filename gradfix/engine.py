"""From files to findings, and from findings to new bytes.  Knows no rule by name and no LibCST."""

from __future__ import annotations

import ast
import difflib
import hashlib
import io
import os
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gradfix import config, discovery, suppressions
from gradfix.codemod import UNUSED_SUPPRESSION, Codemod
from gradfix.findings import Applicability, Edit, Finding, Problem, Span
from gradfix.preview import by_path
from gradfix.runner import Runner, describe
from gradfix.source import Source, SourceError, data_of, decode, in_cells

MAX_ROUNDS = 30


@dataclass
class Settings:
    """What of the command line and the config reaches the engine."""

    rules: Sequence[Codemod]
    active: set[str]
    target_torch: tuple[int, int] = (2, 13)
    unfixable: set[str] = field(default_factory=set)
    safe_anyway: set[str] = field(default_factory=set)  # rules whose unsafe fixes count as safe
    unsafe_fixes: bool = False
    options: dict[str, dict[str, str]] = field(default_factory=dict)  # of rules, by name
    ignored_in: Callable[[str], set[str]] = lambda path: set()  # per-file-ignores
    only: frozenset[str] | None = None  # the files that fixes may change (None: all)
    wanted: Callable[[Finding, object], bool] | None = None  # which fixes are made (of a finding in a project); all


def settings_from(
    conf: config.Config,
    base: str,
    rules: Sequence[Codemod],
    *,
    select: Sequence[str] | None = None,
    extend_select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    unfixable: Sequence[str] = (),
    extend_safe_fixes: Sequence[str] = (),
    target_torch: str | None = None,
    unsafe_fixes: bool = False,
) -> Settings:
    """The config of the folder `base`, with what the command line puts on top."""
    torch = target_torch or conf.target_torch
    per_file = [
        (discovery.Patterns(base, [pattern]), config.codes(config.split(selectors), rules))
        for pattern, selectors in conf.per_file_ignores.items()
    ]

    def ignored_in(path: str) -> set[str]:
        absolute = os.path.abspath(path)
        return set().union(*(codes for patterns, codes in per_file if patterns.verdict(absolute)))

    return Settings(
        rules=rules,
        active=config.selected(rules, conf, select, extend_select, ignore),
        target_torch=config.parse_torch(torch) if torch else config.NEWEST_TORCH,
        unfixable=config.codes([*conf.unfixable, *unfixable], rules),
        safe_anyway=config.codes([*conf.extend_safe_fixes, *extend_safe_fixes], rules),
        unsafe_fixes=unsafe_fixes,
        options=config.rule_options(conf, rules),
        ignored_in=ignored_in,
    )


@dataclass
class Result:
    project: object
    findings: list[Finding]
    problems: list[Problem]
    files: list[str]
    skipped: set[str] = field(default_factory=set)


def make_project(files: Sequence[str], overlay: dict[str, bytes], settings: Settings):
    from gradfix.analysis import Project

    return Project(tuple(files), dict(overlay), settings.target_torch)


def check(files: Sequence[str], settings: Settings, runner: Runner, overlay: dict[str, bytes] | None = None) -> Result:
    from gradfix.analysis import Facts

    project = runner.project(files, overlay or {}, settings.target_torch)
    project.needs = frozenset().union(*(rule.needs for rule in settings.rules if rule.code in settings.active))
    parts = runner.observe(project, list(files))
    problems = [p for part in parts for p in part.problems]
    marked = {path for part in parts for path in part.marked}
    facts = Facts(project, [o for part in parts for o in part.observations], settings.options)
    for part in parts:
        for observed in part.observations:
            problems.extend(observed.problems)

    found: list[Finding] = []
    crashed = False
    for rule in settings.rules:
        if rule.code not in settings.active:
            continue
        path = files[0] if len(files) == 1 else "."
        mine: list[Finding] = []
        try:
            for finding in rule.run(facts):
                path = finding.path
                mine.append(finding)
        except Exception as error:
            crashed = True
            problems.append(Problem(path, f"rule {rule.name} ({rule.code}) crashed: {describe(error)}"))
        found.extend(mine)

    known = set(files)
    comments: dict[str, suppressions.Suppressions] = {}
    for path in marked | {f.path for f in found} | {p.path for p in problems if p.path in known}:
        try:
            comments[path] = suppressions.parse(path, decode(path, data_of(project, path)).text)
        except (SourceError, OSError):
            pass
    skipped = {path for path, c in comments.items() if c.skip}
    findings = set()
    for finding in found:
        if finding.path in known and not (finding.path in comments and comments[finding.path].suppresses(finding)):
            if finding.code not in settings.ignored_in(finding.path):
                findings.add(finding)
    if UNUSED_SUPPRESSION.code in settings.active and not crashed:
        broken = {p.path for p in problems}
        for path in sorted(marked - broken):
            if path in comments:
                active = settings.active - settings.ignored_in(path)
                if UNUSED_SUPPRESSION.code in active:
                    findings.update(comments[path].unused(settings.rules, active))
    problems = list(dict.fromkeys(p for p in problems if p.path not in skipped))
    problems.sort(key=lambda p: p.sort_key)
    return Result(project, sorted((_in_cell(f, project) for f in findings), key=_order), problems, list(files), skipped)


def _in_cell(finding: Finding, project) -> Finding:
    """The finding with the rows of its cell, where its file or a related one has cells."""
    cells = {p for p in (finding.path, *(r.path for r in finding.related)) if in_cells(p)}
    if not cells:
        return finding
    sources = {path: decode(path, data_of(project, path)) for path in cells}
    related = []
    for r in finding.related:
        if r.path in cells:
            cell, span = sources[r.path].locate(r.span)
            r = replace(r, cell=cell, span=span)
        related.append(r)
    finding = replace(finding, related=tuple(related))
    if finding.path not in cells:
        return finding
    cell, span = sources[finding.path].locate(finding.span)
    rows = finding.statement_rows
    if rows != (0, 0):
        _, whole = sources[finding.path].locate(Span(rows[0], 0, rows[1], 0))
        rows = (whole.row, whole.end_row)
    return replace(finding, cell=cell, span=span, statement_rows=rows)


def _order(finding: Finding):
    return (*finding.sort_key, finding.message)


# ---------------------------------------------------------------------------- fixes


def is_safe(finding: Finding, settings: Settings) -> bool:
    return finding.fix is not None and (
        finding.fix.applicability is Applicability.SAFE or finding.code in settings.safe_anyway
    )


def has_fix(finding: Finding, settings: Settings) -> bool:
    return finding.fix is not None and finding.code not in settings.unfixable


def with_settings(finding: Finding, settings: Settings) -> Finding:
    """The finding with its fix as the settings have it: none where unfixable, safe where declared so."""
    if finding.fix is None:
        return finding
    import dataclasses

    if finding.code in settings.unfixable:
        return dataclasses.replace(finding, fix=None)
    if finding.code in settings.safe_anyway and finding.fix.applicability is not Applicability.SAFE:
        return dataclasses.replace(finding, fix=dataclasses.replace(finding.fix, applicability=Applicability.SAFE))
    return finding


class Broken(Exception):
    """A file that a fix would break: it stays as it was."""

    def __init__(self, paths: Iterable[str], reason: str):
        super().__init__(reason)
        self.paths, self.reason = sorted(paths), reason


@dataclass
class Applied:
    before: dict[str, bytes]
    after: dict[str, bytes]  # only files that changed
    result: Result  # what `check` says of the outcome
    fixed: list[Finding]
    rounds: int = 0
    steps: list[tuple[object, list[Finding]]] = field(default_factory=list)  # per round: the project then, what was fixed


def apply(
    files: Sequence[str], settings: Settings, runner: Runner, overlay: dict[str, bytes] | None = None, look=check
) -> Applied:
    """Rounds of check and rewrite until nothing changes.  `look` may be a `check` that sees less."""
    given = dict(overlay or {})
    first = look(files, settings, runner, given)
    frozen: dict[str, str] = {}
    while True:
        try:
            applied = _rounds(files, settings, runner, given, first, frozen, look)
        except Broken as broken:
            new = [p for p in broken.paths if p not in frozen]
            if not new:
                raise
            frozen.update(dict.fromkeys(new, broken.reason))
            continue
        applied.result.problems.extend(Problem(path, reason) for path, reason in sorted(frozen.items()))
        return applied


def _rounds(files, settings, runner, given, first: Result, frozen: dict[str, str], look) -> Applied:
    overlay = dict(given)
    before: dict[str, bytes] = {}
    result, fixed = first, []
    refused: dict[tuple, Problem] = {}
    history: list[tuple[bytes, set[str]]] = [(_state({}), set())]
    steps: list[tuple[object, list[Finding]]] = []
    for number in range(MAX_ROUNDS + 1):
        changes, landed = _one_round(result, settings, set(frozen), refused)
        if not changes:
            break
        names = {f.name for f in landed}
        if number == MAX_ROUNDS:
            raise Broken(changes, f"left as it was: fixes still change it after {MAX_ROUNDS} rounds ({', '.join(sorted(names))})")
        for path in changes:
            before.setdefault(path, data_of(result.project, path))
        overlay.update(changes)
        fixed.extend(landed)
        steps.append((result.project, landed))
        state = _state({p: overlay[p] for p in before if overlay[p] != before[p]})
        seen = [i for i, (old, _) in enumerate(history) if old == state]
        if seen:
            names = names.union(*(n for _, n in history[seen[-1] + 1 :]))
            raise Broken(changes, f"left as it was: fixes undo each other ({', '.join(sorted(names))})")
        history.append((state, names))
        result = look(files, settings, runner, overlay)
        old_reasons = {(p.path, p.reason) for p in first.problems}
        for problem in result.problems:
            if problem.path in changes and (problem.path, problem.reason) not in old_reasons:
                raise Broken([problem.path], f"left as it was: after the fixes of {_names(landed, problem.path)}, {problem.reason}")
    result.problems.extend(refused.values())
    after = {path: overlay[path] for path in before if overlay[path] != before[path]}
    return Applied(before, after, result, fixed, number, steps)


def _names(findings: Iterable[Finding], path: str) -> str:
    return ", ".join(sorted({f.name for f in findings if any(e.path == path for e in f.fix.edits)}))


def _state(overlay: dict[str, bytes]) -> bytes:
    digest = hashlib.sha256()
    for path in sorted(overlay):
        digest.update(path.encode("utf-8", "surrogateescape") + b"\0" + hashlib.sha256(overlay[path]).digest())
    return digest.digest()


def _one_round(
    result: Result, settings: Settings, frozen: set[str], refused: dict[tuple, Problem]
) -> tuple[dict[str, bytes], list[Finding]]:
    """New contents of the files that fixes change, and the findings whose fixes are in them.

    A fix that can't be made even by itself goes into `refused`; the others go on.
    """
    writable = set(result.files) - frozen - result.skipped
    if settings.only is not None:
        writable &= settings.only
    todo: list[Finding] = []
    seen: set[tuple[Edit, ...]] = set()
    for finding in result.findings:
        if not has_fix(finding, settings) or not (settings.unsafe_fixes or is_safe(finding, settings)):
            continue
        if not finding.fix.edits or any(e.path not in writable for e in finding.fix.edits):
            continue
        if finding.fix.edits in seen:
            continue
        if settings.wanted is not None and not settings.wanted(finding, result.project):
            continue
        seen.add(finding.fix.edits)
        todo.append(finding)

    if not todo:
        return {}, []
    waiting: set[int] = set()  # fixes that can't go in this round
    changes: dict[str, bytes] = {}
    done: dict[str, list[int]] = {}  # file -> the fixes that its current new content holds
    while True:
        groups: dict[str, list[tuple[int, tuple[Edit, ...]]]] = {}
        for index, finding in enumerate(todo):
            if index not in waiting:
                for path, edits in by_path(finding.fix.edits).items():
                    groups.setdefault(path, []).append((index, edits))
        again = False
        for path, mine in groups.items():
            indexes = [i for i, _ in mine]
            if done.get(path) == indexes:
                continue
            source = decode(path, data_of(result.project, path))
            try:
                new, deferred = _rewritten(source, [edits for _, edits in mine])
            except Exception:
                bad = _culprits(source, mine)
                for index, error in bad.items():
                    finding = todo[index]
                    key = (finding.path, finding.code, path, str(error))
                    why = f"the fix of {finding.name} can't be made: {describe_rewrite(error)}"
                    refused.setdefault(key, Problem(finding.path, why, finding.span.row, finding.span.col + 1, finding.cell))
                waiting |= set(bad) or set(indexes[1:]) or set(indexes)  # each works alone: one now, the others later
                again = True
                break
            late = {indexes[d] for d in deferred}
            if late:
                waiting |= late
                if any(len(by_path(todo[i].fix.edits)) > 1 for i in late):
                    again = True
                    break
                indexes = [i for i in indexes if i not in late]
            changes[path], done[path] = new, indexes
        if not again:
            break
    alive = {path for path, mine in groups.items()}
    changes = {p: new for p, new in changes.items() if p in alive and new != data_of(result.project, p)}
    for path, new in changes.items():
        old = data_of(result.project, path)
        landed = [todo[i] for i in done[path]]
        if reason := what_is_wrong(path, old, new):
            raise Broken([path], f"left as it was: after the fixes of {_names(landed, path)}, {reason}")
    landed = [f for i, f in enumerate(todo) if i not in waiting and any(e.path in changes for e in f.fix.edits)]
    return changes, landed


def _rewritten(source: Source, groups: Sequence[Sequence[Edit]]) -> tuple[bytes, list[int]]:
    """The file with the edits made, and the groups that have to wait for another round."""
    from gradfix.rewriting import rewrite

    code, deferred = rewrite(source.code, groups)
    return source.updated(code), deferred


def _culprits(source: Source, groups) -> dict[int, Exception]:
    bad = {}
    for index, edits in groups:
        try:
            _rewritten(source, [edits])
        except Exception as error:
            bad[index] = error
    return bad


def describe_rewrite(error: BaseException) -> str:
    from gradfix.rewriting import RewriteError

    if not isinstance(error, RewriteError):
        return describe(error)
    return " ".join(str(error).split())[:300] or type(error).__name__


def what_is_wrong(path: str, old: bytes, new: bytes) -> str | None:
    """Why `new` must not replace `old`: it doesn't compile, or a comment is gone."""
    try:
        before, after = decode(path, old), decode(path, new)
        was, code = before.code, after.code
    except SourceError as error:
        return f"it could not be read: {error.reason}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if in_cells(path) else 0
            compile(code, path, "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        return f"it would not compile: {error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return f"it would not compile: {type(error).__name__}"
    if len(after.problems) > len(before.problems):
        return f"it would not compile: {after.problems[-1].reason}"
    if lost := _comments(was) - _comments(code):
        return f"a comment would be lost: {next(iter(lost))}"
    return None


def _comments(data: bytes) -> Counter:
    found: Counter = Counter()
    if b"#" not in data:
        return found
    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            if token.type == tokenize.COMMENT:
                found[token.string.strip()] += 1
    except (tokenize.TokenError, SyntaxError):
        pass
    return found


# ---------------------------------------------------------------------------- diffs


def unified_diff(path: str, old: bytes, new: bytes, context: int = 3, raw: bool = False) -> str:
    """A unified diff that `patch` and `git apply` take; newlines inside are those of the file.

    Of a notebook, a diff of each changed cell, for people (`raw`: of its JSON, for `patch`).
    """
    name = path.replace("\\", "/")
    if path.endswith(".ipynb") and not raw:
        try:
            before, after = decode(path, old), decode(path, new)
        except SourceError:
            return unified_diff(path, old, new, context, raw=True)
        return "".join(
            _diff(f"{name}:cell {a.number}", *_ended(a.text, b.text), context)
            for a, b in zip(before.cells, after.cells)
            if a.text != b.text
        )
    return _diff(name, _text(path, old, raw), _text(path, new, raw), context)


def _ended(*texts: str) -> list[str]:
    """With a newline at the end, where none has one: in cells that is no news."""
    return list(texts) if any(t.endswith("\n") for t in texts) else [t and t + "\n" for t in texts]


def _diff(name: str, before: str, after: str, context: int) -> str:
    out = []
    # Split at "\n" only, as patch does.
    for line in difflib.unified_diff(
        _newline_split(before), _newline_split(after), f"a/{name.lstrip('/')}", f"b/{name.lstrip('/')}", n=context
    ):
        out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(out)


def _newline_split(text: str) -> list[str]:
    parts = text.split("\n")
    return [p + "\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _text(path: str, data: bytes, raw: bool = False) -> str:
    try:
        if not raw and not in_cells(path):
            source = decode(path, data)
            return ("\ufeff" if source.encoding == "utf-8-sig" else "") + source.text
    except SourceError:
        pass
    return data.decode("utf-8", "surrogateescape")

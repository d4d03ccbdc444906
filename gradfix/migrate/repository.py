"""One repository from checkout to branch: runs in a worker process, which may be killed at any moment."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from gradfix import codemod, config, discovery, engine
from gradfix.findings import Finding, Problem
from gradfix.migrate import verification
from gradfix.migrate.git import GitError, Repository, clone, text
from gradfix.migrate.records import Commit, Job, Options, Record, Row, Verification, worst
from gradfix.preview import by_path
from gradfix.rewriting import RewriteError, rewrite
from gradfix.runner import Runner, describe
from gradfix.source import SourceError, atomic_write, data_of, decode, read_bytes

RESERVE = 0.1  # the part of the time limit that the verify command leaves for the rest


class Failed(Exception):
    """Why this repository can't be done."""


def migrate(job: Job) -> Record:
    """The record of `job`, always: what goes wrong is part of it."""
    start = time.monotonic()
    os.makedirs(job.scratch, exist_ok=True)
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="repo-", dir=os.path.realpath(job.scratch), ignore_cleanup_errors=True) as scratch:
        try:
            record = Migration(job, scratch, start).run()
        except (Failed, GitError, SourceError, config.ConfigError, codemod.RegistryError) as error:
            record = Record(name=job.name, source=job.source, state="failed", error=" ".join(str(error).split()))
        except MemoryError:
            record = failure(job, "it ran out of memory (--memory)")
        except Exception as error:
            if os.environ.get("GRADFIX_TRACEBACK"):
                raise
            record = failure(job, f"gradfix itself crashed: {describe(error)}")
        finally:
            os.chdir(here)
    record.mode = job.mode
    record.seconds = round(time.monotonic() - start, 3)
    return record


def failure(job: Job, reason: str) -> Record:
    return Record(name=job.name, source=job.source, state="failed", mode=job.mode, error=reason)


@dataclasses.dataclass
class Outcome:
    """What the rules did to one checkout."""

    first: engine.Result
    last: engine.Result
    commits: list[Commit]


class Migration:
    def __init__(self, job: Job, scratch: str, start: float):
        self.job, self.options, self.scratch = job, job.options, scratch
        self.deadline = start + self.options.timeout * (1 - RESERVE) if self.options.timeout else None
        self.tree = os.path.join(scratch, "tree")
        self.notes: list[str] = []
        self.location = None

    def run(self) -> Record:
        job = self.job
        self.open()
        if self.nothing_new():
            return Record(name=job.name, source=job.source, state="same", base=self.base)
        os.chdir(self.tree)
        self.settings, self.excludes = settings_of(self.options, self.tree)
        self.files, problems = discovery.discover(self.paths, self.excludes)
        # What a link names is done under its own name, or lies outside and is not ours.
        self.files = [f for f in self.files if not os.path.islink(f)]
        problems = [p for p in problems if not os.path.islink(p.path)]
        top = os.path.realpath(self.tree) + os.sep
        if strange := next((f for f in self.files if not os.path.realpath(f).startswith(top)), None):
            raise Failed(f"{strange} lies outside of the repository")  # a named folder that is a link
        if not self.files and not problems:
            self.notes.append("no Python files")
        outcome, dropped, verified = self.rewrite_and_verify()
        record = Record(
            name=job.name,
            source=job.source,
            state="done",
            base=self.base,
            tip=outcome.commits[-1].hash if outcome.commits else None,
            location=self.location,
            files=len(self.files),
            found=dict(sorted(Counter(f.code for f in outcome.first.findings).items())),
            commits=outcome.commits,
            dropped=dropped,
            left=[finding_row(f, self.settings) for f in outcome.last.findings],
            problems=problem_rows([*problems, *outcome.last.problems]),
            notes=self.notes,
            verifications=verified,
        )
        self.land(record)
        return record

    # ------------------------------------------------------------------ opening

    def open(self) -> None:
        """`self.repository`, `self.base`, and the files of that commit in `self.tree`."""
        job = self.job
        self.paths = list(self.options.paths) or ["."]
        if job.kind == "folder":
            if job.mode == "branch":
                raise Failed("is no git repository, so it can have no branch; --patches DIR writes patches")
            copy_sources(job.source, self.tree, self.options)
            self.repository, self.base = Repository.of_folder(self.tree, self.scratch)
            return
        if job.kind == "url":
            self.location = os.path.join(job.clones, clone_name(job.source))
            clone(job.source, self.location)
            self.repository = Repository.open(self.location, self.scratch)
        else:
            self.repository = Repository.open(job.source, self.scratch)
            self.note_uncommitted()
        self.base = self.repository.head()
        self.repository.checkout(self.base, self.tree)

    def note_uncommitted(self) -> None:
        try:
            state = self.repository.git("-C", self.job.source, "rev-parse", "--is-bare-repository")
            if text(state) == "true":
                return
            from gradfix.migrate.git import git

            if git("-C", self.job.source, "status", "--porcelain", "--untracked-files=no"):
                self.notes.append("has uncommitted changes; they are not part of this, which starts from the last commit")
        except GitError:
            pass

    def nothing_new(self) -> bool:
        known = self.job.known
        if not known or known["base"] != self.base:
            return False
        return not known["branch"] or self.repository.tip(known["branch"]) == known["tip"]

    # ----------------------------------------------------------------- rewriting

    def rewrite_and_verify(self) -> tuple[Outcome, list[Commit], list[Verification]]:
        """Apply the rules, and leave out those that the scripts or the command refuse."""
        outcome = self.rewrite(set())
        dropped: list[Commit] = []
        verified: list[Verification] = []
        if self.options.verify_scripts and outcome.commits:
            outcome = self.ask_scripts(outcome, dropped, verified)
        if self.options.verify_command and outcome.commits:
            outcome = self.ask_command(outcome, dropped, verified)
        return outcome, dropped, verified

    def ask_scripts(self, outcome: Outcome, dropped: list[Commit], verified: list[Verification]) -> Outcome:
        folder = os.path.join(self.scratch, "scripts")
        self.copy_for_trial(self.base, folder)
        left = None if self.deadline is None else self.deadline - time.monotonic()
        if self.options.verify_command and left is not None:
            left /= 2
        found, of_rule = verification.prove(self.options.verify_scripts, self.verify_options(), folder, left)
        verified.append(found)
        shutil.rmtree(folder, ignore_errors=True)
        refused = {code: verdict for code, verdict in of_rule.items() if verdict in ("failed", "changed")}
        for commit in outcome.commits:
            if commit.code in refused:
                commit.verdict = refused[commit.code]
                dropped.append(commit)
        if refused:
            outcome = self.rewrite(set(refused))
            kept = worst(v for code, v in of_rule.items() if code not in refused)
            found.verdict = kept or found.verdict
            found.reason += f"; left out for that: {', '.join(c.rule for c in dropped)}"
        for commit in outcome.commits:
            commit.verdict = of_rule.get(commit.code, "inconclusive")
        return outcome

    def verify_options(self) -> list[str]:
        """The rules and settings of this migration, for `gradfix verify`."""
        o = self.options
        given = {"--select": sorted(self.settings.active), "--unfixable": o.unfixable, "--extend-safe-fixes": o.extend_safe_fixes,
                 "--exclude": o.exclude, "--target-torch": [o.target_torch] if o.target_torch else []}  # fmt: skip
        flags = [name for name, on in (("--unsafe-fixes", o.unsafe_fixes), ("--isolated", o.isolated)) if on]
        return [part for name, values in given.items() for value in values for part in (name, value)] + flags

    def ask_command(self, outcome: Outcome, dropped: list[Commit], verified: list[Verification]) -> Outcome:
        trials = verification.Trials(self.options.verify_command, self.copy_for_trial, self.deadline)
        before, after = trials.run(self.base), None
        refused: list[Commit] = []
        known = {c.code: c.verdict for c in outcome.commits if c.verdict}
        while before.code is not None and outcome.commits:
            after = trials.run(outcome.commits[-1].hash)
            if verification.judge(before, after)[0] != "failed":
                break
            culprit = next((c for c in outcome.commits[:-1] if trials.fails(c.hash)), outcome.commits[-1])
            culprit.verdict = "failed"
            refused.append(culprit)
            outcome = self.rewrite({c.code for c in [*dropped, *refused]})
        verdict, reason = verification.judge(before, after or before)
        if refused and outcome.commits:
            reason += f"; left out, since the command failed with it: {', '.join(c.rule for c in refused)}"
        elif refused:
            reason = "the command failed with every rewrite, so none is kept"
        dropped += refused
        for commit in outcome.commits:
            commit.verdict = worst([known.get(commit.code, "inconclusive"), verdict])
        verified.append(Verification(command=trials.shown, verdict=verdict, reason=reason, before=before, after=after))
        return outcome

    def rewrite(self, without: set[str]) -> Outcome:
        """All rules to the end, as `gradfix apply` does it, and then taken apart into a commit per rule."""
        repository = self.repository
        settings = dataclasses.replace(self.settings, active=self.settings.active - without)
        repository.checkout(self.base, self.tree)
        looks: list[engine.Result] = []

        def look(*arguments) -> engine.Result:
            looks.append(engine.check(*arguments))
            return looks[-1]

        with Runner(self.job.processes) as runner:
            done = engine.apply(self.files, settings, runner, look=look)
            commits: list[Commit] = []
            # Findings that are repaired by the fix of another one, as all `async` of a file are.
            with_others = Counter(f.code for f in looks[0].findings)
            with_others.subtract(f.code for f in [*done.result.findings, *done.fixed])
            seconds, zone = (946684800, "+0000") if self.job.kind == "folder" else repository.date(self.base)
            identity = repository.identity()
            for rule, changes, fixed in list(by_rule(done, settings.rules)):  # it reads files that are written below
                for path, data in changes.items():
                    atomic_write(path, data)
                tree = repository.stage(self.tree, sorted(changes))
                parent = commits[-1].hash if commits else self.base
                subject = f"Apply {rule.name} ({rule.code})"
                number = len(fixed) + max(0, with_others.pop(rule.code, 0))
                message = f"{subject}\n\n{describe_commit(rule, number, len(changes))}\n"
                made = repository.commit(tree, parent, message, f"{seconds + len(commits)} {zone}", identity)
                commits.append(
                    Commit(
                        code=rule.code,
                        rule=rule.name,
                        subject=subject,
                        fixes=number,
                        files=sorted(changes),
                        diff=repository.diff(parent, made),
                        hash=made,
                    )
                )
        if any(read_bytes(path) != data for path, data in done.after.items()):
            raise RuntimeError("the rules one by one give another result than all at once")
        return Outcome(looks[0], done.result, commits)

    def copy_for_trial(self, commit: str, folder: str) -> None:
        """All files of the repository as of `commit`, for the verify command."""
        if self.job.kind == "folder":  # the commit holds the sources only; the command may want the data, too
            shutil.copytree(self.job.source, folder, symlinks=True, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True)
        self.repository.checkout(commit, folder)

    # ------------------------------------------------------------------- landing

    def land(self, record: Record) -> None:
        if not record.commits:
            return
        if self.job.mode == "branch":
            record.branch = self.repository.publish(self.job.branch, self.base, record.tip)
        elif self.job.mode == "patches":
            for number, commit in enumerate(record.commits, 1):
                commit.patch = self.repository.patch(commit.hash, number, len(record.commits))


def in_order(rules: Sequence) -> list:
    """First what lets a file parse again, then the other legacy forms, then the rest: each reads what the last wrote."""
    return sorted(rules, key=lambda r: (r.code != "GF906", not r.code.startswith("GF9"), r.code))


def by_rule(done: engine.Applied, rules: Sequence) -> Iterator[tuple[codemod.Codemod, dict[str, bytes], list[Finding]]]:
    """Each round of `apply`, one rule after the other: what it writes on top of those before it, and what it fixes.

    The fixes of a round are places in one text, so the text with those of the first rules alone is made from it too.
    """
    for project, landed in done.steps:
        now: dict[str, bytes] = {}
        late: set[str] = set()
        chosen: set[str] = set()
        for rule in in_order(rules):
            mine = [f for f in landed if f.code == rule.code]
            if not mine:
                continue
            chosen.add(rule.code)
            changes = {}
            for path in sorted({e.path for f in mine for e in f.fix.edits} | late):
                groups = [by_path(f.fix.edits).get(path) for f in landed if f.code in chosen]
                source = decode(path, data_of(project, path))
                try:
                    new = source.updated(rewrite(source.code, [g for g in groups if g])[0])
                except RewriteError:  # it takes the fixes of a later rule, too: they go together
                    late.add(path)
                    continue
                late.discard(path)
                if new != now.get(path, source.data):
                    changes[path] = now[path] = new
            if changes:
                yield rule, changes, mine


def describe_commit(rule: codemod.Codemod, fixes: int, files: int) -> str:
    from gradfix import __version__
    from gradfix.reports import count

    counts = f"{fixes} {'fix' if fixes == 1 else 'fixes'} in {count(files, 'file')}."
    return f"{counts} {rule.summary}\n\nMade by gradfix {__version__}; `gradfix rule {rule.code}` explains it."


def settings_of(options: Options, root: str) -> tuple[engine.Settings, list[discovery.Patterns]]:
    """The options on top of the repository's own configuration.  The legacy rules are on unless a selection is given."""
    rules = codemod.load()
    conf = config.Config()
    if not options.isolated:
        path = config.find_config(root)
        if path is not None and os.path.dirname(path) == root:
            conf = config.read_config(path)[0] or conf
    extend = list(options.extend_select)
    if options.select is None and conf.select is None:
        extend.append("GF9")
    settings = engine.settings_from(
        conf,
        root,
        rules,
        select=options.select,
        extend_select=extend,
        ignore=options.ignore,
        unfixable=options.unfixable,
        extend_safe_fixes=options.extend_safe_fixes,
        target_torch=options.target_torch,
        unsafe_fixes=bool(options.unsafe_fixes),
    )
    return settings, [discovery.Patterns(root, conf.exclude), discovery.Patterns(root, options.exclude)]


def copy_sources(folder: str, tree: str, options: Options) -> None:
    """What the analysis reads of a plain folder: a snapshot, so that nothing changes under it."""
    os.makedirs(tree)
    here = os.getcwd()
    try:
        os.chdir(folder)
        found, _ = discovery.discover(list(options.paths) or ["."])
    except OSError as error:
        raise Failed((error.strerror or str(error)).lower()) from None
    finally:
        os.chdir(here)
    settings = ["gradfix.toml", "pyproject.toml", ".gitignore"]
    for path in [*found, *(s for s in settings if os.path.isfile(os.path.join(folder, s)))]:
        if os.path.isabs(path):
            continue
        target = os.path.join(tree, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            shutil.copy(os.path.join(folder, path), target, follow_symlinks=False)
        except OSError as error:
            raise Failed(f"{path}: {(error.strerror or str(error)).lower()}") from None


def clone_name(url: str) -> str:
    """A folder name for a URL: readable, and one of its own."""
    stem = url.rstrip("/").rpartition("/")[2].removesuffix(".git") or "repository"
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)[:60]
    return f"{safe}-{hashlib.sha256(url.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}.git"


def finding_row(f: Finding, settings: engine.Settings) -> Row:
    f = engine.with_settings(f, settings)
    return Row(
        path=f.path,
        message=f.message,
        row=f.span.row,
        column=f.span.col + 1,
        cell=f.cell,
        code=f.code,
        rule=f.name,
        severity=f.severity.value,
        fix=f.fix.applicability.value if f.fix else None,
    )


def problem_rows(problems: Sequence[Problem]) -> list[Row]:
    unique = sorted(set(problems), key=lambda p: (p.path, p.cell or 0, p.row or 0, p.col or 0, p.reason))
    return [Row(path=p.path, message=p.reason, row=p.row, column=p.col, cell=p.cell) for p in unique]

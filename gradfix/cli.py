"""The command line: options in, exit code out."""

from __future__ import annotations

import enum
import os
import sys
from typing import Annotated, Optional

import typer
from typer.core import TyperCommand

from gradfix.config import ConfigError

app = typer.Typer(
    name="gradfix",
    help="Find and repair PyTorch autograd mistakes in source code.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(str, enum.Enum):
    full = "full"
    concise = "concise"
    json = "json"
    json_lines = "json-lines"
    sarif = "sarif"
    rdjson = "rdjson"
    rdjsonl = "rdjsonl"
    github = "github"
    gitlab = "gitlab"
    junit = "junit"


class UsageError(Exception):
    pass


def say(text: str) -> None:
    sys.stderr.write(printable(text, sys.stderr) + "\n")


def printable(text: str, stream) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


class Out:
    """A text stream that never fails on a character."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text: str):
        self.stream.write(printable(text, self.stream))


def wants_color(stream) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


Paths = Annotated[Optional[list[str]], typer.Argument(help="Files or folders (default: .); - reads stdin.", show_default=False)]
Select = Annotated[Optional[list[str]], typer.Option("--select", metavar="RULES", help="Rules to run: codes, prefixes, names, ALL.")]
Ignore = Annotated[Optional[list[str]], typer.Option("--ignore", metavar="RULES", help="Rules not to run.")]
ExtendSelect = Annotated[Optional[list[str]], typer.Option("--extend-select", metavar="RULES", help="Rules to run besides the selected ones.")]
Unfixable = Annotated[Optional[list[str]], typer.Option("--unfixable", metavar="RULES", help="Rules that only report.")]
ExtendSafe = Annotated[Optional[list[str]], typer.Option("--extend-safe-fixes", metavar="RULES", help="Rules whose unsafe fixes count as safe.")]
Exclude = Annotated[Optional[list[str]], typer.Option("--exclude", metavar="PATTERNS", help="Paths to leave out (gitignore patterns).")]
ForceExclude = Annotated[bool, typer.Option("--force-exclude", help="Leave out excluded paths even when named.")]
Markdown = Annotated[bool, typer.Option("--include-markdown", help="Read the fenced Python of .md files, too.")]
ConfigFile = Annotated[Optional[str], typer.Option("--config", metavar="FILE", help="The pyproject.toml or gradfix.toml to use.")]
Isolated = Annotated[bool, typer.Option("--isolated", help="Use no config file.")]
Torch = Annotated[Optional[str], typer.Option("--target-torch", metavar="VERSION", help="The torch version that the code runs on (default: newest).")]
OutputFormat = Annotated[Optional[Format], typer.Option("--output-format", help="How findings are printed (default: full).")]
OutputFile = Annotated[Optional[str], typer.Option("--output-file", "-o", metavar="FILE", help="Write the report there.")]
Statistics = Annotated[bool, typer.Option("--statistics", help="Only count findings per rule.")]
ExitZero = Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 even when something was found.")]
Jobs = Annotated[Optional[int], typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes (default: all cores).")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Use no cache.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print findings and nothing else.")]
StdinName = Annotated[Optional[str], typer.Option("--stdin-filename", metavar="FILE", help="The name of what stdin holds.")]


def _version(value: bool):
    if value:
        from gradfix import __version__

        print(f"gradfix {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version.")] = False,
):
    pass


class Session:
    """Everything that the options and the config decide, resolved."""

    def __init__(self, paths, o: dict):
        from gradfix import codemod, config, discovery
        from gradfix.engine import settings_from

        self.paths = list(paths or ["."])
        self.stdin = "-" in self.paths
        if self.stdin and len(self.paths) > 1:
            raise UsageError("- stands for stdin and goes with no other path")
        if o["stdin_filename"] is not None and not self.stdin:
            raise UsageError("--stdin-filename needs - as path")
        if o["isolated"] and o["config"]:
            raise UsageError("--isolated and --config exclude each other")
        rules = codemod.load()
        conf, base = config.Config(), os.getcwd()
        start = self.paths if not self.stdin else [o["stdin_filename"] or "-"]
        if not o["isolated"]:
            path = o["config"] or config.find_config(config.start_folder(start))
            if path is not None:
                found, folder = config.read_config(path)
                if found is not None:
                    conf, base = found, folder
                elif o["config"]:
                    raise ConfigError(f"{path}: has no [tool.gradfix]")
        split = config.split
        self.settings = settings_from(
            conf, base, rules,
            select=None if o["select"] is None else split(o["select"]),
            extend_select=split(o["extend_select"]),
            ignore=split(o["ignore"]),
            unfixable=split(o["unfixable"]),
            extend_safe_fixes=split(o["extend_safe_fixes"]),
            target_torch=o["target_torch"],
            unsafe_fixes=o.get("unsafe_fixes", False),
        )  # fmt: skip
        chosen = o["output_format"]
        self.format = chosen.value if chosen is not None else conf.output_format or "full"
        self.excludes = [discovery.Patterns(base, conf.exclude), discovery.Patterns(os.getcwd(), split(o["exclude"]))]
        self.force_exclude = o["force_exclude"]
        self.quiet = o["quiet"]
        self.jobs = o["jobs"]
        self.output_file = o["output_file"]
        self.statistics = o["statistics"]
        self.problems = []
        self.overlay: dict[str, bytes] = {}
        if self.stdin:
            name = discovery.shown(o["stdin_filename"]) if o["stdin_filename"] else "-"
            self.overlay[name] = sys.stdin.buffer.read()
            left_out = self.force_exclude and name != "-" and discovery.is_excluded(name, self.excludes)
            self.files = [] if left_out else [name]
        else:
            self.files, self.problems = discovery.discover(
                self.paths, self.excludes, self.force_exclude, o.get("include_markdown") or conf.include_markdown
            )
            if not self.files and not self.problems and not self.quiet:
                say("warning: no Python files or notebooks found under the given paths")

    def runner(self):
        from gradfix.runner import Runner

        return Runner(self.jobs, progress=not self.quiet)

    def report(self, result, runner, command: str, stream, text: str | None = None, **more) -> None:
        """Problems to stderr, findings to `stream` (or the output file) in the chosen format, or as the `text` given."""
        from gradfix import engine, preview, reports

        self.all_problems = problems = _say_problems({*self.problems, *result.problems})
        findings = [engine.with_settings(f, self.settings) for f in result.findings]
        fixes = preview.Fixes(result.project)
        if text is None and self.format not in ("concise", "github", "gitlab", "junit") and not self.statistics:
            fixes.prepare(findings, runner)
        opened = None
        if self.output_file is not None:
            try:
                opened = open(self.output_file, "w", encoding="utf-8", newline="")
            except OSError as error:
                raise UsageError(f"{self.output_file}: {(error.strerror or str(error)).lower()}") from None
        target = opened or stream
        try:
            report = reports.Report(
                findings=findings,
                problems=problems,
                fixes=fixes,
                color=opened is None and wants_color(target),
                quiet=self.quiet,
                unsafe_fixes=self.settings.unsafe_fixes,
                command=command,
                files=len(self.files),
                rules=self.settings.rules,
                **more,
            )
            if text is not None:
                Out(target).write(text)
            elif self.statistics:
                from gradfix.reports import statistics

                statistics.write(report, Out(target), self.format)
            else:
                reports.writer(self.format)(report, Out(target))
            target.flush()
        finally:
            if opened is not None:
                opened.close()
        for note in report.notes:
            say(note)


def one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def fails(findings) -> bool:
    return any(f.severity.value != "info" for f in findings)


def finish(code: int):
    raise typer.Exit(code)


@app.command()
def check(
    paths: Paths = None,
    select: Select = None,
    ignore: Ignore = None,
    extend_select: ExtendSelect = None,
    unfixable: Unfixable = None,
    extend_safe_fixes: ExtendSafe = None,
    exclude: Exclude = None,
    force_exclude: ForceExclude = False,
    include_markdown: Markdown = False,
    config: ConfigFile = None,
    isolated: Isolated = False,
    target_torch: Torch = None,
    output_format: OutputFormat = None,
    output_file: OutputFile = None,
    statistics: Statistics = False,
    exit_zero: ExitZero = False,
    jobs: Jobs = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
    stdin_filename: StdinName = None,
    baseline: Annotated[Optional[str], typer.Option("--baseline", metavar="FILE", help="Leave out the findings that FILE knows.")] = None,
    write_baseline: Annotated[Optional[str], typer.Option("--write-baseline", metavar="FILE", help="Write the findings to FILE, as known ones.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Check again whenever a file changes.")] = False,
    explain_analysis: Annotated[
        Optional[str], typer.Option("--explain-analysis", metavar="FILE:LINE", help="Print what the analysis believes there.")
    ] = None,
):
    """Report findings."""
    if baseline is not None and write_baseline is not None:
        raise UsageError("--baseline and --write-baseline exclude each other")
    options = locals()
    if watch:
        for name, given in (("-", paths and "-" in paths), ("--write-baseline", write_baseline), ("--explain-analysis", explain_analysis)):
            if given:
                raise UsageError(f"--watch and {name} exclude each other")
        finish(_watch(paths, options, lambda: _check(Session(paths, options), baseline, None, exit_zero)))
    session = Session(paths, options)
    if explain_analysis is not None:
        finish(_explain(session, explain_analysis, bool(paths)))
    finish(_check(session, baseline, write_baseline, exit_zero))


def _watch(paths, options: dict, check_once) -> int:
    try:
        from gradfix import watch
    except ModuleNotFoundError as error:
        raise UsageError(f"--watch needs {error.name}: pip install 'gradfix[watch]'") from None
    from gradfix import config, discovery

    given = paths or ["."]
    if missing := next((p for p in given if not os.path.exists(p)), None):
        raise UsageError(f"{missing}: no such file or directory")
    start = os.path.dirname(os.path.abspath(options["config"])) if options["config"] else config.start_folder(given)
    looked = False
    try:
        for changed in watch.changes(given, start):
            if changed:
                more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
                say(f"\nChanged: {', '.join(map(discovery.shown, changed[:3]))}{more}.")
            try:
                check_once()
                looked = True
            except (UsageError, ConfigError) as error:
                if not looked:
                    raise
                say(f"error: {one_line(str(error))}")
            sys.stdout.flush()
            if not options["quiet"]:
                say("Watching for changes; Ctrl-C ends it.")
    except KeyboardInterrupt:
        pass
    return 0


def _check(session: Session, baseline: str | None, write_baseline: str | None, exit_zero: bool) -> int:
    from gradfix import engine

    with session.runner() as runner:
        result = engine.check(session.files, session.settings, runner, session.overlay)
        notes = _use_baseline(session, result, baseline, write_baseline)
        session.report(result, runner, "check", sys.stdout, text="" if write_baseline is not None else None)
    for note in notes if not session.quiet else ():
        say(note)
    if session.all_problems:
        return 2
    return 1 if fails(result.findings) and not exit_zero else 0


def _use_baseline(session: Session, result, known: str | None, write: str | None) -> list[str]:
    """Take the known findings out of `result`, and what to say about it."""
    if known is None and write is None:
        return []
    from gradfix import baseline
    from gradfix.reports import count

    try:
        if write is not None:
            kept = baseline.write(write, result, session.settings) - len(result.findings)
            more = f" and kept {kept} of what was not checked" if kept else ""
            notes = [f"Wrote {count(len(result.findings), 'finding')} to {write}{more}."]
            result.findings = []
            return notes
        compared = baseline.compare(known, result, session.settings)
    except baseline.BaselineError as error:
        raise UsageError(str(error)) from None
    result.findings = compared.new
    notes = [f"{count(compared.known, 'known finding')} left out."] if compared.known else []
    if gone := baseline.describe(compared.vanished):
        notes.append(f"No longer found, but still in {known} (`--write-baseline {known}` takes them out):")
        notes += [f"  {one_line(line)}" for line in gone]
    return notes


def _explain(session: Session, place: str, paths_given: bool) -> int:
    from gradfix import discovery, engine, source
    from gradfix.analysis import explain

    name, _, line = place.rpartition(":")
    if not name or not line.isdigit() or int(line) < 1:
        raise UsageError("--explain-analysis wants FILE:LINE")
    files = session.files
    if not session.stdin:
        name = discovery.shown(name)
        if not os.path.exists(name):
            raise UsageError(f"{name}: no such file or directory")
        if name not in files:
            files = sorted({*(files if paths_given else ()), name})
    project = engine.make_project(files, session.overlay, session.settings)
    text = source.decode(name, source.data_of(project, name)).text
    if int(line) > len(source.lines_of(text)):
        raise UsageError(f"{name} has no line {line}")
    if wrong := source.syntax_problem(text):
        raise UsageError(f"{name}:{wrong.row or 1}:{wrong.col or 1}: {wrong.reason}")
    print(printable(explain(project, name, int(line)), sys.stdout))
    return 0


@app.command()
def apply(
    paths: Paths = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "--diff", help="Print the changes as a unified diff; write nothing.")] = False,
    unsafe_fixes: Annotated[bool, typer.Option("--unsafe-fixes/--no-unsafe-fixes", help="Apply unsafe fixes too.")] = False,
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Show each fix and ask whether to make it.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Run the scripts; keep only rewrites that prove right.")] = False,
    verify_command: Annotated[Optional[str], typer.Option("--verify-command", metavar="COMMAND", help="Judge by this command, run in a copy.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Time limit of one run of --verify.")] = 60.0,
    select: Select = None,
    ignore: Ignore = None,
    extend_select: ExtendSelect = None,
    unfixable: Unfixable = None,
    extend_safe_fixes: ExtendSafe = None,
    exclude: Exclude = None,
    force_exclude: ForceExclude = False,
    include_markdown: Markdown = False,
    config: ConfigFile = None,
    isolated: Isolated = False,
    target_torch: Torch = None,
    output_format: OutputFormat = None,
    output_file: OutputFile = None,
    statistics: Statistics = False,
    exit_zero: ExitZero = False,
    jobs: Jobs = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
    stdin_filename: StdinName = None,
):
    """Repair what was found: safe fixes, or all with --unsafe-fixes."""
    if interactive:
        for name, given in (("-", paths and "-" in paths), ("--dry-run", dry_run), ("--verify", verify or verify_command)):
            if given:
                raise UsageError(f"--interactive and {name} exclude each other")
    session = Session(paths, locals())
    from gradfix import engine

    if interactive:
        from gradfix.interactive import Chooser

        tint = tinted if wants_color(sys.stdout) else str
        session.settings.wanted = Chooser(session.settings, _show, _answer, tint)
        session.format = output_format.value if output_format is not None else "concise"  # what is left was seen at length
    runner = session.runner()
    try:
        if verify or verify_command is not None:
            from gradfix.harness import command

            if session.stdin:
                raise UsageError("--verify runs files, not stdin")
            done = command.apply_verified(session, runner, verify_command, timeout)
        else:
            done = engine.apply(session.files, session.settings, runner, session.overlay)
    finally:
        runner.close()
    if dry_run:
        finish(_dry_run(session, done, exit_zero))
    done.result.problems += _write(session, done.before, done.after)
    failed = {p.path for p in done.result.problems}
    fixed = [f for f in done.fixed if not any(e.path in failed for e in f.fix.edits)]
    if session.stdin and session.output_file is None:
        session.format = "concise"
        session.report(done.result, runner, "apply", sys.stderr, fixed=len(fixed))
    else:
        with runner:
            session.report(done.result, runner, "apply", sys.stdout, fixed=len(fixed))
    if session.all_problems:
        finish(2)
    finish(1 if fails(done.result.findings) and not exit_zero else 0)


def _write(session: Session, before: dict[str, bytes], after: dict[str, bytes]) -> list:
    """Put the new contents where they belong; a problem for each file that does not take them."""
    from gradfix.findings import Problem
    from gradfix.source import SourceError, atomic_write, read_bytes

    if session.stdin:
        ((name, data),) = session.overlay.items()
        sys.stdout.buffer.write(after.get(name, data))
        sys.stdout.buffer.flush()
        return []
    problems = []
    for path in uncommitted(sorted(after)) if after else ():
        say(f"warning: {path} has uncommitted changes; gradfix changes it too")
    for path, data in after.items():
        try:
            if os.path.exists(path) and read_bytes(path) != before[path]:
                problems.append(Problem(path, "left as it was: it changed on disk in the meantime"))
                continue
            atomic_write(path, data)
        except (OSError, SourceError) as error:
            reason = error.reason if isinstance(error, SourceError) else write_reason(error)
            problems.append(Problem(path, f"can't be written: {reason}"))
    return problems


def _show(text: str) -> None:
    Out(sys.stdout).write(text)
    sys.stdout.flush()


def _answer() -> str:
    line = sys.stdin.readline()
    if not sys.stdin.isatty():
        _show(line)  # nothing else shows it
    return line


def write_reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _dry_run(session: Session, done, exit_zero: bool) -> int:
    from gradfix import engine
    from gradfix.reports import count

    problems = _say_problems({*session.problems, *done.result.problems})
    diff = _print_diff(session, done.before, done.after)
    if not session.quiet:
        if done.after:
            say(f"Would fix {count(len(done.fixed), 'finding')} in {count(len(done.after), 'file')}.")
        left = len(done.result.findings)
        unsafe = sum(
            f.fix is not None and not engine.is_safe(f, session.settings) and engine.has_fix(f, session.settings)
            for f in done.result.findings
        )
        if left:
            more = f" ({unsafe} fixable with --unsafe-fixes)" if unsafe and not session.settings.unsafe_fixes else ""
            say(f"{count(left, 'finding')} would be left{more}; `gradfix check` shows them.")
        elif not done.after and not problems and session.files:
            say("Nothing to fix.")
    if problems:
        return 2
    return 1 if diff and not exit_zero else 0


def _say_problems(problems) -> list:
    from gradfix.findings import place

    problems = sorted(problems, key=lambda p: p.sort_key)
    for p in problems:
        say(f"error: {one_line(place(p.path, p.cell, p.row, p.col))}: {one_line(p.reason)}")
    return problems


def _print_diff(session: Session, before: dict[str, bytes], after: dict[str, bytes]) -> str:
    from gradfix import engine

    diff = "".join(engine.unified_diff(p, before[p], after[p]) for p in sorted(after))
    if session.output_file is not None:
        try:
            with open(session.output_file, "wb") as out:
                out.write(diff.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise UsageError(f"{session.output_file}: {write_reason(error)}") from None
        return diff
    shown = tinted(diff) if wants_color(sys.stdout) else diff
    sys.stdout.flush()
    raw = getattr(sys.stdout, "buffer", None)
    if raw is not None:
        raw.write(shown.encode("utf-8", "surrogateescape"))
        raw.flush()
    else:
        sys.stdout.write(shown)
    return diff


def tinted(diff: str) -> str:
    """A unified diff in the colours of a terminal."""
    from gradfix.reports.style import styler

    style, lines = styler(True), []
    tints = {"+": ("green",), "-": ("red",), "@": ("cyan",)}
    for line in diff.split("\n"):
        names = ("bold",) if line.startswith(("+++", "---")) else tints.get(line[:1], ())
        lines.append(style(line, *names) if line else line)
    return "\n".join(lines)


def uncommitted(paths: list[str]) -> list[str]:
    """Those of `paths` that git tracks and sees changed, or that are untracked inside a repository."""
    import subprocess

    folders: dict[str, list[str]] = {}
    for path in paths:
        folder = here = os.path.dirname(os.path.realpath(path))
        while not os.path.exists(os.path.join(here, ".git")):
            parent = os.path.dirname(here)
            if parent == here:
                here = None
                break
            here = parent
        if here is not None and folder:
            folders.setdefault(here, []).append(path)
    out = []
    for top, mine in folders.items():
        names = {os.path.relpath(os.path.realpath(p), top).replace(os.sep, "/"): p for p in mine}
        try:
            status = subprocess.run(
                ["git", "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all"],
                cwd=top, capture_output=True, timeout=20, stdin=subprocess.DEVNULL,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        if status.returncode:
            continue
        for entry in status.stdout.decode("utf-8", "surrogateescape").split("\0"):
            if entry[3:] in names:
                out.append(names[entry[3:]])
    return sorted(out)


@app.command()
def suppress(
    paths: Paths = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "--diff", help="Print the changes as a unified diff; write nothing.")] = False,
    select: Select = None,
    ignore: Ignore = None,
    extend_select: ExtendSelect = None,
    exclude: Exclude = None,
    force_exclude: ForceExclude = False,
    include_markdown: Markdown = False,
    config: ConfigFile = None,
    isolated: Isolated = False,
    target_torch: Torch = None,
    output_file: Annotated[Optional[str], typer.Option("--output-file", "-o", metavar="FILE", help="With --dry-run: write the diff there.")] = None,
    exit_zero: ExitZero = False,
    jobs: Jobs = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
    stdin_filename: StdinName = None,
):
    """Add a comment that suppresses it to each finding."""
    if output_file is not None and not dry_run:
        raise UsageError("--output-file is for --dry-run")
    fixed = {"unfixable": None, "extend_safe_fixes": None, "output_format": None, "statistics": False}
    session = Session(paths, {**locals(), **fixed})
    from gradfix import engine
    from gradfix.reports import count
    from gradfix.suppress import suppress as add_comments

    with session.runner() as runner:
        result = engine.check(session.files, session.settings, runner, session.overlay)
    done = add_comments(result)
    problems = [*session.problems, *result.problems, *done.problems]
    if dry_run:
        diff = _print_diff(session, done.before, done.after)
    else:
        wrong = _write(session, done.before, done.after)
        problems += wrong
        done.findings = [f for f in done.findings if f.path not in {p.path for p in wrong}]
    if not quiet and (done.findings or not problems and session.files):
        word = "Would suppress" if dry_run else "Suppressed"
        files = count(len({f.path for f in done.findings}), "file")
        say(f"{word} {count(len(done.findings), 'finding')} in {files}." if done.findings else "No findings.")
    if _say_problems(set(problems)):
        finish(2)
    finish(1 if dry_run and diff and not exit_zero else 0)


class ReviewFormat(str, enum.Enum):
    text = "text"
    github = "github"
    gitlab = "gitlab"
    rdjson = "rdjson"


class Filter(str, enum.Enum):
    added = "added"
    context = "context"
    file = "file"
    none = "none"


class Platform(str, enum.Enum):
    github = "github"
    gitlab = "gitlab"


class Outdated(str, enum.Enum):
    leave = "leave"
    remove = "remove"


@app.command()
def review(
    paths: Paths = None,
    base: Annotated[Optional[str], typer.Option("--base", metavar="REV", help="The branch that the change goes to: what HEAD adds since their merge base.")] = None,
    diff: Annotated[Optional[str], typer.Option("--diff", metavar="FILE", help="The change as a unified diff; - reads stdin.")] = None,
    untracked: Annotated[bool, typer.Option("--untracked/--no-untracked", help="With --base: files that git does not know are new ones.")] = True,
    filter: Annotated[Filter, typer.Option("--filter", help="What a finding or its cause must lie on: added lines, the context around them too, or a changed file.")] = Filter.added,
    output_format: Annotated[ReviewFormat, typer.Option("--output-format", help="text, or what review tools take.")] = ReviewFormat.text,
    output_file: OutputFile = None,
    post: Annotated[Optional[Platform], typer.Option("--post", help="Post comments to the pull or merge request of the environment.")] = None,
    stored: Annotated[Optional[str], typer.Option("--from", metavar="FILE", help="With --post: a payload that --output-format made in another job.")] = None,
    pull_request: Annotated[Optional[int], typer.Option("--pull-request", min=1, metavar="N", help="With --post: its number, where the environment does not say.")] = None,
    outdated: Annotated[Outdated, typer.Option("--outdated", help="With --post: comments on what is no longer found.")] = Outdated.leave,
    unsafe_fixes: Annotated[bool, typer.Option("--unsafe-fixes/--no-unsafe-fixes", help="Suggest unsafe fixes too.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Run the scripts; suggest only fixes that prove right.  This runs the code under review.")] = False,
    verify_command: Annotated[Optional[str], typer.Option("--verify-command", metavar="COMMAND", help="Judge by this command, run in a copy.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Time limit of one run of --verify.")] = 60.0,
    select: Select = None,
    ignore: Ignore = None,
    extend_select: ExtendSelect = None,
    unfixable: Unfixable = None,
    extend_safe_fixes: ExtendSafe = None,
    exclude: Exclude = None,
    force_exclude: ForceExclude = False,
    include_markdown: Markdown = False,
    config: ConfigFile = None,
    isolated: Isolated = False,
    target_torch: Torch = None,
    exit_zero: ExitZero = False,
    jobs: Jobs = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
):
    """Report what a change introduces, as review comments with suggestions."""
    from gradfix.review import ReviewError, command

    given = {**locals(), "output_format": None, "statistics": False, "stdin_filename": None}
    options = command.Options(
        base, diff, filter.value, output_format.value, post and post.value, stored, pull_request, outdated.value,
        verify or verify_command is not None, verify_command, timeout, untracked,
    )  # fmt: skip
    try:
        command.check_options(options)
        if stored is not None:
            say(command.post_stored(options))
            return
        session = Session(paths, given)
        if session.stdin:
            raise UsageError("a review has no use for - as path")
        with session.runner() as runner:
            outcome = command.review(session, options, runner)
            session.problems += outcome.problems
            session.format = outcome.report_as
            session.report(outcome.result, runner, "check", sys.stdout, text=outcome.text)
    except ReviewError as error:
        raise UsageError(str(error)) from None
    for note in outcome.notes if not quiet else ():
        say(note)
    if session.all_problems:
        finish(2)
    finish(1 if fails(outcome.result.findings) and not exit_zero else 0)


class VerifyFormat(str, enum.Enum):
    full = "full"
    json = "json"


class Separated(TyperCommand):
    """What stands behind `--` is a command of its own."""

    def parse_args(self, ctx, args):
        if "--" in args:
            at = args.index("--")
            ctx.meta["gradfix.command"] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


@app.command(cls=Separated, epilog="Behind `--`: a command (a test suite) that is run instead of the scripts.")
def verify(
    context: typer.Context,
    paths: Paths = None,
    device: Annotated[str, typer.Option("--device", metavar="DEVICES", help="cpu, cuda, auto or cpu,cuda.")] = "cpu",
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Time limit of one run.")] = 60.0,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory limit of one run: 4G, 512M.")] = "8G",
    seed: Annotated[int, typer.Option("--seed", min=0, help="The seed of every run.")] = 0,
    tolerance: Annotated[Optional[float], typer.Option("--tolerance", min=0.0, help="Relative difference that counts as none (default: bit for bit on CPU).")] = None,
    script_arguments: Annotated[str, typer.Option("--args", metavar="TEXT", help="Arguments for the scripts.")] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Count `inconclusive` as failed.")] = False,
    unsafe_fixes: Annotated[bool, typer.Option("--unsafe-fixes/--no-unsafe-fixes", help="Judge unsafe fixes too.")] = False,
    select: Select = None,
    ignore: Ignore = None,
    extend_select: ExtendSelect = None,
    unfixable: Unfixable = None,
    extend_safe_fixes: ExtendSafe = None,
    exclude: Exclude = None,
    force_exclude: ForceExclude = False,
    config: ConfigFile = None,
    isolated: Isolated = False,
    target_torch: Torch = None,
    output_format: Annotated[Optional[VerifyFormat], typer.Option("--output-format", help="full or json.")] = None,
    jobs: Jobs = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
):
    """Run scripts before and after their rewrite and compare every gradient.  This runs your code."""
    from gradfix.harness import command

    options = {**locals(), "stdin_filename": None, "output_file": None, "statistics": False}
    if paths and "-" in paths:
        raise UsageError("verify runs files, not stdin")
    session = Session(paths, options)
    if output_format is None:
        session.format = "full"
    behind = context.meta.get("gradfix.command")
    if behind == []:
        raise UsageError("verify wants a command behind --")
    if behind is not None:
        finish(command.verify_command(session, behind, timeout, tolerance, strict))
    limits = command.limits(timeout, memory, seed, script_arguments)
    finish(command.verify(session, session.paths, device, limits, tolerance, strict))


@app.command()
def migrate(
    sources: Annotated[Optional[list[str]], typer.Argument(metavar="SOURCES…", help="Folders, git repositories (paths or URLs), manifests (.toml).", show_default=False)] = None,
    write: Annotated[bool, typer.Option("--write", help="Commit on a new branch of each repository.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report (the default).")] = False,
    patches: Annotated[Optional[str], typer.Option("--patches", metavar="DIR", help="Write patches there instead.")] = None,
    branch: Annotated[Optional[str], typer.Option("--branch", metavar="NAME", help="The branch (default: gradfix/<date>).")] = None,
    report: Annotated[Optional[str], typer.Option("--report", metavar="FILE.html", help="Write a report there, and beside it as .json and .md.")] = None,
    journal: Annotated[Optional[str], typer.Option("--journal", metavar="FILE", help="Where the state of the run is kept (default: the user's state folder).")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Do everything again, whatever the journal holds.")] = False,
    cluster: Annotated[Optional[str], typer.Option("--cluster", metavar="ADDRESS", help="Run on Dask: local, or tcp://scheduler:8786.")] = None,
    timeout: Annotated[Optional[float], typer.Option("--timeout", metavar="SECONDS", help="For each repository (default: 600).")] = None,
    memory: Annotated[Optional[int], typer.Option("--memory", metavar="MIB", help="For each repository (default: 4096).")] = None,
    verify_command: Annotated[Optional[str], typer.Option("--verify-command", metavar="COMMAND", help="Run it in a copy of each repository, before and after.")] = None,
    unsafe_fixes: Annotated[Optional[bool], typer.Option("--unsafe-fixes/--no-unsafe-fixes", help="Apply unsafe fixes too.", show_default=False)] = None,
    select: Select = None,
    ignore: Ignore = None,
    extend_select: ExtendSelect = None,
    unfixable: Unfixable = None,
    extend_safe_fixes: ExtendSafe = None,
    exclude: Exclude = None,
    isolated: Annotated[Optional[bool], typer.Option("--isolated", help="Use no config file of a repository.", show_default=False)] = None,
    target_torch: Torch = None,
    jobs: Jobs = None,
    quiet: Quiet = False,
):
    """Repair many repositories, rule by rule, each rule a commit (legacy rules are on)."""
    from gradfix.config import split
    from gradfix.migrate.command import migrate as run_migrate
    from gradfix.migrate.records import Options

    options = Options(
        select=None if select is None else split(select),
        extend_select=split(extend_select),
        ignore=split(ignore),
        unfixable=split(unfixable),
        extend_safe_fixes=split(extend_safe_fixes),
        exclude=split(exclude),
        target_torch=target_torch,
        unsafe_fixes=unsafe_fixes,
        isolated=isolated,
        verify_command=verify_command,
        timeout=timeout,
        memory=memory,
    )
    finish(
        run_migrate(
            sources or ["."], options, write=write, dry_run=dry_run, patches=patches, branch=branch, journal=journal,
            restart=restart, cluster=cluster, jobs=jobs, report=report, quiet=quiet, say=say, out=Out(sys.stdout),
        )  # fmt: skip
    )


@app.command()
def rules(
    output_format: Annotated[Optional[Format], typer.Option("--output-format", help="full or json.")] = None,
):
    """List the rules."""
    from gradfix import codemod
    from gradfix.config import default_codes

    known = codemod.load()
    on = default_codes(known)
    if output_format in (Format.json, Format.json_lines):
        from gradfix.reports.json import dumps

        table = [
            {"code": r.code, "name": r.name, "summary": r.summary, "default": r.code in on, "fixable": r.fixable}
            for r in known
        ]
        print(dumps(table) if output_format is Format.json else "\n".join(map(dumps, table)))
        return
    width = max(len(r.name) for r in known)
    for r in known:
        flags = ("" if r.code in on else "off by default") or ("" if r.fixable else "no fix")
        text = SUMMARIES.get(r.code) or r.summary
        line = f"{r.code}  {r.name.ljust(width)}  {flags.ljust(14)}  {text}"
        print(printable(line.rstrip(), sys.stdout))


SUMMARIES = {"GF001": "A `# gradfix: ignore` comment that suppresses nothing."}


@app.command()
def rule(
    name: Annotated[Optional[str], typer.Argument(metavar="[NAME|CODE]", help="One rule; without it, all.", show_default=False)] = None,
):
    """Explain a rule."""
    from gradfix import codemod
    from gradfix.config import matching

    known = codemod.load()
    if name is not None:
        exact = [r for r in known if name.lower() in (r.name, r.code.lower())]
        if not exact:
            matching(name, known)
            raise UsageError(f"{name} is no rule")
        known = exact
    from gradfix.config import default_codes

    on = default_codes(known)
    blocks = []
    for r in known:
        doc = r.doc or SUMMARIES.get(r.code, "")
        head = f"{r.name} ({r.code})"
        notes = [] if r.code in on else ["off by default"]
        notes += [] if r.fixable else ["reports only"]
        first = doc.splitlines()[0] if doc else ""
        title = "" if r.code in first and r.name in first else f"# {head}\n\n"
        note = f"{', '.join(notes).capitalize()}.\n\n" if notes else ""
        blocks.append(f"{title}{note}{doc}")
    print(printable("\n\n".join(blocks), sys.stdout))


@app.command()
def server(
    select: Select = None,
    ignore: Ignore = None,
    extend_select: ExtendSelect = None,
    config: ConfigFile = None,
    isolated: Isolated = False,
    target_torch: Torch = None,
    stdio: Annotated[bool, typer.Option("--stdio", hidden=True)] = True,  # some editors always pass it
):
    """Run the language server for editors, over stdin and stdout."""
    try:
        from gradfix.server import command
    except ModuleNotFoundError as error:
        raise UsageError(f"the language server needs {error.name}: pip install 'gradfix[lsp]'") from None
    command.run(select, ignore, extend_select, config, isolated, target_torch)


def run(arguments: list[str] | None = None) -> int:
    """The exit code of a command line: never a traceback for what a user can cause."""
    import warnings

    for category in (SyntaxWarning, DeprecationWarning):  # of the code that is read, not ours
        warnings.simplefilter("ignore", category)
    try:
        command = typer.main.get_command(app)
        code = command.main(args=arguments, prog_name="gradfix", standalone_mode=False)
        if code == 130:  # as typer says it
            say("interrupted")
        return code if isinstance(code, int) else 0
    except (UsageError, ConfigError) as error:
        say(f"error: {one_line(str(error))}")
        return 2
    except typer.Abort:
        say("interrupted")
        return 130
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    from gradfix.codemod import RegistryError
    from gradfix.source import SourceError

    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's, or the copy that typer brings
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError":
            say(error.format_message())
            return error.exit_code
        say(f"error: {error.format_message()}")
        if context is not None:
            say(f"Try '{context.command_path} --help'.")
        return error.exit_code
    if isinstance(error, (RegistryError, SourceError)):
        say(f"error: {one_line(str(error))}")
        return 2
    if isinstance(error, FileNotFoundError) and not has_working_folder():
        say("error: the working folder is gone: it was deleted or moved")
        return 2
    if os.environ.get("GRADFIX_TRACEBACK"):
        raise error
    from gradfix.runner import describe

    say(f"error: gradfix itself crashed: {describe(error)}; GRADFIX_TRACEBACK=1 shows where")
    return 2


def has_working_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True

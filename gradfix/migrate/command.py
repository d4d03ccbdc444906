"""`gradfix migrate`: options in, exit code out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from gradfix.config import ConfigError
from gradfix.migrate import plan as planning
from gradfix.migrate import run as running
from gradfix.migrate.journal import Journal, default_path
from gradfix.migrate.progress import problem_lines, progress
from gradfix.migrate.records import Options
from gradfix.runner import usable_cpus


def migrate(
    sources: Sequence[str],
    options: Options,
    *,
    write: bool,
    dry_run: bool,
    patches: str | None,
    branch: str | None,
    journal: str | None,
    restart: bool,
    cluster: str | None,
    jobs: int | None,
    report: str | None,
    quiet: bool,
    say: Callable[[str], None],
    out,
) -> int:
    if dry_run and (write or patches is not None):
        raise ConfigError("--dry-run goes with neither --write nor --patches")
    if branch is not None and (patches is not None or not write):
        raise ConfigError("--branch goes with --write, without --patches")
    if branch is not None:
        check_branch(branch)
    if report is not None:
        from gradfix.migrate import report as reporting

        reporting.check_target(report)
    if patches is not None and os.path.exists(patches) and not os.path.isdir(patches):
        raise ConfigError(f"{patches}: is no folder")
    mode = "patches" if patches is not None else "branch" if write else "dry-run"
    journal = os.path.abspath(journal or default_path())
    work, refused = planning.plan(sources, options, mode, f"{journal}.clones", running.scratch_of(journal))
    for record in refused:
        say(f"error: {record.name}: {record.error}")
    if not work:
        if not refused:
            say("warning: no repositories given")
        return 2 if refused else 0
    settings = running.Settings(cluster, jobs or usable_cpus(), branch, patches, restart)
    with Journal(journal) as opened:
        try:
            with progress(say, quiet) as bar:
                records, started = running.run(work, opened, settings, bar)
        except KeyboardInterrupt:
            say(f"stopped; the same command goes on from here (journal {journal})")
            raise
    for record in records:
        for line in problem_lines(record):
            say(line)
        if record.state == "failed":
            say(f"error: {record.name}: {record.error}")
        elif not quiet:
            for note in record.notes:
                say(f"warning: {record.name}: {note}")
    records += refused
    from gradfix.migrate import report as reporting

    out.write(reporting.as_text(records, quiet))
    if report is not None:
        for path in reporting.write(report, records, started):
            if not quiet:
                say(f"Wrote {path}")
    if any(r.state == "failed" or r.problems for r in records):
        return 2
    return 1 if mode == "dry-run" and any(r.commits for r in records) else 0


def check_branch(name: str) -> None:
    from gradfix.migrate.git import GitError, git

    try:
        git("check-ref-format", "--branch", name)
    except GitError:
        raise ConfigError(f"--branch {name}: no valid name of a branch") from None

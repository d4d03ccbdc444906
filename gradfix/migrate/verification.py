"""Proof by execution: the verify command of a repository, run in fresh copies before and after; its scripts, whose
gradients `gradfix verify` compares."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from gradfix.migrate.records import Trial, Verification, worst

OUTPUT_BYTES = 4000
running: set[int] = set()  # process groups that must not outlive this process


def judge(before: Trial, after: Trial) -> tuple[str, str]:
    if before.code is None or after.code is None:
        which = "before" if before.code is None else "after"
        return "inconclusive", f"the command ran out of time {which} the rewrite"
    if after.code == 0:
        if before.code == 0:
            return "preserved", "the command succeeds before and after"
        return "gained", f"the command failed before (exit code {before.code}) and succeeds now"
    if before.code == 0:
        return "failed", f"the command fails after the rewrite (exit code {after.code})"
    return "inconclusive", f"the command fails before the rewrite, too (exit code {before.code})"


class Trials:
    """Runs of one command on several commits, each in a copy of its own that is removed again."""

    def __init__(self, command: str | list[str], copy: Callable[[str, str], None], deadline: float | None):
        self.command, self.copy, self.deadline = command, copy, deadline
        self.shown = command if isinstance(command, str) else shlex.join(command)
        self.ran: dict[str, Trial] = {}

    def fails(self, commit: str) -> bool:
        return self.run(commit).code not in (0, None)

    def run(self, commit: str) -> Trial:
        if commit not in self.ran:
            folder = tempfile.mkdtemp(prefix="trial-", dir=os.path.dirname(os.getcwd()))
            try:
                self.copy(commit, folder)
                # The first run may use up to half of what is left, so that there is as much for the second.
                left = None if self.deadline is None else self.deadline - time.monotonic()
                self.ran[commit] = run(self.command, folder, left if self.ran or left is None else left / 2)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        return self.ran[commit]


def run(command: str | list[str], folder: str, timeout: float | None, stdout: str | None = None) -> Trial:
    """`stdout`: a file for what it prints there, which else is part of the output."""
    start = time.monotonic()
    if timeout is not None and timeout <= 0:
        return Trial(code=None, seconds=0.0, output="")
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as stack:
        out = stack.enter_context(open(stdout, "wb")) if stdout is not None else log
        shell = isinstance(command, str)
        try:
            process = subprocess.Popen(
                _unlimited(command), shell=shell, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                start_new_session=os.name == "posix", env={**os.environ, "PWD": folder},
            )  # fmt: skip
        except OSError as error:
            reason = f"{error.filename or command}: {(error.strerror or str(error)).lower()}"
            return Trial(code=127, seconds=0.0, output=reason)
        running.add(process.pid)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(process.pid)  # and what the command left running
            process.kill()
            process.wait()
            running.discard(process.pid)
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - OUTPUT_BYTES))
        output = log.read().decode("utf-8", "replace")
    return Trial(code=code, seconds=round(time.monotonic() - start, 3), output=output)


def _unlimited(command: str | list[str]):
    """The memory limit is for the analysis, not for the user's command."""
    if os.name != "posix":
        return command
    lift = "ulimit -S -v unlimited 2>/dev/null"
    return f"{lift}\n{command}" if isinstance(command, str) else ["sh", "-c", f'{lift}; exec "$@"', "sh", *command]


def end_group(pid: int) -> None:
    if os.name == "posix":
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


# ------------------------------------------------------------------------ scripts

GRADFIX = "import sys; sys.path[0] = sys.argv.pop(1); from gradfix.cli import run; sys.exit(run())"


def prove(patterns: list[str], options: list[str], folder: str, timeout: float | None) -> tuple[Verification, dict[str, str]]:
    """What `gradfix verify` says of the scripts in `folder`, all together and of each rule (by its code)."""
    scripts = sorted({p for pattern in patterns for p in glob.glob(pattern, root_dir=folder, recursive=True)})
    shown = shlex.join(["gradfix", "verify", *scripts])
    if not scripts:
        return Verification(command=shown, verdict="inconclusive", reason=f"there is no {' or '.join(patterns)}"), {}
    os.makedirs(os.path.join(folder, ".git"), exist_ok=True)  # marks the project's top folder
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    answer = folder + ".json"
    command = [sys.executable, "-c", GRADFIX, root, "verify", "--output-format", "json", "--jobs", "1", *options, *scripts]
    try:
        trial = run(command, folder, timeout, answer)
        with open(answer, "rb") as handle:
            text = handle.read()
    finally:
        with contextlib.suppress(OSError):
            os.unlink(answer)
    try:
        proofs = json.loads(text)
    except ValueError:
        said = [line for line in trial.output.splitlines() if line.startswith("error:")]
        reason = "it ran out of time" if trial.code is None else said[-1] if said else f"it ended with exit code {trial.code}"
        return Verification(command=shown, verdict="inconclusive", reason=reason, after=trial), {}
    verdicts: dict[str, list[str]] = {}
    for proof in proofs:
        for rewrite in proof["rewrites"]:
            verdicts.setdefault(rewrite["code"], []).append(rewrite["verdict"])
    of_rule = {code: worst(given) for code, given in verdicts.items()}
    told = [p for p in proofs if p["rewrites"]] or proofs
    verdict = worst(p["verdict"] for p in told) or "inconclusive"
    telling = [p for p in told if p["verdict"] == verdict]
    reason = f"{telling[0]['filename']}: {telling[0]['reason']}" if telling else "no script"
    return Verification(command=shown, verdict=verdict, reason=reason), of_rule

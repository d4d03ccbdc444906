"""The verify command of a repository: run in a fresh copy, before and after."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable

from gradfix.migrate.records import Trial

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


def run(command: str | list[str], folder: str, timeout: float | None) -> Trial:
    start = time.monotonic()
    if timeout is not None and timeout <= 0:
        return Trial(code=None, seconds=0.0, output="")
    with tempfile.TemporaryFile() as log:
        shell = isinstance(command, str)
        try:
            process = subprocess.Popen(
                _unlimited(command), shell=shell, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
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

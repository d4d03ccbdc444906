"""The process that does one repository at a time, and the limits that hold for it.

`run` is what an executor calls, here or on another machine: a job in, a record out.  It hands the job to a child
process, so that a crash, a hang or a lack of memory costs one record.  The child serves many jobs, and ends by itself
when the process that started it is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading

from gradfix.migrate.records import Job, Record, dumps, loads

JOBS_PER_PROCESS = 50

_idle: list[Worker] = []
_all: set[Worker] = set()
_lock = threading.Lock()
_closed = False


def run(job_text: str) -> str:
    """The record of a job, both as JSON."""
    from gradfix.migrate.repository import failure

    job = loads(job_text, Job)
    limit = job.options.timeout
    worker = _take()
    try:
        answer = worker.ask(job_text, limit)
    except TimeoutError:
        worker.end()
        return dumps(failure(job, f"took longer than {limit:g} s (--timeout)"))
    except EOFError:
        code = worker.end()
        return dumps(failure(job, f"the process that worked on it {how_it_ended(code)}"))
    worker.jobs += 1
    if worker.jobs >= JOBS_PER_PROCESS or loads(answer, Record).state == "failed":
        worker.end()  # whatever went wrong, the next one starts afresh
    else:
        with _lock:
            _idle.append(worker)
    return answer


def how_it_ended(code: int) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed ({name}{'; out of memory?' if name == 'SIGKILL' else ''})"
    return f"ended (exit code {code})"


def _take() -> Worker:
    with _lock:
        if _closed:
            raise RuntimeError("the run is over")
        return _idle.pop() if _idle else Worker()


def close() -> None:
    """End every child, whatever it does."""
    global _closed
    with _lock:
        _closed = True
        workers = list(_all)
        _idle.clear()
    for worker in workers:
        worker.end()


def reopen() -> None:
    global _closed
    _closed = False


atexit.register(close)

# The child imports gradfix from where this process has it, and never from the folder it works in.
START = "import sys; sys.path[0] = sys.argv[1]; from gradfix.migrate.worker import main; main()"


class Worker:
    """The parent's end of a child: one line in, one line out."""

    def __init__(self):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        env = dict(os.environ, PYTHONHASHSEED="0", GRADFIX_HASHSEED=os.environ.get("PYTHONHASHSEED", ""))
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=os.name == "posix", env=env,
        )  # fmt: skip
        self.answers: queue.SimpleQueue = queue.SimpleQueue()
        self.jobs = 0
        _all.add(self)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.answers.put(line.decode("ascii"))
        self.answers.put("")

    def ask(self, line: str, timeout: float | None) -> str:
        try:
            self.process.stdin.write(line.encode("ascii") + b"\n")
            self.process.stdin.flush()
            answer = self.answers.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        except OSError:
            raise EOFError from None
        if not answer.endswith("\n"):
            raise EOFError
        return answer.rstrip("\n")

    def end(self) -> int:
        """End the child and all that it started; its exit code (that of a child which ended before is kept)."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # which tells it to end what it runs, and itself
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            pass
        from gradfix.migrate.verification import end_group

        end_group(self.process.pid)
        self.process.kill()
        code = self.process.wait()
        with _lock:
            _all.discard(self)
        return code


# ------------------------------------------------------------------------ in the child


def main() -> None:
    seed = os.environ.pop("GRADFIX_HASHSEED", "")
    os.environ.pop("PYTHONHASHSEED", None)  # ours was for this process alone
    if seed:
        os.environ["PYTHONHASHSEED"] = seed
    answers = os.fdopen(os.dup(1), "wb")
    jobs = os.fdopen(os.dup(0), "rb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what anyone prints must not look like an answer
    lines: queue.SimpleQueue = queue.SimpleQueue()

    def listen():
        for line in jobs:
            lines.put(line)
        _end_everything()

    threading.Thread(target=listen, daemon=True).start()
    import warnings

    warnings.simplefilter("ignore")
    from gradfix.migrate.repository import migrate

    while True:
        job = loads(lines.get().decode("ascii"), Job)
        limit_memory(job.options.memory)
        answers.write(dumps(migrate(job)).encode("ascii") + b"\n")
        answers.flush()


def _end_everything():
    """The parent is gone, or wants us gone."""
    from gradfix.migrate.verification import end_group, running

    for group in list(running):
        end_group(group)
    if os.name == "posix" and os.getpgrp() == os.getpid():
        end_group(os.getpid())
    os._exit(0)


def limit_memory(mebibytes: int | None) -> None:
    if mebibytes is None:
        return
    try:
        import resource
    except ImportError:  # Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = mebibytes * 1024 * 1024
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))

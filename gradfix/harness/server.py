"""The process that imports torch once and forks a child for each run.

It reads jobs from its standard input (length, then msgpack) and answers with a line per job: number and how it ended.
Each child is the leader of a session of its own, so that it can be killed with all that it started.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import struct
import sys
import tempfile
import time

from gradfix.harness.trace import Job, Record, decode_job, encode


def serve(limit: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent closes our input when it is interrupted
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    _adopt_orphans()
    from gradfix.harness import record

    record.warm_up()
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, everything that was imported
    answers.write("ready\n")
    waiting: list[tuple[int, Job]] = []
    running: dict[int, tuple[int, Job, float]] = {}  # pid -> number, job, deadline
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    number, buffer = 0, b""
    while True:
        while waiting and len(running) < limit:
            n, job = waiting.pop(0)
            running[_fork(job)] = (n, job, time.monotonic() + job.timeout)
        soonest = min((deadline for _, _, deadline in running.values()), default=None)
        for key, _ in selector.select(None if soonest is None else max(0.0, soonest - time.monotonic())):
            data = os.read(key.fd, 1 << 20)
            if key.fd == wake_read:
                continue
            if not data:
                for pid in running:
                    _kill(pid)
                return
            buffer += data
            while len(buffer) >= 8 and len(buffer) >= 8 + (size := struct.unpack("<Q", buffer[:8])[0]):
                waiting.append((number, decode_job(buffer[8 : 8 + size])))
                number, buffer = number + 1, buffer[8 + size :]
        for pid in [p for p, (_, _, deadline) in running.items() if time.monotonic() >= deadline]:
            n, _, _ = running.pop(pid)
            _kill(pid)
            os.waitpid(pid, 0)
            answers.write(f"{n} time\n")
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in running:
                n, _, _ = running.pop(pid)
                _kill(pid)  # what it left behind in its group
                answers.write(f"{n} {os.waitstatus_to_exitcode(status)}\n")
        _end_orphans(set(running))


def _fork(job: Job) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _die_with_the_server()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        run_one(job)
    finally:
        os._exit(0)


def run_one(job: Job) -> None:
    """In the child: no terminal, no input, the working folder; then the script."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if job.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TMPDIR"] = tempfile.tempdir = job.temporary  # whatever was imported may have asked for the folder before
    from gradfix.harness import record

    try:
        record.run(job)
    except BaseException as error:  # ours, not the script's
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"the recorder crashed: {type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
        with open(job.result, "wb") as handle:
            handle.write(encode(Record(stopped="died", detail=detail)))


def _kill(pid: int) -> None:
    for end in (os.killpg, os.kill):
        try:
            end(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def _control(option: int, value: int) -> None:
    """Linux's `prctl`; nothing elsewhere."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def _adopt_orphans() -> None:
    """Let processes that leave their session become our children, so that they can be ended."""
    _control(36, 1)  # PR_SET_CHILD_SUBREAPER


def _die_with_the_server() -> None:
    """Nobody else would end this child at its limit."""
    _control(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _end_orphans(ours: set[int]) -> None:
    try:
        with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as handle:
            children = [int(pid) for pid in handle.read().split()]
    except OSError:
        return
    for pid in children:
        if pid not in ours:
            _kill(pid)


def main() -> None:
    if sys.argv[1] == "--one":  # no fork on this platform: a process for this job alone
        with open(sys.argv[2], "rb") as handle:
            job = decode_job(handle.read())
        from gradfix.harness import record

        record.warm_up()
        run_one(job)
        os._exit(0)
    serve(int(sys.argv[1]))


if __name__ == "__main__":
    main()

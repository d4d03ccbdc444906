"""The parent's side: which folder a script belongs to, jobs to the server, records back, copies where a run writes."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from gradfix.harness.trace import Forgive, Job, Record, decode_record, encode

MARKERS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "gradfix.toml")
NOT_COPIED = {".git", ".hg", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache", ".tox"}
MOST_COPIED = 512 << 20  # bytes
MOST_FILES = 50_000
MOST_BESIDE = 1_000  # files and folders beside a project that its copy sees


class HarnessError(Exception):
    """Scripts can't be run here at all."""


@dataclass
class Limits:
    timeout: float = 60.0
    memory: int = 8 << 30
    seed: int = 0
    device: str = "cpu"
    arguments: Sequence[str] = ()


@dataclass
class Script:
    """A script, its project, and the folder in which it runs."""

    path: str  # absolute, real
    root: str
    folder: str
    limits: Limits = field(default_factory=Limits)

    def relative(self, path: str) -> str:
        return os.path.relpath(os.path.realpath(path), self.root).replace(os.sep, "/")


def locate(path: str, limits: Limits | None = None) -> Script:
    """The project is the nearest folder upwards with a project's marks, else the script's own folder."""
    real = os.path.realpath(path)
    own = root = os.path.dirname(real)
    home = os.path.realpath(os.path.expanduser("~"))
    here = own
    while True:
        if here == home or here == os.path.dirname(here):
            break
        if any(os.path.exists(os.path.join(here, mark)) for mark in MARKERS):
            root = here
            break
        here = os.path.dirname(here)
    cwd = os.path.realpath(os.getcwd())
    inside = cwd == root or cwd.startswith(root + os.sep)
    return Script(real, root, cwd if inside else own, limits or Limits())


class Runs:
    """Runs scripts in children; keep it open for all of them.

    `parallel` runs go at once: ask for several with `start` before `result`.
    """

    def __init__(self, parallel: int | None = None, fork: bool | None = None):
        self.parallel = parallel or max(1, min(os.cpu_count() or 1, 8))
        self.fork = hasattr(os, "fork") if fork is None else fork
        self.server: subprocess.Popen | None = None
        self.sent = self.first = 0  # jobs so far, and those before the server that runs
        self.unanswered: list[int] = []
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="gradfix-"))
        self.number = 0
        self.jobs: dict[int, Job] = {}
        self.ends: dict[int, str] = {}
        self.single: dict[int, subprocess.Popen] = {}
        self.writing: dict[str, str] = {}  # scripts that are known to write, and what
        atexit.register(self.close)  # where nobody else does

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        if self.server is not None:
            try:
                self.server.stdin.close()
            except BrokenPipeError:
                pass
            try:
                self.server.wait(5)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
            self.server.stdout.close()
            self.server = None
        for process in self.single.values():
            process.kill()
            process.wait()
        self.single.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)

    # ---- one run

    def start(self, script: Script, overlay: dict[str, bytes] | None = None, **more) -> int:
        """`overlay`: absolute real path -> contents.  The number is for `result`."""
        job = self._job(script, overlay or {}, more)
        if script.path in self.writing:
            self._copy(job)
        return self._submit(job)

    def result(self, number: int) -> Record:
        record = self._wait(number)
        if record.stopped == "writes" and not self.jobs[number].copied:
            job = self.jobs[number]
            self.writing[job.script] = record.detail
            if (why := self._copy(job)) is not None:
                return Record(stopped="writes", detail=f"it {record.detail}, and {why}")
            record = self._wait(self._submit(job))
        return record

    def run(self, script: Script, overlay: dict[str, bytes] | None = None, **more) -> Record:
        return self.result(self.start(script, overlay, **more))

    def has_cuda(self) -> bool:
        """Whether a child sees a CUDA device (asked in a child: the parent must not start CUDA before it forks)."""
        path = os.path.join(self.folder, "has_cuda.py")
        with open(path, "w") as handle:
            handle.write("import torch\nprint(torch.cuda.is_available())\n")
        script = Script(os.path.realpath(path), self.folder, self.folder, Limits(device="cuda"))
        return self.run(script).stdout.strip() == "True"

    def _job(self, script: Script, overlay: dict[str, bytes], more: dict) -> Job:
        self.number += 1
        place = os.path.join(self.folder, str(self.number))
        temporary = os.path.join(place, "tmp")
        os.makedirs(temporary)
        limits = script.limits
        return Job(
            script=script.path,
            root=script.root,
            folder=script.folder,
            result=os.path.join(place, "record"),
            temporary=temporary,
            arguments=list(limits.arguments),
            overlay=overlay,
            device=limits.device,
            seed=limits.seed,
            timeout=limits.timeout,
            memory=limits.memory,
            **more,
        )

    def _copy(self, job: Job) -> str | None:
        """Move the job into a copy of its project; why that can't be done, or None."""
        beside = os.path.join(os.path.dirname(job.result), "copy")
        target = os.path.join(beside, os.path.basename(job.root) or "project")
        os.makedirs(beside)
        if (why := copy_project(job.root, target)) is not None:
            return why
        for name in os.listdir(os.path.dirname(job.root))[:MOST_BESIDE]:  # for scripts that read `../data`
            if not os.path.lexists(os.path.join(beside, name)):
                os.symlink(os.path.join(os.path.dirname(job.root), name), os.path.join(beside, name))

        def moved(path: str) -> str:
            return target + path[len(job.root) :] if path == job.root or path.startswith(job.root + os.sep) else path

        job.script, job.folder = moved(job.script), moved(job.folder)
        job.overlay = {moved(path): data for path, data in job.overlay.items()}
        for path, data in job.overlay.items():
            if path.startswith(target + os.sep):
                with open(path, "wb") as handle:
                    handle.write(data)
        job.root, job.copied = target, True
        return None

    def _submit(self, job: Job) -> int:
        if self.fork:
            return self._to_server(job)
        number = self.number * 1000 + len(self.single)
        path = job.result + ".job"
        with open(path, "wb") as handle:
            handle.write(encode(job))
        self.jobs[number] = job
        self.single[number] = subprocess.Popen(
            [sys.executable, "-m", "gradfix.harness.server", "--one", path],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=environment(), start_new_session=True,
        )  # fmt: skip
        return number

    def _to_server(self, job: Job) -> int:
        data = encode(job)
        if self.server is not None and self.server.poll() is not None:
            self._lose_server()
        if self.server is None:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "gradfix.harness.server", str(self.parallel)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=environment(), cwd=self.folder, start_new_session=True,
            )  # fmt: skip
            if self.server.stdout.readline() != b"ready\n":
                text = self.server.stderr.read().decode("utf-8", "replace").strip().splitlines()
                raise HarnessError(f"torch can't be imported by {sys.executable}: {text[-1] if text else 'no reason given'}")
        number, self.sent = self.sent, self.sent + 1
        self.jobs[number] = job
        self.unanswered.append(number)
        try:
            self.server.stdin.write(struct.pack("<Q", len(data)) + data)
            self.server.stdin.flush()
        except BrokenPipeError:
            self._lose_server()
        return number

    def _lose_server(self) -> None:
        """The server was killed, and what ran in it with it: the next job gets another one."""
        self.ends.update(dict.fromkeys(self.unanswered, "lost"))
        self.unanswered.clear()
        self.server.kill()
        self.server.wait()
        for pipe in (self.server.stdout, self.server.stderr):
            pipe.close()
        self.server, self.first = None, self.sent

    def _wait(self, number: int) -> Record:
        job = self.jobs[number]
        if self.fork:
            while number not in self.ends:
                line = self.server.stdout.readline()
                if not line:
                    self._lose_server()
                    continue
                done, end = line.decode().split()
                self.ends[self.first + int(done)] = end
                self.unanswered.remove(self.first + int(done))
            end = self.ends.pop(number)
        else:
            process = self.single.pop(number)
            try:
                end = str(process.wait(job.timeout + 30))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                end = "time"
        try:
            with open(job.result, "rb") as handle:
                record = decode_record(handle.read())
        except OSError:
            why = f"it ended with code {end}" if not end.startswith("-") else f"signal {end[1:]}"
            record = Record(stopped="died", detail=why)
        except msgspec.DecodeError:
            record = Record(stopped="died", detail="it left no record that can be read")
        if end == "lost":  # its record, if any, may be cut off
            record = Record(stopped="died", detail="it, or what ran beside it, killed the process that runs the scripts")
        elif end == "time":
            record = Record(stopped="time", detail=f"it ran longer than {job.timeout:g} s")
        elif end == "-9" and record.stopped == "died":
            record.stopped, record.detail = "memory", "it was killed, most likely for its memory"
        self._forget(job, again=record.stopped == "writes" and not job.copied)
        return record

    def _forget(self, job: Job, again: bool) -> None:
        shutil.rmtree(os.path.dirname(job.result), ignore_errors=True)
        if again:  # in a copy
            os.makedirs(job.temporary, exist_ok=True)


def copy_project(root: str, target: str) -> str | None:
    """Copy a project without what tools left there; why that can't be done, or None."""
    size = files = 0
    for folder, names, members in os.walk(root):
        names[:] = [n for n in names if n not in NOT_COPIED]
        for member in members:
            files += 1
            try:
                size += os.lstat(os.path.join(folder, member)).st_size
            except OSError:
                pass
        if size > MOST_COPIED or files > MOST_FILES:
            return "its project is too large to be copied"
    try:
        shutil.copytree(root, target, ignore=lambda _, n: NOT_COPIED.intersection(n), ignore_dangling_symlinks=True)
    except (OSError, shutil.Error) as error:
        return f"its project can't be copied: {error}"[:300]
    return None


def environment() -> dict[str, str]:
    path = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    old = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([path, *([old] if old else [])]),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MPLBACKEND": "Agg",
        "WANDB_MODE": "disabled",
    }


def memory_size(text: str) -> int:
    """`4G`, `512M`, bytes without a letter."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no amount of memory; write 4G or 512M")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


__all__ = ["Forgive", "HarnessError", "Limits", "Runs", "Script", "locate", "memory_size"]

"""Kill `gradfix migrate` again and again, and see that the branches are those of a run that was left alone.

    python tools/kill_migrate.py --repositories 300 --kills 20 --jobs 2
    python tools/kill_migrate.py --repositories 60 --kills 6 --jobs 2 --cluster local

Makes small repositories in a temporary folder, twice.  One half is migrated in one go; over the other half the run is
ended with SIGKILL at random moments and started again until it ends by itself.  On a cluster, all kills come once work is under way,
and in each run, the last one included, a Dask worker is killed, too.  Then every branch of
every pair is compared, and the lines of progress are counted: no repository may be reported twice.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from migrate_support import git, many, state  # noqa: E402


def start(folder: Path, journal: Path, repos: list[Path], options) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GIT_CONFIG_GLOBAL": os.devnull, "TMPDIR": str(folder)}
    more = ["--cluster", options.cluster] if options.cluster else []
    return subprocess.Popen(
        [sys.executable, "-m", "gradfix", "migrate", "--write", "--unsafe-fixes", "--branch", "gradfix/fixed", *more,
         "--jobs", str(options.jobs), "--journal", str(journal), *map(str, repos)],
        env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen, lines: list[str], kills: list[tuple[float, Callable]], at_work: bool = False) -> bool:
    """Whether it ended by itself.  Its lines of progress go to `lines`.

    `kills` says what to call after how many seconds; with `at_work` these count from the first repository on.
    """
    timers = [threading.Timer(after, kill, [process]) for after, kill in kills]
    waiting = list(timers)

    def start_timers():
        while waiting:
            waiting.pop().start()

    if not at_work:
        start_timers()
    threading.Thread(target=process.stdout.read, daemon=True).start()
    others = []
    for line in process.stderr:
        if line.startswith("["):
            lines.append(line.split()[1])
            start_timers()
        else:
            others.append(line)
    code = process.wait()
    for timer in timers:
        timer.cancel()
    if code not in (0, -9):
        sys.exit(f"migrate ended with {code}:\n{''.join(others)}")
    return code == 0


def kill_run(process: subprocess.Popen) -> None:
    process.kill()


class WorkerKiller:
    """Ends one Dask worker of a run; counts those that it ended."""

    def __init__(self, draw: random.Random):
        self.draw, self.killed = draw, 0

    def __call__(self, process: subprocess.Popen) -> None:
        try:
            # Dask's worker processes are spawned by multiprocessing; the process of its own that a worker starts for the
            # work in hand has another command line.
            children = psutil.Process(process.pid).children(recursive=True)
            workers = [c for c in children if any("spawn_main" in part for part in c.cmdline())]
            if workers:
                self.draw.choice(workers).kill()
                self.killed += 1
        except psutil.NoSuchProcess:
            pass  # it ended at that moment


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--repositories", type=int, default=300)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--cluster", help="run the disturbed half on Dask: local")
    options = options.parse_args()
    draw = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="kill-migrate-"))
    try:
        repos = many(folder / "a", options.repositories, options.seed)
        shutil.copytree(folder / "a", folder / "b")
        others = [folder / "b" / r.name for r in repos]
        cluster, options.cluster = options.cluster, None
        began = time.monotonic()
        lines: list[str] = []
        assert finish(start(folder, folder / "b.sqlite", others, options), lines, [])
        whole = time.monotonic() - began
        print(f"undisturbed: {len(lines)} repositories in {whole:.0f} s, {options.jobs} jobs")

        options.cluster = cluster
        lines, kills, done, began = [], [], False, time.monotonic()
        killer = WorkerKiller(draw)
        while not done:
            after = draw.uniform(0.05, (1.0 if cluster else 1.5) * whole / options.kills)
            planned = [(after, kill_run)] if len(kills) < options.kills else []
            if cluster:
                planned.append((after * draw.uniform(0.1, 0.9), killer))
            before = len(lines)
            # On a cluster, whose start is slow, else all kills would come before any work.
            done = finish(start(folder, folder / "a.sqlite", repos, options), lines, planned, bool(cluster) or len(kills) % 2 == 1)
            if not done:
                kills.append((after, len(lines) - before))
            # It may be killed while its cluster ends, when all is done; the next run would look at everything once more.
            done = done or len(set(lines)) == len(repos)
        for number, (after, made) in enumerate(kills, 1):
            print(f"kill {number:2}: after {after:5.2f} s, {made} repositories done")
        if cluster:
            print(f"{killer.killed} workers killed")
        print(f"disturbed: {len(kills)} kills, {time.monotonic() - began:.0f} s, {len(lines)} repositories reported, {len(set(lines))} different")

        different = [a.name for a, b in zip(repos, others) if state(a) != state(b)]
        broken = [r.name for r in repos if git(r, "fsck", "--strict", check=False)]
        branches = sum("refs/heads/gradfix/fixed" in state(r) for r in repos)
        commits = sum(int(git(r, "rev-list", "--count", "main..gradfix/fixed")) for r in repos if "refs/heads/gradfix/fixed" in state(r))
        left = [p.name for p in folder.iterdir() if p.name.startswith("gradfix-migrate-")]
        print(f"{branches} branches with {commits} commits; {len(different)} differ from the undisturbed run; "
              f"{len(broken)} repositories with objects left over; {len(left)} folders left over")  # fmt: skip
        sys.exit(bool(different or left or len(lines) - len(set(lines)) or len(kills) < options.kills))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

"""How fast is `gradfix check`, and how much memory does it take?  Measured beside other linters, in one run.

    python benchmarks/speed.py --cache ~/.cache/gradfix-benchmarks

The first run downloads two pinned wheels (transformers, timm) and makes a virtual environment with ruff, torchfix and
torch-preflight in the cache folder; later runs need no network.  Every tool runs without a cache of its own, its output
goes nowhere, and the quickest of `--repeat` runs counts (the slow ones run once).  Linux and macOS.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import shutil
import subprocess
import sys
import time
import venv
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

TREES = {"transformers": "transformers==4.57.1", "timm": "timm==1.0.31"}
LINTERS = {"ruff": "ruff", "torchfix": "torchfix", "torch-preflight": "torch-preflight"}
DEFINITION = re.compile(rb"^[ \t]*(?:async[ \t]+)?def\b", re.M)


@dataclass
class Measure:
    seconds: float
    cpu: float  # seconds of all cores together
    megabytes: float  # of the largest process of all that ran
    status: int


def pip(python: str, *arguments: str) -> str:
    """Runs pip; the last line of what it complains about, or nothing when all went well."""
    done = subprocess.run([python, "-m", "pip", *arguments], capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return next((line for line in reversed(done.stderr.splitlines()) if line.strip()), f"exit {done.returncode}")


def unpacked(cache: Path, name: str, requirement: str) -> Path:
    folder = cache / requirement.replace("==", "-")
    if not folder.exists():
        wheels = cache / "wheels"
        if failed := pip(sys.executable, "download", "--no-deps", "--only-binary=:all:", "-d", str(wheels), requirement):
            sys.exit(f"{requirement} can't be downloaded: {failed}")
        (wheel,) = wheels.glob(f"{name}-{requirement.partition('==')[2]}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder.with_suffix(".part"))
        folder.with_suffix(".part").rename(folder)
    return folder / name


def linters(cache: Path) -> dict[str, str]:
    """The commands of the other tools that could be installed."""
    folder = cache / "venv"
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    found = {}
    for name, requirement in LINTERS.items():
        command = folder / "bin" / name
        if not command.exists() and (failed := pip(str(folder / "bin" / "python"), "install", requirement)):
            print(f"{name} can't be installed: {failed}", file=sys.stderr)
        if command.exists():
            found[name] = str(command)
    return found


def run(command: list[str], limit: float) -> Measure:
    start = time.perf_counter()
    with open(os.devnull, "r+b") as null:
        process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.perf_counter() - start > limit:
            os.killpg(process.pid, 9)
            os.wait4(process.pid, 0)
            return Measure(float("inf"), float("inf"), 0, -1)
        time.sleep(0.002)
    process.returncode = os.waitstatus_to_exitcode(status)  # it is reaped: Popen need not wait
    unit = 1024**2 if sys.platform == "darwin" else 1024
    seconds = time.perf_counter() - start
    return Measure(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit, process.returncode)


def best(command: list[str], repeat: int, limit: float) -> Measure:
    measures = [run(command, limit) for _ in range(repeat)]
    quickest = min(measures, key=lambda m: m.seconds)
    return Measure(quickest.seconds, quickest.cpu, max(m.megabytes for m in measures), quickest.status)


def lines_of(files: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in files)


def inside(tree: Path) -> None:
    """The same work, file by file in this process: what the commands can't tell."""
    from gradfix.analysis import Project, observe

    warnings.simplefilter("ignore")
    files = sorted(str(p) for p in tree.rglob("*.py"))
    project = Project(tuple(files))
    slowest, seen, interpreted = (0.0, ""), 0, 0
    gc.disable()  # as the workers do
    for i, path in enumerate(files):
        start = time.perf_counter()
        observed = observe(project, [path])
        slowest = max(slowest, (time.perf_counter() - start, path))
        seen += observed.functions
        interpreted += observed.interpreted
        if i % 200 == 199:
            gc.collect()
    gc.enable()
    defined = sum(len(DEFINITION.findall(Path(path).read_bytes())) for path in files)
    print(f"  slowest file: {slowest[0]:.2f} s, {Path(slowest[1]).relative_to(tree.parent)}")
    print(
        f"  functions interpreted: {interpreted:,} of {defined:,} ({interpreted / max(1, defined):.0%}), "
        f"{interpreted / max(1, seen):.0%} of those in files that hold something about gradients"
    )


def row(name: str, measure: Measure, more: str = "") -> None:
    cells = f"{measure.seconds:7.2f} s  {measure.cpu:7.2f} s of CPU  {measure.megabytes:5.0f} MB"
    print(f"  {name:<16}{cells}{more}", flush=True)


def compare(ours: Measure, name: str, theirs: Measure, limit: float) -> None:
    if theirs.status < 0:
        print(f"  {name:<16}stopped after {limit:.0f} s: gradfix is over {limit / ours.seconds:.0f} times as fast")
    else:
        row(name, theirs, f"  gradfix is {theirs.seconds / ours.seconds:.1f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR", help="for wheels, sources and the linters")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of gradfix and ruff (default: 3)")
    parser.add_argument("--limit", type=float, default=600, metavar="S", help="seconds after which a tool is stopped")
    parser.add_argument("--skip", action="append", default=[], choices=LINTERS, help="leave out a linter")
    options = parser.parse_args()

    beside = Path(sys.executable).with_name("gradfix")
    gradfix = str(beside) if beside.exists() else shutil.which("gradfix")
    if gradfix is None:
        sys.exit("gradfix is not installed: pip install .")
    cache = options.cache.expanduser().resolve()
    cache.mkdir(parents=True, exist_ok=True)
    trees = {name: unpacked(cache, name, requirement) for name, requirement in TREES.items()}
    others = {name: command for name, command in linters(cache).items() if name not in options.skip}

    version = best([gradfix, "--version"], 10, options.limit)
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    print(f"gradfix --version: {version.seconds:.3f} s")
    for name, tree in trees.items():
        files = sorted(tree.rglob("*.py"))
        print(f"\n{TREES[name]}: {len(files):,} files, {lines_of(files):,} lines (memory: of a tool's largest process)")
        check = [gradfix, "check", "--isolated", "--no-cache", "--exit-zero", str(tree)]
        ours = best(check, options.repeat, options.limit)
        row("gradfix", ours, f"  it exited with {ours.status}" if ours.status else "")
        for other, command in others.items():
            if (other == "ruff") != (name == "transformers"):
                continue  # ruff is the yardstick on much code; the others would take an hour there
            if other == "ruff":  # most of its time goes into what it prints, hence both formats
                line = [command, "check", "--isolated", "--no-cache", "--select", "ALL", "--exit-zero", str(tree)]
                compare(ours, "ruff", best(line, options.repeat, options.limit), options.limit)
                concise = [*line, "--output-format", "concise"]
                compare(ours, "ruff, concise", best(concise, options.repeat, options.limit), options.limit)
            else:
                arguments = ["--select", "ALL"] if other == "torchfix" else ["check"]
                compare(ours, other, run([command, *arguments, str(tree)], options.limit), options.limit)
        inside(tree)


if __name__ == "__main__":
    main()

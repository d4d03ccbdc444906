"""Migrate real legacy repositories, and draw rewrites to be read.

    python tools/legacy_rewrites.py FOLDER [--sample 100] [--seed 0] [--out OUT]

FOLDER holds git repositories, checked out at the commit of interest.  Each is cloned to OUT (the originals stay as they
are) and migrated with all fixes.  Then: no repository may fail, no rule may crash, every changed file must compile (a
notebook must be valid as well), and a second run, which starts from the branch of the first, must change nothing.
OUT/report.html is the report; OUT/sample.txt holds the sampled rewrites, each with the lines around it.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "gradfix/legacy"
AROUND = 12


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-c", "safe.directory=*", "-c", "core.quotePath=false", *arguments], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode("utf-8", "surrogateescape")


def migrate(out: Path, name: str, repositories: list[Path]) -> list[dict]:
    command = [sys.executable, "-m", "gradfix", "migrate", "--write", "--unsafe-fixes", "--branch", BRANCH, "--quiet",
               "--journal", str(out / f"{name}.sqlite"), "--report", str(out / f"{name}.html"), *map(str, repositories)]  # fmt: skip
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=(out / f"{name}.log").open("wb"))
    return json.loads((out / f"{name}.json").read_text())["repositories"]


def why_not_valid(path: str, data: bytes) -> str | None:
    """Why a changed file is none that Python (or Jupyter) takes."""
    from gradfix import source

    try:
        text = source.decode(path, data).code  # of a notebook, its cells as one program, as `check` reads them
        if path.endswith(".ipynb"):
            import nbformat

            nbformat.validate(nbformat.reads(data.decode("utf-8"), as_version=nbformat.NO_CONVERT))
        compile(text, path, "exec", dont_inherit=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def rewrites(repository: Path, commit: dict):
    """(path, row before, rows before, what the commit did there) for each run of changed lines."""
    diff = git(repository, "diff-tree", "-p", "-U0", "--no-renames", "--no-ext-diff", "--no-textconv", f"{commit['hash']}^", commit["hash"])
    path = None
    for part in re.split(r"(?m)^(?=diff --git |@@ )", diff):
        if part.startswith("diff --git "):
            path = re.search(r"(?m)^\+\+\+ b/(.*)$", part)[1].rstrip("\t")
        elif part.startswith("@@ "):
            row, rows = re.match(r"@@ -(\d+)(?:,(\d+))? ", part).groups()
            yield path, int(row), int(rows or 1), part.partition("\n")[2]


def shown(repository: Path, commit: dict, path: str, row: int, rows: int, change: str) -> str:
    before = git(repository, "show", f"{commit['hash']}^:{path}").split("\n")
    first = row if rows else row + 1  # `-12,0` means: behind line 12
    above = before[max(0, first - 1 - AROUND) : first - 1]
    below = before[first - 1 + rows : first - 1 + rows + AROUND]
    return "".join(f"  {line}\n" for line in above) + change + "".join(f"  {line}\n" for line in below)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--sample", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, default=Path("legacy-out"))
    options = options.parse_args()
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(ROOT))
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)  # what an earlier run with the same gradfix did is not done again
    clones = []
    for source in sorted(p.parent for p in options.folder.glob("*/.git")):
        clones.append(out / "repositories" / source.name)
        if not clones[-1].exists():
            git(out, "clone", "--quiet", "--no-hardlinks", str(source.resolve()), str(clones[-1]))
    wrong = []
    all_rewrites = []
    totals: collections.Counter[str] = collections.Counter()
    print("repository | files | notebooks | findings | rewrites | changed files | not read")
    for clone, record in zip(clones, migrate(out, "report", clones)):
        if record["state"] != "done":
            wrong.append(f"{clone.name}: {record['error']}")
            continue
        changed = sorted({f for c in record["commits"] for f in c["files"]})
        for path in changed:
            if reason := why_not_valid(path, git_bytes(clone, f"{BRANCH}:{path}")):
                wrong.append(f"{clone.name}: {path}: {reason}")
        wrong += [f"{clone.name}: {p['path']}: {p['message']}" for p in record["problems"] if "crash" in p["message"]]
        mine = [(clone, c, *r) for c in record["commits"] for r in rewrites(clone, c)]
        all_rewrites += mine
        totals.update(record["found"])
        notebooks = sum(p.endswith(".ipynb") for p in git(clone, "ls-files").split("\n"))
        found = ", ".join(f"{n} {code}" for code, n in record["found"].items())
        print(f"{clone.name} | {record['files']} | {notebooks} | {found} | {len(mine)} | {len(changed)} | {len(record['problems'])}")
    again = []
    for clone in clones:
        shutil.rmtree(out / "again" / clone.name, ignore_errors=True)
        again.append(out / "again" / clone.name)
        git(out, "clone", "--quiet", "--shared", str(clone), str(again[-1]))
        if git(clone, "branch", "--list", BRANCH):
            git(again[-1], "checkout", "--quiet", "--detach", f"origin/{BRANCH}")
    for clone, record in zip(again, migrate(out, "again", again)):
        if record["state"] != "done" or record["commits"]:
            wrong.append(f"{clone.name}: the second run: {record['error'] or [c['subject'] for c in record['commits']]}")
    print(f"{len(clones)} repositories, {sum(totals.values())} findings, {len(all_rewrites)} rewrites")
    print("; ".join(f"{code} {n}" for code, n in sorted(totals.items())))
    by_rule = collections.Counter(c["code"] for _, c, *_ in all_rewrites)
    print("rewrites: " + "; ".join(f"{code} {n}" for code, n in sorted(by_rule.items())))
    drawn = random.Random(options.seed).sample(all_rewrites, min(options.sample, len(all_rewrites)))
    with open(out / "sample.txt", "w", encoding="utf-8", errors="surrogateescape") as handle:
        for number, (clone, commit, path, row, rows, change) in enumerate(drawn, 1):
            handle.write(f"=== {number}: {clone.name} {path}:{row} {commit['code']} {commit['rule']}\n")
            handle.write(shown(clone, commit, path, row, rows, change) + "\n")
    for line in wrong:
        print(f"WRONG {line}")
    sys.exit(bool(wrong))


def git_bytes(folder: Path, what: str) -> bytes:
    return subprocess.run(["git", "-c", "safe.directory=*", "show", what], cwd=folder, capture_output=True, check=True).stdout


if __name__ == "__main__":
    main()

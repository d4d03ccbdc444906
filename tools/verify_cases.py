"""Does `gradfix apply --verify --unsafe-fixes` prove its repairs of real mistakes, and refuse broken ones?

    python tools/verify_cases.py FOLDER [--only TEXT] [--mutants N] [--jobs N] [--verbose]

FOLDER holds a folder per case: `case.toml` beside `before.py`, `before.ipynb` or `before/main.py`.  A case counts where an
`[[expect]]` of it has `action = "fix"`; a folder `_lib` above it is on the path of its runs.  The repair that stays must be
`preserved`, `gained` or `repaired`; versions of it that are broken mechanically (see `mutate_repairs.py`) must not, unless
their runs show nothing else than the right one's.  Exit code 1 when one of the two is otherwise.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mutate_repairs import Mutant, mutants, nothing_differs  # noqa: E402

from gradfix import config, engine  # noqa: E402
from gradfix.codemod import load  # noqa: E402
from gradfix.harness.judge import Judgement  # noqa: E402
from gradfix.harness.project import Verification  # noqa: E402
from gradfix.harness.rewrites import Rewriter  # noqa: E402
from gradfix.harness.run import Limits, Runs  # noqa: E402
from gradfix.runner import Runner  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass
class Case:
    folder: Path
    rules: set[str] = field(default_factory=set)  # those of which a fix is expected

    @property
    def name(self) -> str:
        return "/".join(self.folder.parts[-2:])

    @property
    def legacy(self) -> bool:
        return self.folder.parent.name == "legacy" or any("legacy" in rule for rule in self.rules)

    def copy(self, target: Path) -> Path:
        """Put what is to be repaired there; the script to run."""
        before = self.folder / "before"
        if before.is_dir():
            shutil.copytree(before, target)
            return target / "main.py"
        target.mkdir()
        script = next(p for p in self.folder.glob("before.*") if p.suffix in (".py", ".ipynb"))
        return Path(shutil.copy(script, target / f"main{script.suffix}"))


def cases(folder: Path, only: str) -> list[Case]:
    out = []
    for path in sorted(folder.resolve().rglob("case.toml")):
        expected = tomllib.loads(path.read_text(encoding="utf-8")).get("expect", [])
        rules = {name for e in expected if e.get("action") == "fix" for name in e["rule"].split("|")}
        case = Case(path.parent, rules)
        if rules and only in case.name:
            out.append(case)
    return out


@dataclass
class Outcome:
    case: Case
    judgement: Judgement | None = None  # None: nothing was rewritten
    refused: list[str] = field(default_factory=list)
    broken: list[tuple[str, Mutant, Judgement, bool]] = field(default_factory=list)  # path, mutant, verdict, is it the same
    notebook: bool = False

    @property
    def good(self) -> bool:
        return self.judgement is not None and self.judgement.good

    def survivors(self) -> Iterator[str]:
        for path, mutant, judged, same in self.broken:
            if judged.good and not same:
                yield f"{path}:{mutant.row}: {mutant.operator}: {judged.verdict.value}: {judged.reason}"


def run(case: Case, runs: Runs, most: int) -> Outcome:
    """What `apply --verify --unsafe-fixes` does with a copy of the case, and what becomes of broken versions."""
    rules = load()
    active = {rule.code for rule in rules} if case.legacy else config.default_codes(rules)
    out = Outcome(case)
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        script = case.copy(Path(folder).resolve() / "case")
        os.chdir(script.parent)
        try:
            files = sorted(str(p.relative_to(script.parent)) for p in script.parent.rglob("*") if p.suffix in (".py", ".ipynb"))
            rewriter = Rewriter(files, engine.Settings(rules, active, unsafe_fixes=True), Runner(1))
            work = Verification(rewriter, [script.name], runs, Limits(timeout=60))
            done, refused = work.keep()
            out.refused = [f"{r.finding.code} {r.finding.name}: {j.verdict.value}: {j.reason}" for r, j in refused]
            if not done.after:
                return out
            prover = work.provers[script.name]
            out.judgement = right = prover.prove(done.before, done.after, done.rewrites)
            if not right.good:
                return out
            for path, data in done.after.items():
                if path.endswith(".ipynb"):
                    out.notebook = True
                    continue
                made = mutants(done.before[path], data)
                if most < len(made):
                    made = random.Random(case.name).sample(made, most)
                for mutant in made:
                    judged = prover.prove(done.before, {**done.after, path: mutant.data}, done.rewrites)
                    same = judged.good and (
                        nothing_differs(right.after, judged.after) or nothing_differs(right.before, judged.after)
                    )
                    out.broken.append((path, mutant, judged, same))
        finally:
            os.chdir(here)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name holds this")
    parser.add_argument("--mutants", type=int, default=1 << 30, metavar="N", help="only so many broken versions of each file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="every case, not only the exceptions")
    options = parser.parse_args()
    chosen = cases(options.folder, options.only)
    library = next((p / "_lib" for p in (options.folder.resolve(), *options.folder.resolve().parents) if (p / "_lib").is_dir()), None)
    if library is not None:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(library), os.environ.get("PYTHONPATH")]))
    verdicts: collections.Counter = collections.Counter()
    caught = survived = same = notebooks = 0
    wrong = False
    with Runs(options.jobs) as runs:
        for case in chosen:
            outcome = run(case, runs, options.mutants)
            verdict = outcome.judgement.verdict.value if outcome.judgement is not None else "not rewritten"
            verdicts[verdict] += 1
            notebooks += outcome.notebook
            survivors = list(outcome.survivors())
            mine = sum(is_same for *_, is_same in outcome.broken)
            survived, same = survived + len(survivors), same + mine
            caught += len(outcome.broken) - len(survivors) - mine
            wrong = wrong or not outcome.good or bool(survivors)
            if options.verbose or not outcome.good or outcome.refused:
                print(f"{case.name}: {verdict}: {outcome.judgement.reason if outcome.judgement is not None else ''}", flush=True)
                for line in outcome.refused:
                    print(f"  refused: {line}", flush=True)
            for line in survivors:
                print(f"  survived: {case.name}: {line}", flush=True)
    print(f"{len(chosen)} cases that expect a fix: " + ", ".join(f"{n} {name}" for name, n in sorted(verdicts.items())))
    print(f"broken on purpose: {caught} caught, {survived} survived; {same} more show nothing else than the right repair")
    if notebooks:
        print(f"{notebooks} notebooks were not broken: the mutations are of plain Python files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

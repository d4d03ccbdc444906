"""From paths to verdicts: which scripts run, which rewrites they prove, and which rewrites may stay."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gradfix.findings import Verdict
from gradfix.harness.judge import GOOD, Judgement, Prover
from gradfix.harness.rewrites import Rewrite, Rewriter, Rewritten, text_of
from gradfix.harness.run import Limits, Runs, locate
from gradfix.source import data_of


@dataclass
class Proof:
    """What one script says of the rewrites that it runs."""

    path: str
    device: str
    judgement: Judgement
    rewrites: list[tuple[Rewrite, Judgement]] = field(default_factory=list)


def is_script(text: str) -> bool:
    """Whether running the file does more than define things."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and not any(isinstance(n, ast.Call) for n in ast.walk(node)):
            continue
        if isinstance(node, ast.Try) and all(isinstance(n, (ast.Import, ast.ImportFrom)) for n in node.body):
            continue
        return True
    return False


class Verification:
    """Everything about one set of files on one device."""

    def __init__(
        self,
        rewriter: Rewriter,
        scripts: Sequence[str],
        runs: Runs,
        limits: Limits,
        tolerance: float | None = None,
    ):
        self.rewriter, self.runs, self.limits = rewriter, runs, limits
        self.scripts = list(scripts)
        self.provers = {path: Prover(runs, locate(path, limits), tolerance) for path in self.scripts}
        self.everything = rewriter.make()
        self._loads: dict[str, set[str]] = {}

    def loads(self, script: str) -> set[str]:
        """The real paths of the project's files that a run of the script loads."""
        if script not in self._loads:
            prover = self.provers[script]
            record, _ = prover.original({})
            root = prover.script.root
            self._loads[script] = {os.path.join(root, *name.split("/")) for name in record.modules} | {prover.script.path}
        return self._loads[script]

    def proofs(self) -> list[Proof]:
        """A proof of each script that loads a rewritten file, or that has none; files that no script loads."""
        out = []
        changed = {os.path.realpath(path) for path in self.everything.after}
        reached: set[str] = set()
        for script in self.scripts:
            if not changed:
                out.append(Proof(script, self.limits.device, Judgement(Verdict.PRESERVED, "nothing to rewrite")))
                continue
            mine = self.loads(script) & changed
            reached |= mine
            if not mine:
                _, why = self.provers[script].original({})
                judgement = Judgement(Verdict.PRESERVED, "nothing to rewrite in what it runs")
                if why is not None and changed:
                    judgement = Judgement(Verdict.INCONCLUSIVE, why)
                out.append(Proof(script, self.limits.device, judgement))
                continue
            out.append(self.proof(script, mine))
        for path in sorted(self.everything.after):
            if os.path.realpath(path) not in reached:
                lost = Judgement(Verdict.INCONCLUSIVE, "no script here runs it")
                rewrites = [(r, lost) for r in self.everything.rewrites if any(p == path for p, _ in r.edited)]
                if path in self.scripts:
                    continue
                out.append(Proof(path, self.limits.device, lost, rewrites))
        return out

    def proof(self, script: str, loaded: set[str]) -> Proof:
        prover, done = self.provers[script], self.everything
        rewrites = [r for r in done.rewrites if any(os.path.realpath(p) in loaded for p, _ in r.edited)]
        whole = prover.prove(done.before, done.after, done.rewrites)
        if len(rewrites) < 2 or whole.before is None or whole.after is None:
            return Proof(script, self.limits.device, whole, [(r, whole) for r in rewrites])
        ordered = sorted(rewrites, key=lambda r: (r.finding.path, r.finding.span.row))
        parts = []
        previous, known = Rewritten({}, {}, [], done.applied), []
        for rewrite in ordered:
            known.append(rewrite.key)
            step = self.rewriter.make(known)
            judged = self._step(prover, previous, step, [rewrite])
            if whole.good and not judged.good:
                judged = Judgement(whole.verdict, f"as part of the whole ({judged.reason} where it stands alone)")
            parts.append((rewrite, judged))
            previous = step
        return Proof(script, self.limits.device, whole, parts)

    def _step(self, prover: Prover, old: Rewritten, new: Rewritten, rewrites: list[Rewrite]) -> Judgement:
        paths = sorted({*old.after, *new.after})
        original = self.rewriter.original
        before = {p: old.after.get(p, data_of(original, p)) for p in paths}
        after = {p: new.after.get(p, data_of(original, p)) for p in paths}
        changed = [p for p in paths if before[p] != after[p]]
        if not changed:
            return Judgement(Verdict.INCONCLUSIVE, "it needs another rewrite first")
        if old.after:  # rows of the findings are those of the original: find them in the text before this step
            rewrites = [self._moved(r, before) for r in rewrites]
        return prover.prove(
            {p: before[p] for p in changed},
            {p: after[p] for p in changed},
            rewrites,
            old.overlay(),
            new.overlay(),
            {p: data_of(original, p) for p in changed},
        )

    def _moved(self, rewrite: Rewrite, texts: dict[str, bytes]) -> Rewrite:
        import dataclasses

        from gradfix.harness.align import Rows

        def move(path: str, rows) -> tuple[int, ...]:
            if path not in texts:
                return tuple(rows)
            table = Rows(text_of(path, data_of(self.rewriter.original, path)), text_of(path, texts[path]))
            wanted = {table.old.get(row, ("row", row)) for row in rows}
            return tuple(sorted(new for new, key in table.new.items() if key in wanted))

        return dataclasses.replace(
            rewrite,
            rows=tuple((p, move(p, r)) for p, r in rewrite.rows),
            own=move(rewrite.finding.path, rewrite.own),
            edited=tuple((p, move(p, r)) for p, r in rewrite.edited),
            parts=tuple((p, new, i) for p, row, i in rewrite.parts for new in move(p, [row])),
            reads=tuple((p, new, text) for p, row, text in rewrite.reads for new in move(p, [row])),
        )

    # ---- what may stay

    def keep(self, say: Callable[[str], None] = lambda text: None) -> tuple[Rewritten, list[tuple[Rewrite, Judgement]]]:
        """The largest set of rewrites that every script approves, found by halving; the others with the evidence."""
        refused: dict[tuple, tuple[Rewrite, Judgement]] = {}
        everything = self.everything.rewrites

        def judge(chosen: list[Rewrite]) -> Judgement:
            if len(chosen) == len(everything):
                done = self.everything
            else:
                done = self.rewriter.make([r.key for r in chosen])
            return self.judge(done)

        kept: list[Rewrite] = []

        def sift(group: list[Rewrite]) -> None:
            nonlocal kept
            if not group:
                return
            judged = judge(kept + group)
            if judged.good:
                kept = kept + group
                for rewrite in group:
                    refused.pop(rewrite.key, None)
                return
            if len(group) == 1:
                refused[group[0].key] = (group[0], judged)
                return
            middle = len(group) // 2
            sift(group[:middle])
            sift(group[middle:])

        sift(list(everything))
        while refused and kept:  # one that could not be judged alone may be judged beside those that stay
            again = [r for r, j in refused.values() if j.verdict in (Verdict.INCONCLUSIVE, Verdict.FAILED)]
            count = len(kept)
            for rewrite in again:
                sift([rewrite])
            if len(kept) == count:
                break
        done = self.rewriter.make([r.key for r in kept]) if len(kept) < len(everything) else self.everything
        return done, list(refused.values())

    def judge(self, done: Rewritten) -> Judgement:
        """The worst verdict of the scripts that run what was rewritten."""
        changed = {os.path.realpath(path) for path in done.after}
        reached: set[str] = set()
        best: Judgement | None = None
        for script in self.scripts:
            mine = self.loads(script) & changed
            if not mine:
                continue
            judged = self.provers[script].prove(done.before, done.after, done.rewrites)
            if judged.verdict is Verdict.INCONCLUSIVE:
                best = best or judged
                continue
            if not judged.good:
                return judged
            reached |= mine
            if best is None or best.verdict in (Verdict.INCONCLUSIVE, Verdict.PRESERVED):
                best = judged
        if best is None:
            return Judgement(Verdict.INCONCLUSIVE, "no script here runs it")
        if missing := changed - reached:
            if best.verdict in GOOD:
                return Judgement(Verdict.INCONCLUSIVE, f"no script here proves {os.path.basename(sorted(missing)[0])}")
        return best

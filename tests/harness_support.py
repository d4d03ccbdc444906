"""Scripts in temporary folders, run by one server for the whole session."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path

from fixture_support import is_legacy, settings

from gradfix.findings import Verdict
from gradfix.harness.judge import Judgement, Prover
from gradfix.harness.rewrites import Rewriter, Rewritten
from gradfix.harness.run import Limits, Runs, Script
from gradfix.runner import Runner

LIMITS = Limits(timeout=30)


@functools.lru_cache(maxsize=None)
def runs() -> Runs:
    return Runs(2)


def script(path: Path, limits: Limits = LIMITS, root: Path | None = None) -> Script:
    real = path.resolve()
    folder = (root or real.parent).resolve()
    return Script(str(real), str(folder), str(real.parent), limits)


def write(folder: Path, source: str, name: str = "script.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path


def rewritten(path: Path) -> Rewritten:
    return Rewriter([str(path)], settings(legacy=is_legacy(path.parent.name)), Runner(1)).make()


def prove(path: Path, done: Rewritten | None = None, after: bytes | None = None) -> Judgement:
    """The verdict on GradFix's own rewrite of a script, or on another text put in its place."""
    done = done if done is not None else rewritten(path)
    files = done.after if after is None else {str(path): after}
    before = done.before if after is None else {str(path): path.read_bytes()}
    return Prover(runs(), script(path)).prove(before, files, done.rewrites)


__all__ = ["Verdict", "prove", "rewritten", "runs", "script", "write"]

"""The fixtures, and what GradFix says and does about each, worked out once per session."""

from __future__ import annotations

import difflib
import functools
import re
from pathlib import Path

from gradfix import config, engine
from gradfix.codemod import load
from gradfix.runner import Runner

ROOT = Path(__file__).parent.parent / "fixtures"
SHOWCASE = ROOT / "showcase" / "train.py"
FIXTURES = sorted(p for p in ROOT.glob("*/*.py") if p != SHOWCASE)
RULES = [rule for rule in load() if rule.code != "GF001"]
NAME = "script.py"  # what a fixture is called while it is checked: messages must not depend on the checkout


def fixture_id(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def is_legacy(name: str) -> bool:
    """Is it a rule (or its folder) of the group that is off by default?"""
    return name.startswith("legacy-")


def settings(unsafe_fixes: bool = True, legacy: bool = False) -> engine.Settings:
    rules = load()
    active = {rule.code for rule in rules} if legacy else config.default_codes(rules)
    return engine.Settings(rules, active, unsafe_fixes=unsafe_fixes)


def check(data: bytes, legacy: bool = False) -> engine.Result:
    return engine.check([NAME], settings(legacy=legacy), Runner(1), {NAME: data})


def apply(data: bytes, unsafe_fixes: bool = True, legacy: bool = False) -> tuple[bytes, engine.Applied]:
    applied = engine.apply([NAME], settings(unsafe_fixes, legacy), Runner(1), {NAME: data})
    return applied.after.get(NAME, data), applied


@functools.lru_cache(maxsize=None)
def repaired(path: Path) -> tuple[bytes, engine.Applied]:
    return apply(path.read_bytes(), legacy=is_legacy(path.parent.name))


def found(result: engine.Result) -> list[tuple[str, int]]:
    return sorted({(f.code, f.span.row) for f in result.findings})


def expected(path: Path) -> list[tuple[str, int]]:
    """(code, row) of each `# expect: CODE` comment; a line may hold several codes."""
    rows = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return sorted({(code, row) for row, line in rows for code in re.findall(r"GF\d+", line.partition("# expect:")[2])})


def diff(before: bytes, after: bytes) -> str:
    old, new = (data.decode("utf-8").splitlines(keepends=True) for data in (before, after))
    return "".join(difflib.unified_diff(old, new, "before", "after"))

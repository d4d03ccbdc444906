"""Paths given by the user -> Python files and notebooks, relative to the working folder where possible."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from pathspec import GitIgnoreSpec

from gradfix.findings import Problem
from gradfix.source import os_reason

DEFAULT_EXCLUDES = frozenset(
    ".bzr .direnv .eggs .git .hg .ipynb_checkpoints .mypy_cache .nox .pytest_cache .ruff_cache .svn .tox .venv "
    "__pycache__ __pypackages__ build dist node_modules venv".split()
)


class Patterns:
    """Gitignore-style patterns, relative to `base`."""

    def __init__(self, base: str, lines: Iterable[str]):
        self.base = os.path.abspath(base)
        self.spec = GitIgnoreSpec.from_lines(lines)
        self._empty = not any(True for p in self.spec.patterns if p.include is not None)

    def verdict(self, path: str, folder: bool = False) -> bool | None:
        """True: matched, False: matched by a `!` pattern, None: not matched.  `path` is absolute."""
        if self._empty:
            return None
        prefix = self.base if self.base.endswith(os.sep) else self.base + os.sep
        if path.startswith(prefix):
            relative = path[len(prefix) :]
        else:
            return None
        relative = relative.replace(os.sep, "/") + ("/" if folder else "")
        return self.spec.check_file(relative).include


def _gitignore(folder: str, name: str = ".gitignore") -> Patterns | None:
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as handle:
            return Patterns(folder, handle.read().splitlines())
    except (OSError, ValueError):
        return None


def _above(folder: str) -> list[Patterns]:
    """The ignore files from the root of the repository down to the parent of `folder`."""
    chain, here = [], folder
    while True:
        if os.path.exists(os.path.join(here, ".git")):
            break
        parent = os.path.dirname(here)
        if parent == here:
            return []
        chain.append(parent)
        here = parent
    found = [_gitignore(here, os.path.join(".git", "info", "exclude"))]
    if found[0] is not None:
        found[0].base = here
    found += [_gitignore(f) for f in reversed(chain)]
    found = [p for p in found if p is not None]
    parts, here = [], folder
    while here not in chain[-1:] and os.path.dirname(here) != here and here in [folder, *chain]:
        parts.append(here)
        here = os.path.dirname(here)
    if any(_ignored(found, part, True) for part in reversed(parts)):
        return []  # the user named an ignored folder, so its files are wanted
    return found


def _ignored(stack: Sequence[Patterns], path: str, folder: bool) -> bool:
    for patterns in reversed(stack):
        verdict = patterns.verdict(path, folder)
        if verdict is not None:
            return verdict
    return False


def shown(path: str) -> str:
    """`path` relative to the working folder where it lies inside it, else absolute."""
    absolute = os.path.abspath(path)
    try:
        here = os.getcwd()
    except OSError:
        return absolute
    prefix = here if here.endswith(os.sep) else here + os.sep
    return absolute[len(prefix) :] if absolute.startswith(prefix) else absolute


def is_excluded(path: str, excludes: Sequence[Patterns]) -> bool:
    """Whether `path` or a folder above it (inside the patterns' base or the working folder) is excluded."""
    absolute = os.path.abspath(path)
    if any(p.verdict(absolute) for p in excludes):
        return True
    return any(part in DEFAULT_EXCLUDES for part in shown(path).split(os.sep)[:-1])


def discover(
    paths: Sequence[str], excludes: Sequence[Patterns] = (), force_exclude: bool = False, markdown: bool = False
) -> tuple[list[str], list[Problem]]:
    endings = (".py", ".pyw", ".ipynb", *([".md"] if markdown else []))
    problems: list[Problem] = []
    found: list[str] = []

    def walk(folder: str, stack: list[Patterns]):
        own = _gitignore(folder)
        if own is not None:
            stack = [*stack, own]
        try:
            with os.scandir(folder) as entries:
                entries = sorted(entries, key=lambda e: e.name)
        except OSError as error:
            problems.append(Problem(shown(folder), os_reason(folder, error)))
            return
        folders = []
        for entry in entries:
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                continue
            if is_folder:
                if entry.name in DEFAULT_EXCLUDES:
                    continue
                folders.append(entry.path)
            elif entry.name.endswith(endings):
                if not _ignored(stack, entry.path, False) and not any(p.verdict(entry.path) for p in excludes):
                    add(entry.path)
        for path in folders:
            if not _ignored(stack, path, True) and not any(p.verdict(path, True) for p in excludes):
                walk(path, stack)

    def add(path: str):
        if not os.path.exists(path):
            if os.path.islink(path):
                problems.append(Problem(shown(path), "broken symbolic link"))
            else:
                try:
                    os.stat(path)
                except OSError as error:
                    problems.append(Problem(shown(path), os_reason(path, error)))
            return
        if os.path.isfile(path):
            found.append(path)

    for given in paths:
        if "\0" in given:
            problems.append(Problem(given.replace("\0", "\\0"), "no such file or directory"))
            continue
        path = os.path.abspath(given)
        if force_exclude and is_excluded(path, excludes):
            continue
        if os.path.isdir(path):
            walk(path, _above(path))
        elif os.path.lexists(path) and os.path.exists(path) and not os.path.isfile(path):
            problems.append(Problem(shown(path), "neither a file nor a folder"))
        elif os.path.exists(path):
            found.append(path)
        else:
            reason = "broken symbolic link" if os.path.islink(path) else "no such file or directory"
            try:
                os.stat(path)
            except PermissionError:
                reason = "no permission to read it"
            except OSError:
                pass
            problems.append(Problem(shown(path), reason))

    unique: dict[str, str] = {}
    for path in sorted(set(found), key=lambda p: (os.path.islink(p), p)):
        unique.setdefault(os.path.realpath(path), path)
    return sorted(shown(p) for p in unique.values()), problems

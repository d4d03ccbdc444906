"""From what the user named to jobs: folders, git repositories, manifests."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Sequence

import msgspec

from gradfix import codemod, config
from gradfix.config import ConfigError
from gradfix.migrate import git
from gradfix.migrate.records import Job, Kind, Mode, Options, Record, dumps

TIMEOUT = 600.0
MEMORY = 4096


class Entry(Options, kw_only=True):
    source: str
    name: str | None = None


class Manifest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    defaults: Options = msgspec.field(default_factory=Options)
    repos: list[Entry]


def read_manifest(path: str) -> list[tuple[str, str | None, Options]]:
    """(source, name, options) of each repository; paths start at the manifest's folder."""
    try:
        with open(path, "rb") as handle:
            data = config.tomllib.loads(handle.read().decode("utf-8"))
        manifest = msgspec.convert(data, Manifest)
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (config.tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_explained(str(error))}") from None
    base = os.path.dirname(os.path.abspath(path))
    out = []
    for entry in manifest.repos:
        if not entry.source or entry.source.startswith("-"):
            raise ConfigError(f"{path}: {entry.source!r} is no source of a repository")
        source = entry.source
        if not git.is_url(source):
            source = os.path.join(base, os.path.expanduser(source))
        own = Options(**{f: getattr(entry, f) for f in Options.__struct_fields__})
        for inside in [*manifest.defaults.paths, *own.paths]:
            if os.path.isabs(inside) or os.path.normpath(inside).split(os.sep)[0] in ("..", "~"):
                raise ConfigError(f"{path}: {inside!r} in paths lies outside of the repository")
        out.append((source, entry.name, layered(manifest.defaults, own)))
    return out


def _explained(message: str) -> str:
    where = re.search(r" - at `\$\.?(.*)`", message)
    place = f" (at {where[1]})" if where and where[1] else ""
    message = re.sub(r" - at `.*`", "", message)
    if unknown := re.search(r"unknown field `(.*?)`", message):
        known = Manifest if not place else Options if "defaults" in place else Entry
        names = ", ".join(f.encode_name for f in msgspec.structs.fields(known))
        return f"unknown key {unknown[1]!r}{place}; known: {names}"
    return f"{message}{place}"


def layered(low: Options, high: Options) -> Options:
    """`high` on top of `low`: lists add up, but a selection replaces the one below it."""
    out = {}
    for name in Options.__struct_fields__:
        a, b = getattr(low, name), getattr(high, name)
        adds_up = isinstance(a, list) and isinstance(b, list) and name not in ("select", "paths", "verify_command")
        out[name] = a + b if adds_up else a if b is None or b == [] else b
    return Options(**out)


def kind_of(source: str) -> tuple[str, Kind, list[str]]:
    """(the repository or folder, what it is, the paths inside it that were meant)."""
    if git.is_url(source):
        return source, "url", []
    path = os.path.abspath(source)
    top = git.top_of(path)
    if top is None:
        return path, "folder", []
    if top == path:
        return path, "git", []
    if git.tracks(top, path):
        return top, "git", [os.path.relpath(path, top)]
    return path, "folder", []  # a folder that lies in a repository by chance


def repositories_in(folder: str) -> list[str]:
    """The repositories directly inside a folder that is none itself, nor part of one."""
    folder = os.path.abspath(folder)
    top = git.top_of(folder)
    if top is not None and (top == folder or git.tracks(top, folder)):
        return []
    try:
        entries = sorted(e.path for e in os.scandir(folder) if e.is_dir())
    except OSError:
        return []
    return [path for path in entries if git.top_of(path) == path]


def plan(sources: Sequence[str], given: Options, mode: Mode, clones: str, scratch: str) -> tuple[list[Job], list[Record]]:
    """The jobs, and a record of each source that there is nothing to do with."""
    named: list[tuple[str, str | None, Options]] = []
    problems: list[Record] = []

    def refuse(source: str, why: str):
        problems.append(Record(name=source, source=source, state="failed", mode=mode, error=why))

    for source in sources:
        if source.endswith(".toml") and not os.path.isdir(source):
            named += [(s, name, layered(o, given)) for s, name, o in read_manifest(source)]
        else:
            named.append((source, None, given))
    expanded = []
    for source, name, options in named:
        if git.is_url(source):
            expanded.append((source, name, options))
        elif not os.path.isdir(source):
            what = "is no folder, repository or manifest" if os.path.exists(source) else "no such file or directory"
            refuse(source, what)
        else:
            inside = repositories_in(source)
            expanded += [(s, None, options) for s in inside] if inside else [(source, name, options)]
    rules = codemod.load()
    jobs: list[Job] = []
    names: set[str] = set()
    seen: set[tuple] = set()
    for source, name, options in expanded:
        check_selectors(options, rules)
        try:
            place, kind, inside = kind_of(source)
        except git.GitError as error:
            refuse(source, str(error))
            continue
        paths = [os.path.join(*inside, p) for p in options.paths] if inside and options.paths else options.paths or inside
        options = msgspec.structs.replace(
            options,
            paths=sorted(paths),
            timeout=options.timeout or TIMEOUT,
            memory=options.memory or MEMORY,
        )
        if (key := (place, dumps(options))) in seen:
            continue
        seen.add(key)
        name = free_name(name or default_name(source), names)
        jobs.append(Job(name=name, source=place, kind=kind, options=options, mode=mode, branch="", clones=clones, scratch=scratch))
    return jobs, problems


def check_selectors(options: Options, rules) -> None:
    """A wrong rule name or version is said at once, not once for each repository."""
    for selectors in (options.select or [], options.extend_select, options.ignore, options.unfixable, options.extend_safe_fixes):
        config.codes(selectors, rules)
    if options.target_torch is not None:
        config.parse_torch(options.target_torch)
    if options.timeout is not None and options.timeout <= 0 or options.memory is not None and options.memory <= 0:
        raise ConfigError("timeout and memory must be more than 0")


def default_name(source: str) -> str:
    stem = re.split(r"[/\\:]", source.rstrip("/\\"))[-1] if git.is_url(source) else os.path.basename(os.path.abspath(source))
    return stem.removesuffix(".git") or "repository"


def free_name(wanted: str, taken: set[str]) -> str:
    """One that can be a file's name, used once."""
    stem = "".join(c if c.isalnum() or c in "-_.+ " else "-" for c in wanted).lstrip(".-") or "repository"
    name, number = stem, 1
    while name.casefold() in taken:
        number += 1
        name = f"{stem}-{number}"
    taken.add(name.casefold())
    return name


# --------------------------------------------------------------------- identity


def identity(job: Job) -> str:
    """Jobs of equal identity give equal records as long as the repository is the same."""
    options = msgspec.structs.replace(job.options, timeout=None, memory=None)
    return digest([code_version(), job.source, job.kind, job.mode, dumps(options)])


def digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


@functools.cache
def code_version() -> str:
    """Changes with the code of GradFix and of the rules that are installed."""
    import sys

    found = hashlib.sha256()
    packages = {"gradfix"} | {r.module_name.partition(".")[0] for r in codemod.load()}
    for package in sorted(packages):
        for root in getattr(sys.modules.get(package), "__path__", []):
            for folder, _, names in sorted(os.walk(root)):
                for name in sorted(names):
                    if name.endswith((".py", ".json")):
                        with open(os.path.join(folder, name), "rb") as handle:
                            found.update(name.encode() + handle.read())
    return found.hexdigest()

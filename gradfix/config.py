"""`[tool.gradfix]` in pyproject.toml, or gradfix.toml; and which rules the selectors mean."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

FORMATS = ("full", "concise", "json", "json-lines", "sarif", "rdjson", "rdjsonl", "github", "gitlab", "junit")
NEWEST_TORCH = (2, 13)


class ConfigError(Exception):
    pass


class Rule(Protocol):
    """What the selectors need to know of a rule; the floor above says what a rule is."""

    code: str
    name: str
    default_on: bool
    options: dict[str, tuple[str, ...]]


class Config(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    select: list[str] | None = None
    ignore: list[str] = []
    extend_select: list[str] = []
    unfixable: list[str] = []
    extend_safe_fixes: list[str] = []
    exclude: list[str] = []
    include_markdown: bool = False
    per_file_ignores: dict[str, list[str]] = {}
    target_torch: str | None = None
    output_format: str | None = None
    rule_options: dict[str, dict] = {}  # the tables named after rules
    origin: str = ""  # the file, for error messages


KEYS = tuple(f.encode_name for f in msgspec.structs.fields(Config) if f.name not in ("rule_options", "origin"))


def rule_options(config: Config, rules: Sequence[Rule]) -> dict[str, dict[str, str]]:
    """The tables named after rules (`[tool.gradfix.retain-grad]`), checked against what each rule can be told."""
    known = {rule.name: rule.options for rule in rules}
    for name, table in config.rule_options.items():
        where = f"{config.origin}: [{name}] " if config.origin else f"[{name}] "
        if name not in known:
            raise ConfigError(f"{config.origin}: unknown key {name!r} (known: {', '.join(KEYS)}, and the names of rules)")
        for option, value in table.items():
            if option not in known[name]:
                given = ", ".join(known[name]) or "none"
                raise ConfigError(f"{where}unknown option {option!r} (options of this rule: {given})")
            if value not in known[name][option]:
                raise ConfigError(f"{where}{option} = {value!r} is none of {', '.join(map(repr, known[name][option]))}")
    return dict(config.rule_options)


def read_config(path: str) -> tuple[Config | None, str]:
    """The config in `path` (None: a pyproject.toml without `[tool.gradfix]`) and the folder its patterns start from."""
    try:
        with open(path, "rb") as handle:
            data = tomllib.loads(handle.read().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    base = os.path.dirname(os.path.abspath(path))
    where = ""
    if os.path.basename(path) == "pyproject.toml":
        tool = data.get("tool", {})
        if not isinstance(tool, dict) or "gradfix" not in tool:
            return None, base
        data, where = tool["gradfix"], "[tool.gradfix] "
    tables = {key: value for key, value in data.items() if isinstance(value, dict) and key not in KEYS}
    data = {key: value for key, value in data.items() if key not in tables}
    try:
        for key in ("rule-options", "origin"):
            if key in data:
                raise msgspec.ValidationError(f"Object contains unknown field `{key}`")
        config = msgspec.convert({**data, "rule-options": tables, "origin": path}, Config)
    except msgspec.ValidationError as error:
        text = str(error)
        if match := re.search(r"unknown field `(.*?)`", text):
            known = ", ".join(KEYS)
            raise ConfigError(f"{path}: {where}unknown key {match[1]!r} (known: {known})") from None
        text = re.sub(r" - at `\$\.?(.*)`", lambda m: f" (at {m[1]})" if m[1] else "", text)
        raise ConfigError(f"{path}: {where}{text}") from None
    try:
        if config.target_torch is not None:
            parse_torch(config.target_torch)
        if config.output_format is not None and config.output_format not in FORMATS:
            raise ConfigError(f"unknown output format {config.output_format!r} (known: {', '.join(FORMATS)})")
    except ConfigError as error:
        raise ConfigError(f"{path}: {where}{error}") from None
    return config, base


def find_config(start: str) -> str | None:
    """The nearest gradfix.toml, or pyproject.toml with `[tool.gradfix]`, from `start` upwards."""
    here = os.path.abspath(start)
    while True:
        for name in ("gradfix.toml", "pyproject.toml"):
            path = os.path.join(here, name)
            if os.path.isfile(path):
                if name == "gradfix.toml" or _names_us(path):
                    return path
        parent = os.path.dirname(here)
        if parent == here:
            return None
        here = parent


def _names_us(path: str) -> bool:
    try:
        with open(path, "rb") as handle:
            data = handle.read()
    except OSError:
        return False
    if b"gradfix" not in data:
        return False
    try:
        tool = tomllib.loads(data.decode("utf-8")).get("tool", {})
        return isinstance(tool, dict) and "gradfix" in tool
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return b"[tool.gradfix" in data  # read_config says what is wrong with it


def start_folder(paths: Sequence[str]) -> str:
    folders = []
    for path in paths:
        path = os.path.abspath(path)
        folders.append(path if os.path.isdir(path) else os.path.dirname(path))
    try:
        return os.path.commonpath(folders) if folders else os.getcwd()
    except ValueError:
        return os.getcwd()


def parse_torch(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", text.strip())
    if not match:
        raise ConfigError(f"target-torch {text!r} is no version such as 2.13")
    return int(match[1]), int(match[2])


# ------------------------------------------------------------------------ selectors


def split(values: Iterable[str] | None) -> list[str]:
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def matching(selector: str, rules: Sequence[Rule]) -> tuple[int, set[str]]:
    """(how specific it is, codes) of a code, a prefix of codes, a name, or ALL."""
    if selector.upper() == "ALL":
        return 0, {r.code for r in rules}
    for rule in rules:
        if selector in (rule.code, rule.name):
            return 100, {rule.code}
    if re.fullmatch(r"[A-Z]+[0-9]*", selector):
        found = {r.code for r in rules if r.code.startswith(selector)}
        if found or re.fullmatch(r"GF[0-9]{0,2}", selector):  # a group that has no rule yet is no mistake
            return len(selector), found
    import difflib

    near = difflib.get_close_matches(selector, [n for r in rules for n in (r.code, r.name)], 1)
    raise ConfigError(f"unknown rule {selector!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))


def codes(selectors: Iterable[str], rules: Sequence[Rule]) -> set[str]:
    return {code for s in selectors for code in matching(s, rules)[1]}


def default_codes(rules: Sequence[Rule]) -> set[str]:
    return {r.code for r in rules if r.default_on and not r.code.startswith("GF9")}


def _layer(start: set[str], select, extend, ignore, rules) -> set[str]:
    """More specific selectors win; at the same specificity, `ignore` wins."""
    chosen = set() if select is not None else set(start)
    steps = []
    for selectors, add in ((select or (), True), (extend, True), (ignore, False)):
        for selector in selectors:
            rank, found = matching(selector, rules)
            steps.append((rank, not add, found))
    for _, removes, found in sorted(steps, key=lambda s: s[:2]):
        chosen = chosen - found if removes else chosen | found
    return chosen


def selected(
    rules: Sequence[Rule],
    config: Config,
    select: Sequence[str] | None = None,
    extend_select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> set[str]:
    """Codes of the rules that run: the config's selection, then the command line's on top (as ruff does)."""
    chosen = _layer(default_codes(rules), config.select, config.extend_select, config.ignore, rules)
    return _layer(chosen, select, extend_select, ignore, rules)

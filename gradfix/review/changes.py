"""What a change touches: a unified diff, read from git, from a file or from the review platform.

Rows are git's here: only "\\n" ends one.  Text is the file's bytes decoded as UTF-8 with `surrogateescape`, so that
files of any encoding survive.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

import unidiff
import unidiff.constants

from gradfix.discovery import shown
from gradfix.review import ReviewError
from gradfix.source import read_bytes

SUFFIXES = (".py", ".pyw", ".ipynb", ".md")


@dataclass(frozen=True)
class Hunk:
    start: int  # rows of the new file, from 1, both inclusive; empty (`end < start`) where a hunk only removes
    end: int
    added: frozenset[int]
    old_rows: dict[int, int]  # of the unchanged rows
    new_lines: tuple[str, ...]  # with their ends
    old_lines: tuple[str, ...]

    def holds(self, start: int, end: int) -> bool:
        return self.start <= start <= end <= self.end


@dataclass(frozen=True)
class FileChange:
    path: str  # as the diff names it: from the root of the repository
    old_path: str | None  # None: a new file
    hunks: tuple[Hunk, ...] = ()
    deleted: bool = False
    hidden: bool = False  # it differs, but the diff does not have its lines (marked as binary, or too large)

    def hunk(self, start: int, end: int) -> Hunk | None:
        """The hunk that holds all these rows."""
        return next((h for h in self.hunks if h.holds(start, end)), None)

    def old_row(self, row: int) -> int | None:
        """Where an unchanged row stood before."""
        shift = 0
        for hunk in self.hunks:
            if row < hunk.start:
                break
            if row <= hunk.end:
                return hunk.old_rows.get(row)
            shift += len(hunk.old_lines) - len(hunk.new_lines)
        return row + shift

    def touches(self, rows: Iterable[int], context: bool) -> bool:
        for hunk in self.hunks:
            if any(row in hunk.added or context and hunk.start <= row <= hunk.end for row in rows):
                return True
        return False


@dataclass
class Changes:
    root: str  # what the paths in the diff start from
    files: list[FileChange]
    head: str | None = None  # commits, where git knows them
    base: str | None = None  # the merge base
    start: str | None = None  # the tip of the branch that the change goes to
    by_path: dict[str, FileChange] = field(init=False)  # by the path as findings have it

    def __post_init__(self):
        self.by_path = {self.local(f.path): f for f in self.files if not f.deleted}

    def local(self, path: str) -> str:
        return shown(os.path.join(self.root, path))


# ------------------------------------------------------------------------- parsing


def as_git_writes_it(data: bytes) -> bytes:
    """A diff that went through an editor or a shell which writes UTF-16, a byte order mark, or its own line ends, or that
    git coloured."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", "replace").encode("utf-8", "surrogatepass")
    data = data.removeprefix(codecs.BOM_UTF8)
    if re.search(rb"^\x1b\[[0-9;]*m(?:diff --git|--- )", data, re.M):
        data = re.sub(rb"\x1b\[[0-9;]*m", b"", data)
    headers = re.findall(rb"^(?:--- |\+\+\+ |@@ |diff --git )[^\n]*\n", data, re.M)
    if headers and all(line.endswith(b"\r\n") for line in headers):
        data = data.replace(b"\r\n", b"\n")
    return data


def parse(text: str) -> list[FileChange]:
    if re.search(r"^diff --(?:cc|combined) ", text, re.M):
        raise ReviewError("the diff can't be read: that of a merge has several old sides; `git diff A B` makes one that has one")
    try:
        patch = unidiff.PatchSet.from_string(text)
    except unidiff.UnidiffParseError as error:
        raise ReviewError(f"the diff can't be read: {error}") from None
    files = [_file(entry) for entry in patch]
    seen = Counter(f.path for f in files if not f.deleted)
    if twice := next((path for path, times in seen.items() if times > 1), None):
        raise ReviewError(f"the diff has {twice} twice: a series of patches is no change; `git diff A B` makes one of it")
    return files


def parse_hunks(patch: str | None) -> tuple[Hunk, ...]:
    """Of one file's diff without its header, as platforms send it."""
    if not patch:
        return ()
    return parse(f"--- a/x\n+++ b/x\n{patch}" + ("" if patch.endswith("\n") else "\n"))[0].hunks


def _file(entry: unidiff.PatchedFile) -> FileChange:
    new, old = _name(entry.target_file), _name(entry.source_file)
    return FileChange(
        path=old if entry.is_removed_file else new,
        old_path=None if entry.is_added_file else old,
        hunks=tuple(map(_hunk, entry)),
        deleted=entry.is_removed_file,
        hidden=entry.is_binary_file,
    )


def _hunk(hunk: unidiff.Hunk) -> Hunk:
    new, old, added, old_rows = [], [], set(), {}
    last: tuple[list[str], ...] = ()
    for line in hunk:
        if line.line_type == unidiff.constants.LINE_TYPE_NO_NEWLINE:
            for lines in last:
                lines[-1] = lines[-1].removesuffix("\n")
            continue
        last = {"+": (new,), "-": (old,)}.get(line.line_type, (new, old))
        for lines in last:
            lines.append(line.value)
        if line.is_added:
            added.add(line.target_line_no)
        elif line.is_context:
            old_rows[line.target_line_no] = line.source_line_no
    # Without new lines, `target_start` is the row before; with some, the first of them.
    start = hunk.target_start if new else hunk.target_start + 1
    return Hunk(start, start + len(new) - 1, frozenset(added), old_rows, tuple(new), tuple(old))


_ESCAPES = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}


def _name(name: str) -> str:
    """A file name of a diff header, without prefix and, where git quoted it, unquoted."""
    if len(name) > 1 and name[0] == name[-1] == '"':
        raw = re.sub(
            rb"\\([0-7]{3}|.)",
            lambda m: bytes([int(m[1], 8)]) if len(m[1]) == 3 else _ESCAPES.get(m[1].decode(), m[1].decode()).encode(),
            name[1:-1].encode("utf-8", "surrogateescape"),
        )
        name = raw.decode("utf-8", "surrogateescape")
    return re.sub(r"^[abciow12]/", "", name)


# ----------------------------------------------------------------------- from where


def git(*arguments: str, stdin: bytes = b"", **environment: str) -> bytes:
    """What a git command prints.  It runs in the working folder and starts no helper that a repository configures."""
    command = ["git", "-c", "core.quotePath=false", "-c", "core.fsmonitor=false", *arguments]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", **environment}
    try:
        done = subprocess.run(command, capture_output=True, input=stdin, env=env)
    except OSError:
        raise ReviewError("git is not installed; make the diff elsewhere and give it by --diff") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise ReviewError(f"git {arguments[0]}: {said[0].removeprefix('fatal: ')}")
    return done.stdout


def git_root() -> str:
    return os.path.abspath(os.fsdecode(git("rev-parse", "--show-cdup").rstrip(b"\n")) or ".")


def likely_root() -> str:
    """The root of the repository; without git, the working folder, where CI starts."""
    try:
        return git_root()
    except ReviewError:
        return os.getcwd()


def commit(revision: str) -> str:
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}").decode().strip()
    except ReviewError:
        git("rev-parse", "--git-dir")  # says so where there is no repository
        raise ReviewError(f"{revision} is no commit that git knows here (fetch it first?)") from None


def from_git(base: str, untracked: Container[str] = ()) -> Changes:
    """The change since the merge base of `base` and HEAD, with what is not committed yet.

    Of the files that git does not know, those in `untracked` are new ones.
    """
    if base == "HEAD" and before_the_first_commit():
        return _since(git("hash-object", "-t", "tree", "--stdin").decode().strip(), untracked)  # a tree that holds nothing
    tip, head = commit(base), commit("HEAD")
    try:
        merge_base = git("merge-base", tip, head).decode().split()[0]
    except (ReviewError, IndexError):
        why = "the clone may be shallow (fetch with full history), or the histories are unrelated"
        raise ReviewError(f"{base} and HEAD have no merge base: {why}") from None
    return _since(merge_base, untracked, head=head, base=merge_base, start=tip)


def before_the_first_commit() -> bool:
    try:
        git("symbolic-ref", "--quiet", "HEAD")
    except ReviewError:
        return False
    try:
        commit("HEAD")
    except ReviewError:
        return True
    return False


def _since(tree: str, untracked: Container[str], **commits: str) -> Changes:
    root = git_root()
    options = ["--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules", "--find-renames", "--unified=3"]
    options += ["--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=default", "--no-relative"]
    options += ["--text"]  # whatever attributes say: a notebook that they call binary has lines
    names = [f":(top,glob)**/*{suffix}" for suffix in SUFFIXES]  # no data files: they can be huge
    with _with_untracked(root, names, untracked) as environment:
        diff = git("diff", *options, tree, "--", *names, **environment)
    return Changes(root, parse(diff.decode("utf-8", "surrogateescape")), **commits)


@contextlib.contextmanager
def _with_untracked(root: str, names: list[str], wanted: Container[str]) -> Iterator[dict[str, str]]:
    """An environment in which git takes the wanted files for ones that are about to be added.

    For that it gets a copy of the index: its own stays as it is.  So it finds renames, too.
    """
    others = git("-C", root, "ls-files", "-z", "--others", "--exclude-standard", "--", *names).split(b"\0")
    new = [name for name in others if name and shown(os.path.join(root, os.fsdecode(name))) in wanted]
    if not new:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="gradfix-review-") as folder:
        index = os.path.join(folder, "index")
        with contextlib.suppress(FileNotFoundError):  # nothing was ever added
            shutil.copyfile(os.path.abspath(os.fsdecode(git("rev-parse", "--git-path", "index").rstrip(b"\n"))), index)
        objects = os.path.abspath(os.fsdecode(git("rev-parse", "--git-path", "objects").rstrip(b"\n")))
        environment = {
            "GIT_INDEX_FILE": index,
            "GIT_OBJECT_DIRECTORY": folder,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
        }
        paths = b"\0".join(b":(top,literal)" + name for name in new)
        git("-C", root, "add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul", stdin=paths, **environment)
        yield environment


def from_diff(data: bytes) -> Changes:
    """A diff that somebody else made: its paths start from the root of the repository, else from the working folder."""
    files = parse(as_git_writes_it(data).decode("utf-8", "surrogateescape"))
    if data.strip() and not files:
        raise ReviewError("the diff can't be read: it names no file")
    root = likely_root()
    try:
        head = commit("HEAD")
    except ReviewError:
        head = None
    # As `git diff --relative` writes them.
    if not any(os.path.exists(os.path.join(root, f.path)) for f in files) and any(os.path.exists(f.path) for f in files):
        root = os.getcwd()
    return Changes(root, files, head)


# -------------------------------------------------------------- files and their past


def raw_lines(data: bytes) -> list[str]:
    parts = data.decode("utf-8", "surrogateescape").split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def misfit(hunk: Hunk, lines: list[str]) -> int | None:
    """The first row at which the file is not what the hunk says."""
    for row, line in enumerate(hunk.new_lines, hunk.start):
        if row > len(lines) or _plain(lines[row - 1]) != _plain(line):
            return row
    return None


def _plain(line: str) -> str:
    """For comparison: platforms send text, in which bytes that are no UTF-8 are replaced."""
    return line.rstrip("\r\n").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def old_contents(changes: Changes) -> dict[str, bytes | None]:
    """What the files of the change held before it, by the path as findings have it (None: nothing).

    The hunks are taken back, so that it works without the history.
    """
    out: dict[str, bytes | None] = {}
    for file in changes.files:
        if file.old_path is None:
            out[changes.local(file.path)] = None
            continue
        lines = [] if file.deleted else raw_lines(read_bytes(changes.local(file.path)))
        for hunk in reversed(file.hunks):
            lines[hunk.start - 1 : hunk.end] = hunk.old_lines
        if file.old_path != file.path:
            out.setdefault(changes.local(file.path), None)
        out[changes.local(file.old_path)] = "".join(lines).encode("utf-8", "surrogateescape")
    return out

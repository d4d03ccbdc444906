"""git as this package uses it: never a prompt, a hook or a pager, and nothing written into a repository until the end.

A checkout here is a folder of ours with an index of ours.  New objects go to a folder of ours too (git itself calls
that a quarantine), so a run that is killed leaves the repository as it was.  `publish` moves the finished commits over
and creates the branch in one step.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess

QUIET = [
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false",
    "-c", "core.sparseCheckout=false", "-c", "core.fileMode=false", "-c", "core.safecrlf=false",
    "-c", "core.quotePath=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "advice.detachedHead=false",
]  # fmt: skip
# What a caller's own git set (a hook, `git rebase --exec`) would send ours to another repository.
LOCAL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
         "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CEILING_DIRECTORIES", "GIT_EXTERNAL_DIFF")  # fmt: skip
LOCK_MILLISECONDS = 3000  # git itself holds the lock of a branch for a few milliseconds
FALLBACK_IDENTITY = ("GradFix", "gradfix@localhost")


class GitError(Exception):
    pass


def environment(**more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in LOCAL}
    env.update(GIT_TERMINAL_PROMPT="0", GIT_OPTIONAL_LOCKS="0", LC_ALL="C.UTF-8", GIT_LFS_SKIP_SMUDGE="1")
    env.setdefault("GIT_ASKPASS", "true")
    env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    env.update(more)
    return env


def git(*arguments: str, cwd: str | None = None, data: bytes | None = None, env: dict[str, str] | None = None) -> bytes:
    """Its output; `GitError` with its first telling line when it fails."""
    given = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
    try:
        done = subprocess.run(
            ["git", *QUIET, *arguments], cwd=cwd, capture_output=True, env=env or environment(), **given
        )
    except FileNotFoundError:
        raise GitError("git is not installed") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        telling = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
        words = re.sub(r"^(fatal|error): ", "", telling[0]) if telling else f"exit code {done.returncode}"
        raise GitError(f"git {arguments_name(arguments)}: {words}")
    return done.stdout


def arguments_name(arguments) -> str:
    return next((a for a in arguments if not a.startswith("-") and "=" not in a and os.sep not in a), "")


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape").strip()


def is_url(source: str) -> bool:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source):
        return True
    return bool(re.match(r"[\w.-]+@[\w.-]+:|[\w.-]{2,}:(?![\\/]{2})\S+\.git$", source)) and not os.path.exists(source)


def top_of(folder: str) -> str | None:
    """The repository that `folder` is, or is part of: its top folder, or the bare repository itself."""
    here = os.path.abspath(folder)
    if all(os.path.exists(os.path.join(here, part)) for part in ("HEAD", "objects", "refs")):
        return here
    while True:
        if os.path.exists(os.path.join(here, ".git")):
            return here
        parent = os.path.dirname(here)
        if parent == here:
            return None
        here = parent


def tracks(top: str, folder: str) -> bool:
    """Whether git knows a file of `folder`."""
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(top))
    return bool(git("-C", top, "ls-files", "-z", "--", inside))


def clone(url: str, target: str) -> None:
    """Bring `url` to `target` (a bare repository), or bring what is there up to date.  A clone appears whole or not."""
    if os.path.isdir(target):
        git("--git-dir", target, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--", url, "+HEAD:refs/gradfix/head")
        return
    half = f"{target}.{os.getpid()}.half"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    git("init", "--quiet", "--bare", half)
    git("--git-dir", half, "remote", "add", "origin", url)
    git("--git-dir", half, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "origin", "+HEAD:refs/gradfix/head")
    git("--git-dir", half, "symbolic-ref", "HEAD", "refs/gradfix/head")
    try:
        os.rename(half, target)
    except OSError:
        if not os.path.isdir(target):  # else someone else was faster
            raise


class Repository:
    """A repository seen through an index and an object folder of ours under `scratch`."""

    def __init__(self, git_dir: str, scratch: str):
        self.git_dir = git_dir
        self.scratch = scratch
        common = text(git("--git-dir", git_dir, "rev-parse", "--path-format=absolute", "--git-path", "objects"))
        self.objects = os.path.join(scratch, "objects")
        os.makedirs(self.objects, exist_ok=True)
        self.env = environment(
            GIT_OBJECT_DIRECTORY=self.objects,
            GIT_ALTERNATE_OBJECT_DIRECTORIES=_quoted(common),
            GIT_INDEX_FILE=os.path.join(scratch, "index"),
        )

    @classmethod
    def open(cls, folder: str, scratch: str) -> Repository:
        found = text(git("-C", folder, "rev-parse", "--path-format=absolute", "--git-dir"))
        return cls(found, scratch)

    @classmethod
    def of_folder(cls, folder: str, scratch: str) -> tuple[Repository, str]:
        """A throw-away repository that holds `folder` as its only commit; the same content gives the same commit."""
        home = os.path.join(scratch, "repository")
        git("init", "--quiet", "--bare", home)
        self = cls(home, scratch)
        plain = ["-c", "core.autocrlf=false", "-c", "core.attributesFile=/dev/null", "-c", "core.fileMode=true"]
        self.git(*plain, "add", "--all", "--force", ".", tree=folder)
        tree = text(self.git("write-tree"))
        base = self.commit(tree, None, "Before gradfix", "946684800 +0000", FALLBACK_IDENTITY)
        return self, base

    def git(self, *arguments: str, tree: str | None = None, data: bytes | None = None) -> bytes:
        where = ["--git-dir", self.git_dir] + (["--work-tree", tree] if tree else [])
        return git(*where, *arguments, cwd=tree, data=data, env=self.env)

    def head(self) -> str:
        try:
            return text(self.git("rev-parse", "--verify", "--quiet", "HEAD^{commit}"))
        except GitError:
            pass
        try:
            self.git("rev-parse", "--verify", "--quiet", "HEAD")
        except GitError:
            raise GitError("has no commit yet") from None
        raise GitError("its last commit can't be read (is the repository damaged?)")

    def checkout(self, commit: str, folder: str) -> None:
        """The files of `commit` in `folder`, and in the index."""
        os.makedirs(folder, exist_ok=True)
        self.git("read-tree", commit)
        self.git("checkout-index", "--all", "--force", "--quiet", tree=folder)

    def stage(self, folder: str, paths: list[str]) -> str:
        """Take the new content of `paths` (relative to `folder`) into the index; the tree that results."""
        names = b"".join(os.fsencode(p) + b"\0" for p in paths)
        self.git("update-index", "-z", "--stdin", tree=folder, data=names)
        return text(self.git("write-tree"))

    def identity(self) -> tuple[str, str]:
        """Name and mail of the user's configuration, or ours."""
        out = []
        for key, fallback in zip(("user.name", "user.email"), FALLBACK_IDENTITY):
            try:
                out.append(text(self.git("config", "--get", key)) or fallback)
            except GitError:
                out.append(fallback)
        return out[0], out[1]

    def date(self, commit: str) -> tuple[int, str]:
        """Committer date: seconds and time zone."""
        seconds, _, zone = text(self.git("show", "--no-patch", "--format=%cd", "--date=raw", commit)).partition(" ")
        return int(seconds), zone

    def commit(self, tree: str, parent: str | None, message: str, date: str, identity: tuple[str, str]) -> str:
        name, mail = identity
        env = dict(self.env)
        for who in ("AUTHOR", "COMMITTER"):
            env.update({f"GIT_{who}_NAME": name, f"GIT_{who}_EMAIL": mail, f"GIT_{who}_DATE": date})
        parents = ["-p", parent] if parent else []
        made = git("--git-dir", self.git_dir, "-c", "commit.gpgSign=false", "-c", "i18n.commitEncoding=utf-8",
                   "commit-tree", tree, *parents, data=message.encode("utf-8", "replace"), env=env)  # fmt: skip
        return text(made)

    def diff(self, old: str, new: str) -> str:
        out = self.git("diff-tree", "-p", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", old, new)
        return out.decode("utf-8", "surrogateescape")

    def patch(self, commit: str, number: int, of: int) -> str:
        """`commit` as mail that `git am` takes, untouched by the user's settings for mail."""
        env = dict(self.env, GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
        count = f"{number}/{of}" if of > 1 else ""
        prefix = f"--subject-prefix=PATCH {count}".rstrip()
        out = git("--git-dir", self.git_dir, "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false",
                  "format-patch", "-1", "--stdout", "--no-signature", "--no-thread", "--no-attach", "--no-numbered",
                  "--no-renames", "--no-ext-diff", "--no-color", "--zero-commit", prefix, commit, env=env)  # fmt: skip
        return out.decode("utf-8", "surrogateescape")

    def tip(self, branch: str) -> str | None:
        try:
            return text(git("--git-dir", self.git_dir, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}"))
        except GitError:
            return None

    def publish(self, branch: str, base: str, tip: str) -> str:
        """Make `branch` point at `tip`; where a branch of that name holds something else, the next free name.

        Done twice it does nothing more, so it does not matter when a run is killed.
        """
        pack = self.git("pack-objects", "--quiet", "--revs", "--stdout", data=f"{tip}\n^{base}\n".encode())
        env = environment()
        git("--git-dir", self.git_dir, "unpack-objects", "-q", data=pack, env=env)
        name, number = branch, 1
        while (old := self.tip(name)) != tip:
            if old is not None:
                number += 1
                name = f"{branch}-{number}"
                continue
            create = ["update-ref", "-m", "gradfix migrate", f"refs/heads/{name}", tip, "0" * len(tip)]
            lock = self.lock(name)
            try:
                git("--git-dir", self.git_dir, "-c", f"core.filesRefLockTimeout={LOCK_MILLISECONDS}", *create, env=env)
            except GitError:
                # Someone else may have been faster: the worker of a run that is just being killed.
                if self.tip(name) is None and not self.unlock(name, lock):
                    raise
        return name

    def lock(self, branch: str) -> tuple[int, int] | None:
        """Which file locks the branch, if one does."""
        try:
            found = os.stat(self.lock_path(branch))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def lock_path(self, branch: str) -> str:
        shared = text(git("--git-dir", self.git_dir, "rev-parse", "--path-format=absolute", "--git-common-dir"))
        return os.path.join(shared, "refs", "heads", f"{branch}.lock")

    def unlock(self, branch: str, seen: tuple[int, int] | None) -> bool:
        """Remove the lock that a killed git left: one that stood for all the time that git waited is nobody's."""
        if seen is None or self.lock(branch) != seen:
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.lock_path(branch))
        return True


def _quoted(path: str) -> str:
    """For GIT_ALTERNATE_OBJECT_DIRECTORIES, where a colon separates."""
    if os.pathsep in path or path.startswith('"'):
        escaped = path.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return path

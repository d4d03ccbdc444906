"""`check --watch`: look again whenever a file changes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import watchfiles

ENDINGS = (".py", ".pyw", ".ipynb", ".md")
CONFIGS = ("gradfix.toml", "pyproject.toml")
STEP = 200  # milliseconds between looks at the files above the watched folders


class Relevant(watchfiles.DefaultFilter):
    def __call__(self, change, path: str) -> bool:
        name = os.path.basename(path)
        ours = name.endswith(ENDINGS) or name in (*CONFIGS, ".gitignore")
        # What is put into a new folder at once is not reported by itself.
        ours = ours or change is watchfiles.Change.added and os.path.isdir(path)
        return ours and super().__call__(change, path)


def changes(paths: Sequence[str], start: str) -> Iterator[list[str]]:
    """The files that changed, as often as some do; the first time none.  Ends at an interrupt.

    A config above the watched folders counts, too: it is looked for from `start` upwards.
    """
    folders = {os.path.abspath(p) if os.path.isdir(p) else os.path.dirname(os.path.abspath(p)) for p in paths}
    above = state(start)
    first = True
    for found in watchfiles.watch(*sorted(folders), watch_filter=Relevant(), yield_on_timeout=True, rust_timeout=STEP):
        before, above = above, state(start)
        changed = {path for _, path in found} | {path for path in {*before, *above} if before.get(path) != above.get(path)}
        if changed or first:  # what changes during a check is reported after it
            yield sorted(changed)
        first = False


def state(folder: str) -> dict[str, tuple[int, int]]:
    out = {}
    folder = os.path.abspath(folder)
    while True:
        for name in CONFIGS:
            try:
                info = os.stat(os.path.join(folder, name))
                out[os.path.join(folder, name)] = (info.st_mtime_ns, info.st_size)
            except OSError:
                pass
        if folder == os.path.dirname(folder):
            return out
        folder = os.path.dirname(folder)

"""Loaded into the Python processes of a command: records each of them from the moment it imports torch."""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.util
import os
import sys


class _Loader(importlib.abc.Loader):
    """Another loader, with something to do afterwards."""

    def __init__(self, true, then):
        self.true, self.then = true, then

    def create_module(self, spec):
        return self.true.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.true
        self.true.exec_module(module)
        self.then()


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the import of torch."""

    def __init__(self, then):
        self.then = then

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.then)
        return spec


def load() -> None:
    folder = os.environ.get("GRADFIX_RECORDS")
    root = os.environ.get("GRADFIX_ROOT")
    if not folder or not root:
        return
    number = len(os.listdir(folder))
    place = os.path.join(folder, f"{number:04}-{os.getpid()}")
    open(place, "wb").close()

    def install():
        from gradfix.harness import record
        from gradfix.harness.trace import Job, encode

        job = Job(script=root, root=root, folder=root, result=place, temporary=folder)
        recorder = record.Recorder(job, sys.modules["__main__"])
        record.seed_all(0)
        recorder.install()

        def write():
            if os.getpid() == recorder.pid:
                recorder.on = False
                with open(place, "wb") as handle:
                    handle.write(encode(recorder.record))

        atexit.register(write)

    if "torch" in sys.modules:
        install()
    else:
        sys.meta_path.insert(0, _Finder(install))

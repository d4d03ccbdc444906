"""In the child: run one script and watch its gradients, without changing it.

What is watched are torch's own doors: `torch.autograd.backward` and `grad`, reads of `Tensor.grad`, optimizer steps.
Tensors are known by the name under which the script can reach them (`net.fc.weight`, `params[0]`), since names, unlike
objects, mean the same in two runs.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import importlib
import importlib.machinery
import io
import linecache
import os
import random
import runpy
import signal
import struct
import sys
import sysconfig
import threading
import time
import types
import warnings
import weakref
import zlib

import torch

from gradfix.source import decode, in_cells
from gradfix.harness.trace import FORMATS, Event, Failure, Held, Job, Place, Record, Value, encode

SMALL = 4096  # elements; larger tensors are kept as digests
STORE = 64 << 20  # bytes of tensor contents that one record may hold
MOST_EVENTS = 200_000
MOST_OUTPUT = 1 << 20
MOST_NAMES = 20_000  # objects looked at to name the tensors of one event

# A project may hold the environment that it runs in, and a checkout of GradFix: neither is the user's code.
_elsewhere = (os.path.dirname(os.path.dirname(__file__)), *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
NOT_MINE = tuple({f(p) + os.sep for p in _elsewhere for f in (os.path.abspath, os.path.realpath)})

_grad = torch._C.TensorBase.__dict__["grad"]
_is_writing = frozenset("wax+")


def warm_up() -> None:
    """Import what most scripts need, once.  No backward here: autograd's threads would not survive the fork."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    importlib.import_module("torch.utils.data")


# ------------------------------------------------------------------------- values


class Values:
    """Tensors as plain data, within a budget."""

    def __init__(self):
        self.left = STORE

    def of(self, tensor, roughly: bool = False) -> Value | None:
        """`roughly`: a large one is told from another by its sum and norm alone."""
        if tensor is None:
            return None
        with torch._C.DisableTorchFunction():
            if tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                return Value(_names[tensor.dtype], list(tensor.shape), None, b"", 0.0, 0.0)  # there are no contents
            try:
                array = tensor.numpy(force=True)
            except (TypeError, RuntimeError):  # a layout or a dtype that NumPy does not have
                tensor = _on_cpu(tensor.detach()).contiguous()
                array = tensor.view(-1).view(torch.uint8).numpy()
            dtype = tensor.dtype
            name, shape = _names[dtype], list(tensor.shape)
            if self.left > array.nbytes and tensor.numel() <= SMALL and name in FORMATS:
                self.left -= array.nbytes
                return Value(name, shape, array.tobytes(), b"", 0.0, 0.0)
            numbers = tensor.detach()
            if dtype is not torch.float32 and dtype is not torch.float64:
                numbers = _on_cpu(numbers.abs() if dtype.is_complex else numbers).double()
            numbers = numbers.reshape(-1)
            total, norm = numbers.sum().item(), numbers.dot(numbers).item() ** 0.5
            if roughly:
                digest = struct.pack("<dd", total, norm)
            else:  # against accidents, not against intent, and twice as fast as what would be
                digest = zlib.crc32(array if array.flags.c_contiguous else array.tobytes()).to_bytes(4, "little")
            return Value(name, shape, None, digest, total, norm)


def _on_cpu(t):
    """Any tensor as a plain one in main memory."""
    if t.layout is not torch.strided:
        t = t.to_dense()
    if t.is_quantized:
        t = t.dequantize()
    return t.resolve_conj().resolve_neg().cpu()


class _Names(dict):
    """`float32` for `torch.float32`, worked out once."""

    def __missing__(self, dtype):
        self[dtype] = str(dtype).removeprefix("torch.")
        return self[dtype]


_names = _Names()


# -------------------------------------------------------------------------- names


class Names:
    """The names of tensors: through the globals of the script first, then the locals of the running functions."""

    def __init__(self, mine, main: types.ModuleType):
        self.mine = mine
        self.main = main
        self.known: dict[int, tuple[weakref.ref, str]] = {}

    def of(self, tensors, frame) -> list[str | None]:
        names = [self._cached(t) for t in tensors]
        if None in names:
            missing = {id(t): t for t, name in zip(tensors, names) if name is None}
            for name, found in self.walk(frame):
                if id(found) in missing:
                    del missing[id(found)]
                    self.known[id(found)] = (weakref.ref(found), name)
                    if not missing:
                        break
            names = [self._cached(t) for t in tensors]
        return names

    def _cached(self, tensor) -> str | None:
        entry = self.known.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def walk(self, frame):
        """(name, tensor) of everything in reach, outermost first."""
        frames = []
        while frame is not None:
            if self.mine(frame.f_code.co_filename):
                frames.append(frame)
            frame = frame.f_back
        seen: set[int] = {id(self.main.__dict__)}
        budget = [MOST_NAMES]
        yield from self._inside(self.main.__dict__, "{}", seen, budget, 0)
        for frame in reversed(frames):
            if frame.f_code.co_name == "<module>":
                if frame.f_globals is not self.main.__dict__:
                    yield from self._inside(frame.f_globals, "{}", seen, budget, 0)
            else:
                yield from self._inside(frame.f_locals, "{}", seen, budget, 0)

    def _inside(self, mapping, pattern, seen, budget, depth):
        for key, value in list(mapping.items()):
            if pattern == "{}" and (not isinstance(key, str) or key.startswith("__")):
                continue
            yield from self._visit(pattern.format(key if pattern == "{}" else repr(key)), value, seen, budget, depth)

    def _visit(self, name, value, seen, budget, depth):
        budget[0] -= 1
        if budget[0] < 0 or depth > 5:
            return
        try:
            yield from self._parts(name, value, seen, budget, depth)
        except Exception:  # objects whose own methods raise: they keep their tensors to themselves
            return

    def _parts(self, name, value, seen, budget, depth):
        if isinstance(value, _PLAIN):
            return
        if isinstance(value, torch.Tensor):
            yield name, value
            return
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, (list, tuple)):
            for i, item in enumerate(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)):
                yield from self._visit(f"{name}[{i}]", item, seen, budget, depth + 1)
        elif isinstance(value, dict):
            for key, item in list(dict.items(value)):
                if isinstance(key, (str, int, tuple)):
                    yield from self._visit(f"{name}[{key!r}]", item, seen, budget, depth + 1)
        elif isinstance(value, torch.nn.Module):
            for kind in (value._parameters, value._buffers, value._modules):
                for key, item in list(kind.items()):
                    if isinstance(value, _LISTS):  # as in the plain list that it may have been
                        inner = f"{name}[{key}]"
                    elif isinstance(value, _DICTS):
                        inner = f"{name}[{key!r}]"
                    else:
                        inner = f"{name}.{key}"
                    yield from self._visit(inner, item, seen, budget, depth)
            for key, item in list(value.__dict__.items()):
                if not key.startswith("_") and key not in ("training",):
                    yield from self._visit(f"{name}.{key}", item, seen, budget, depth + 1)
        elif not isinstance(value, (type, torch.optim.Optimizer)) and self.mine_class(type(value)):
            for key, item in [*getattr(value, "__dict__", {}).items(), *in_slots(value)]:
                yield from self._visit(f"{name}.{key}", item, seen, budget, depth + 1)

    def mine_class(self, cls) -> bool:
        if cls is types.SimpleNamespace or cls.__module__ == "__main__":
            return True
        module = sys.modules.get(cls.__module__)
        return module is not None and self.mine(getattr(module, "__file__", None) or "")


def in_slots(value) -> list[tuple[str, object]]:
    names = [name for cls in type(value).__mro__ for name in cls.__dict__.get("__slots__", ())]
    return [(name, getattr(value, name)) for name in names if not name.startswith("__") and hasattr(value, name)]


_LISTS = (torch.nn.ModuleList, torch.nn.ParameterList)
_DICTS = (torch.nn.ModuleDict, torch.nn.ParameterDict)
_PLAIN = (str, bytes, int, float, bool, type(None), types.FunctionType, types.ModuleType, types.BuiltinFunctionType)


def reached(roots) -> list[torch.Tensor]:
    """The leaves that backward from `roots` fills, in the order of a walk over the graph."""
    found: dict[int, torch.Tensor] = {}
    seen = set()
    todo = []
    for root in roots:
        if root.grad_fn is not None:
            todo.append(root.grad_fn)
        elif root.requires_grad:
            found[id(root)] = root
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found[id(variable)] = variable
        else:
            todo.extend([n for n, _ in node.next_functions if n is not None])
    return list(found.values())


def tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    try:
        return [t for t in value if isinstance(t, torch.Tensor)]
    except TypeError:
        return []


def plain_globals(main: types.ModuleType) -> dict[str, str]:
    """The global names that hold plain data (tensors inside it only count), as text."""
    out = {}
    for name, value in list(main.__dict__.items()):
        if name.startswith("__"):
            continue
        try:
            text = _plain(value, 0, [MOST_NAMES])
        except Exception:  # of an object's own methods
            continue
        if text is not None:
            out[name] = text
    return out


def _plain(value, depth: int, budget: list[int]) -> str | None:
    budget[0] -= 1
    if value is None or type(value) in (bool, int, float, complex, str):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return "tensor" if depth else None
    if depth > 4 or budget[0] < 0 or type(value) not in (list, tuple, dict):
        return None
    items = [x for pair in value.items() for x in pair] if isinstance(value, dict) else value
    parts = [_plain(item, depth + 1, budget) for item in items]
    return None if None in parts else f"{type(value).__name__}({', '.join(parts)})"


# ----------------------------------------------------------------------- recorder


class Recorder:
    def __init__(self, job: Job, main: types.ModuleType):
        self.job = job
        self.pid = os.getpid()
        self.prefix = job.root.rstrip(os.sep) + os.sep
        self.files: dict[str, str | None] = {}
        self.loaded: set[str] = set()  # files of the project that were run, besides the script
        self.main = main
        self.names = Names(lambda path: self.path_of(path) is not None, main)
        self.values = Values()
        self.record = Record()
        self.held: dict[str, torch.Tensor] = {}  # what took part in a backward, by name
        self.retained: dict[int, weakref.ref] = {}
        self.scale = 1.0
        self.inner: list[torch.Tensor] = []  # leaves that a backward inside of the one that runs fills
        self.busy = 0
        self.on = True

    def path_of(self, filename: str) -> str | None:
        """The path of a file of the user's, relative to the root; None for other files."""
        try:
            return self.files[filename]
        except KeyError:
            if filename.startswith(NOT_MINE) or "site-packages" in filename:  # most are, and looking for links is slow
                self.files[filename] = None
                return None
            path = filename
            if os.path.isabs(filename) or os.path.exists(os.path.join(self.job.folder, filename)):
                path = os.path.realpath(os.path.join(self.job.folder, filename))
            mine = path.startswith(self.prefix) and not path.startswith(NOT_MINE) and "site-packages" not in path
            self.files[filename] = path[len(self.prefix) :].replace(os.sep, "/") if mine else None
            return self.files[filename]

    def frame(self):
        """The innermost frame of the user's code."""
        frame = sys._getframe(2)
        while frame is not None and self.path_of(frame.f_code.co_filename) is None:
            frame = frame.f_back
        return frame

    def changes(self, path: str) -> bool:
        """Whether this recorder compiles that file in its own way."""
        return False

    def compile(self, source: bytes, path: str) -> types.CodeType:
        return compile(source, path, "exec", dont_inherit=True)

    def end_of_script(self) -> None:
        pass

    def place(self, frame) -> Place | None:
        return None if frame is None else Place(self.path_of(frame.f_code.co_filename), frame.f_lineno)

    def add(self, event: Event) -> None:
        if len(self.record.events) < MOST_EVENTS:
            self.record.events.append(event)
        else:
            self.record.dropped += 1

    def named(self, tensors, frame) -> dict[str, torch.Tensor]:
        out: dict[str, torch.Tensor] = {}
        unnamed = 0
        for name, tensor in zip(self.names.of(tensors, frame), tensors):
            if name is None:
                name, unnamed = f"unnamed[{unnamed}]", unnamed + 1
            while name in out:
                name += "'"
            out[name] = tensor
        return out

    # ---- the doors

    def install(self) -> None:
        self.true_backward, self.true_grad = torch.autograd.backward, torch.autograd.grad
        self.true_retain = torch.Tensor.retain_grad
        recorder = self

        def backward(tensors, *args, **kwargs):
            return recorder.backward(tensors, args, kwargs)

        def grad(outputs, inputs, *args, **kwargs):
            return recorder.grad(outputs, inputs, args, kwargs)

        def retain_grad(tensor):
            recorder.retained[id(tensor)] = weakref.ref(tensor)
            return recorder.true_retain(tensor)

        torch.autograd.backward, torch.autograd.grad = backward, grad
        torch.Tensor.retain_grad = retain_grad
        files, path_of, read = self.files, self.path_of, self.read

        def get(tensor):
            frame = sys._getframe(1)
            name = frame.f_code.co_filename
            value = _grad.__get__(tensor)
            if (files[name] if name in files else path_of(name)) is not None and recorder.on:
                return read(tensor, value, frame)
            return value

        torch.Tensor.grad = property(get, _grad.__set__, _grad.__delete__)
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(self.before_step)
        optimizer.register_optimizer_step_post_hook(self.after_step)
        self._watch_scaler()

    def _watch_scaler(self) -> None:
        """Gradients behind a `GradScaler` are scaled: remember by how much."""
        scaler = torch.amp.GradScaler
        true = scaler.scale
        recorder = self

        def scale(self, outputs):
            out = true(self, outputs)
            if self.is_enabled():
                recorder.scale = self.get_scale()
            return out

        scaler.scale = scale

    def backward(self, tensors, args, kwargs):
        if self.busy or not self.on or os.getpid() != self.pid:
            if self.busy and self.on:  # a re-entrant checkpoint, whose graph is not that of the loss
                self.inner += reached(tensors_in(tensors))
            return self.true_backward(tensors, *args, **kwargs)
        frame = self.frame()
        inputs = kwargs.get("inputs")
        leaves = tensors_in(inputs) if inputs is not None else reached(tensors_in(tensors))
        known = self.before_backward(tensors, leaves, frame, args, kwargs)
        self.inner = []
        self.busy += 1
        try:
            self.true_backward(tensors, *args, **kwargs)
        finally:
            self.busy -= 1
        if self.inner:
            mine = {id(t) for t in leaves}
            inner = list({id(t): t for t in self.inner if id(t) not in mine}.values())
            # Those without a name are the checkpoint's own copies of what went into it.
            leaves = leaves + [t for t, name in zip(inner, self.names.of(inner, frame)) if name is not None]
        self.after_backward(leaves, frame, known)

    def before_backward(self, tensors, leaves, frame, args, kwargs):
        """Whatever `after_backward` wants to know of the time before."""

    def after_backward(self, leaves, frame, known) -> None:
        named = self.named(leaves, frame)
        self.held.update(named)
        values = {name: self.values.of(_grad.__get__(t)) for name, t in named.items()}
        filled = self.named([t for t in self.kept() if _grad.__get__(t) is not None], frame) if self.inner else {}
        retained = {name: self.values.of(_grad.__get__(t)) for name, t in filled.items()}
        self.add(Event("backward", self.place(frame), values, scale=self.scale, retained=retained))

    def kept(self) -> list[torch.Tensor]:
        """The tensors, no leaves, of which the script has asked to retain the gradient."""
        self.retained = {key: ref for key, ref in self.retained.items() if ref() is not None}
        return [t for ref in list(self.retained.values()) if (t := ref()) is not None and not t.is_leaf]

    def grad(self, outputs, inputs, args, kwargs):
        if self.busy or not self.on or os.getpid() != self.pid:
            return self.true_grad(outputs, inputs, *args, **kwargs)
        frame = self.frame()
        self.busy += 1
        try:
            result = self.true_grad(outputs, inputs, *args, **kwargs)
        finally:
            self.busy -= 1
        wanted = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        named = self.named([t for t in wanted if isinstance(t, torch.Tensor)], frame)
        values = {name: self.values.of(g) for name, g in zip(named, result)}
        self.add(Event("grad", self.place(frame), values))
        return result

    def read(self, tensor, value, frame):
        if os.getpid() == self.pid:
            self.on = False
            try:
                (name,) = self.named([tensor], frame)
                self.add(Event("read", self.place(frame), {name: self.values.of(value)}))
            finally:
                self.on = True
        return value

    def before_step(self, optimizer, args, kwargs) -> None:
        # An update through `.data` leaves the version as it is; torch's own optimizers don't do that.
        copies = not type(optimizer).__module__.startswith("torch.optim")
        optimizer._gradfix_versions = [
            (p, p._version, p.detach().clone() if copies and _grad.__get__(p) is not None else None)
            for group in optimizer.param_groups
            for p in group["params"]
        ]

    def after_step(self, optimizer, args, kwargs) -> None:
        before = optimizer.__dict__.pop("_gradfix_versions", [])
        if not self.on or os.getpid() != self.pid:
            return
        frame = self.frame()
        moved = [p for p, version, copy in before if p._version != version or (copy is not None and not torch.equal(copy, p))]
        # What a step does to each number shows in the gradients that follow, and at the end.
        values = {n: self.values.of(p, roughly=True) for n, p in self.named(moved, frame).items()}
        self.add(Event("step", self.place(frame), values))

    def finish(self) -> None:
        """What the script leaves behind."""
        self.on = False
        self.record.plain = plain_globals(self.main)
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        found = {p for f in files if isinstance(f, str) and (p := self.path_of(f)) is not None}
        self.record.modules = sorted(found | self.loaded)
        held = {**self.held}
        taken = {id(t) for t in held.values()}
        for name, tensor in self.names.walk(None):
            if name in held or id(tensor) not in taken:
                held[name] = tensor
        for name, tensor in list(held.items())[:MOST_NAMES]:
            try:
                grad = self.values.of(_grad.__get__(tensor)) if tensor.is_leaf or tensor.retains_grad else None
                self.record.end[name] = Held(self.values.of(tensor), grad, tensor.requires_grad, tensor.is_leaf)
                self.record.cuda = self.record.cuda or tensor.is_cuda
            except (RuntimeError, TypeError, NotImplementedError):  # meta and other tensors without contents
                pass


# --------------------------------------------------------------------- the script


def writable(text: str) -> str:
    """With lone surrogates, which no record can hold, as Python writes them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class Output(io.TextIOBase):
    """Standard output, kept up to a limit."""

    encoding, errors, newlines = "utf-8", "backslashreplace", None

    def __init__(self):
        self.parts: list[str] = []
        self.left = MOST_OUTPUT
        self.buffer = _Bytes(self)

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self.left > 0:
            self.parts.append(text[: self.left])
            self.left -= len(text)
        return len(text)

    def writable(self):
        return True

    def fileno(self):
        return 1

    def reconfigure(self, **settings):
        """As of the text file that it stands for."""

    def text(self) -> str:
        return writable("".join(self.parts))


class _Bytes(io.RawIOBase):
    def __init__(self, output):
        self.output = output

    def writable(self):
        return True

    def write(self, data):
        self.output.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)


class Writes(BaseException):
    """The script wants to write in the user's tree: it has to run in a copy."""


def guard_files(job: Job, stop) -> None:
    """Before anything is written inside the user's tree, end the run; in a copy, refuse what lies outside of it."""
    roots = tuple(os.path.realpath(p).rstrip(os.sep) + os.sep for p in {
        job.temporary, "/dev", "/proc", os.path.expanduser("~/.cache"), *([job.root] if job.copied else []),
    })  # fmt: skip
    own = {os.path.realpath(job.result), os.path.realpath(job.result) + ".part"}
    changing = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod",
                "shutil.rmtree", "shutil.move", "sqlite3.connect"}  # fmt: skip
    pid = os.getpid()

    def hook(event, args):
        if event == "open":
            path, mode, flags = args
            if not (isinstance(mode, str) and _is_writing.intersection(mode)):
                if mode is not None or not (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                    return
            paths = [path]
        elif event in changing:
            paths = [a for a in args[:2] if isinstance(a, (str, bytes, os.PathLike))]
        elif event == "os.exec" and os.getpid() == pid and job.copied:
            stop("it becomes another program, whose gradients nobody sees", "died")
            return
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
            if not job.copied:
                stop("starts a process")
            return
        else:
            return
        for path in paths:
            if isinstance(path, int):
                continue
            try:
                full = os.path.realpath(os.fsdecode(path))
            except (TypeError, ValueError):
                continue
            if full in own or (full + os.sep).startswith(roots):
                continue
            if not job.copied:
                stop(f"writes {os.fsdecode(path)}")
            raise PermissionError(13, "a run of gradfix may write only in its copy of the project", os.fsdecode(path))

    sys.addaudithook(lambda event, args: hook(event, args) if os.getpid() == pid or not job.copied else None)


def limit_memory(extra: int) -> None:
    if not extra:
        return
    try:
        import resource

        with open("/proc/self/status") as handle:
            data = next(int(line.split()[1]) * 1024 for line in handle if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (data + extra, data + extra))
    except (ImportError, OSError, ValueError, StopIteration):
        pass


def seed_all(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(1)


def use_overlay(overlay: dict[str, bytes], recorder: Recorder) -> None:
    """Imports of these files, and `runpy`, see other contents than those on disk."""
    loader = importlib.machinery.SourceFileLoader
    true, true_of_file = loader.get_code, runpy._get_code_from_file

    def seen(path) -> types.CodeType | None:
        """The code of a file, where it is another one than that on disk."""
        path = os.path.realpath(path)
        if (mine := recorder.path_of(path)) is not None:
            recorder.loaded.add(mine)
        if path in overlay:
            return recorder.compile(overlay[path], path)
        if recorder.changes(path):
            with open(path, "rb") as handle:
                return recorder.compile(handle.read(), path)
        return None

    def get_code(self, fullname):
        return seen(self.get_filename(fullname)) or true(self, fullname)

    def get_code_of_file(*arguments):
        code, result = seen(os.fsdecode(arguments[-1])), true_of_file(*arguments)
        if code is None:
            return result
        return (code, *result[1:]) if isinstance(result, tuple) else code  # the latter since Python 3.13

    loader.get_code, runpy._get_code_from_file = get_code, get_code_of_file
    for path, data in overlay.items():
        try:
            text = importlib.util.decode_source(data)
        except (SyntaxError, UnicodeError):
            continue
        linecache.cache[path] = (len(text), None, text.splitlines(True), path)


def watch_rows(recorder: Recorder, watched: dict[str, list[int]], ran: dict[str, set[int]]):
    """Note which of these rows run, at no cost elsewhere than a look at each call."""
    wanted = {path: set(rows) for path, rows in watched.items()}
    interesting: dict[types.CodeType, tuple[set[int], set[int]] | None] = {}

    def look(code):
        path = recorder.path_of(code.co_filename)
        rows = wanted.get(path) if path is not None else None
        mine = rows and rows.intersection(line for _, _, line in code.co_lines() if line is not None)
        interesting[code] = (mine, ran.setdefault(path, set())) if mine else None
        return interesting[code]

    if hasattr(sys, "monitoring"):
        tool, events = sys.monitoring.COVERAGE_ID, sys.monitoring.events

        def start(code, offset):
            if look(code):
                sys.monitoring.set_local_events(tool, code, events.LINE)
            return sys.monitoring.DISABLE

        def line(code, row):
            mine, seen = interesting[code]
            if row in mine:
                seen.add(row)
            return sys.monitoring.DISABLE

        sys.monitoring.use_tool_id(tool, "gradfix")
        sys.monitoring.register_callback(tool, events.PY_START, start)
        sys.monitoring.register_callback(tool, events.LINE, line)
        sys.monitoring.set_events(tool, events.PY_START)
        return

    def local(frame, event, argument):
        if event == "line":
            mine, seen = interesting[frame.f_code]
            if frame.f_lineno in mine:
                seen.add(frame.f_lineno)
        return local

    def trace(frame, event, argument):
        code = frame.f_code
        return local if (interesting[code] if code in interesting else look(code)) else None

    def settrace(function):
        """For the script, which may take its own away but not this one."""
        true(function or trace)

    true, sys.settrace = sys.settrace, settrace
    threading.settrace(trace)
    true(trace)


def package_of(script: str, source: bytes) -> tuple[str | None, str]:
    """(dotted name of the script's package, folder for sys.path): only a script with relative imports has one."""
    folder = os.path.dirname(script)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None, folder
    if not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)):
        return None, folder
    parts = []
    while os.path.isfile(os.path.join(folder, "__init__.py")) or not parts:
        parts.append(os.path.basename(folder))
        folder = os.path.dirname(folder)
    return ".".join(reversed(parts)), folder


class Nothing:
    """Stands for a magic of a notebook."""

    def __getitem__(self, key):
        return self

    def __call__(self, *args, **kwargs):
        return self

    __getattr__ = __getitem__


def program_of_cells(path: str, data: bytes, main: types.ModuleType) -> bytes:
    """The cells of a notebook as one program, in which magics do nothing."""
    source = decode(path, data)
    text = source.text
    main.__dict__.update(dict.fromkeys([source.name, *source.masks], Nothing()), display=Nothing())
    return text.encode()


def failure(recorder: Recorder, error: BaseException) -> Failure:
    place, tb = None, error.__traceback__
    while tb is not None:
        path = recorder.path_of(tb.tb_frame.f_code.co_filename)
        if path is not None:
            place = Place(path, tb.tb_lineno)
        tb = tb.tb_next
    if isinstance(error, SyntaxError) and error.filename and recorder.path_of(error.filename):
        place = Place(recorder.path_of(error.filename), error.lineno or 1)
    message = writable(" ".join(str(error).split()))
    return Failure(type(error).__name__, message[:500], place)


def forget_what_was_registered() -> None:
    """Drop the `atexit` functions of the process that this one was forked from, but for that which waits for processes."""
    atexit._clear()
    if "multiprocessing.util" in sys.modules:
        atexit.register(sys.modules["multiprocessing.util"]._exit_function)


def end_of_program() -> None:
    """What Python does behind the last line: wait for threads, then call what `atexit` was given."""
    threading._shutdown()
    atexit._run_exitfuncs()


def run(job: Job) -> None:
    """Run the script of `job` and write the record to its result file."""
    started = time.perf_counter()
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=job.script, __builtins__=builtins, __cached__=None)
    kind = Recorder
    if job.mode == "reference":
        from gradfix.harness.reference import ReferenceRecorder as kind
    elif job.mode == "forgive":
        from gradfix.harness.forgive import ForgivingRecorder as kind
    recorder = kind(job, main)
    output = Output()
    ran: dict[str, set[int]] = {}
    done = False
    pid = os.getpid()
    true_exit, end_trace = os._exit, sys.settrace

    def write_down(stopped: str | None = None, detail: str = "") -> None:
        nonlocal done
        if done or os.getpid() != pid:
            return
        done = True
        end_trace(None)
        record = recorder.record
        record.stopped, record.detail = stopped, detail
        record.stdout = output.text()
        record.ran = {path: sorted(rows) for path, rows in ran.items()}
        record.seconds = time.perf_counter() - started
        if stopped is None:
            recorder.finish()
        data = encode(record)
        temporary = job.result + ".part"
        with open(temporary, "wb") as handle:
            handle.write(data)
        os.replace(temporary, job.result)

    def stop(detail: str, why: str = "writes"):
        if not done:
            write_down(why, detail)
            true_exit(0)

    def leave(code):
        write_down(None)
        true_exit(code)

    os._exit = leave
    sys.stdin = open(os.devnull)
    sys.stdout, sys.stderr = output, open(os.devnull, "w")
    sys.dont_write_bytecode = True
    source = job.overlay.get(job.script)
    if source is None:
        with open(job.script, "rb") as handle:
            source = handle.read()
    if in_cells(job.script):
        source = program_of_cells(job.script, source, main)
    package, folder = package_of(job.script, source)
    sys.modules["__main__"] = main
    sys.argv = [job.script, *job.arguments]
    sys.path[:] = [folder, *[p for p in sys.path if p not in ("", folder)], job.folder]
    os.chdir(job.folder)
    warnings.simplefilter("ignore")
    forget_what_was_registered()
    seed_all(job.seed)
    use_overlay(job.overlay, recorder)
    limit_memory(job.memory)
    if job.mode != "plain":
        recorder.install()
    if job.watched:
        watch_rows(recorder, job.watched, ran)
    guard_files(job, stop)
    if hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        if package is not None:
            main.__package__ = package
            importlib.import_module(package)
        exec(recorder.compile(source, job.script), main.__dict__)
        recorder.end_of_script()
    except SystemExit as error:
        if error.code not in (None, 0):
            recorder.record.error = failure(recorder, error)
    except MemoryError as error:
        recorder.record.error = failure(recorder, error)
        write_down("memory", str(error)[:200])
        return
    except BaseException as error:
        recorder.record.error = failure(recorder, error)
        if "can't allocate memory" in str(error) or "out of memory" in str(error).lower():
            write_down("memory", str(error)[:200])
            return
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, error.__traceback__)
    end_of_program()
    recorder.on = False
    end_trace(None)
    write_down()

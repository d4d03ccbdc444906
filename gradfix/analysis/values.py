"""Abstract values and the heap.

A value is immutable: a constant, a reference to a heap object, one of several values, a Python number that was
read from tensors, code, or unknown.  What changes lives in heap objects, one per evaluation, so that rebinding
and aliasing are seen.  Three-valued facts are True / False / None (unknown).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Const:
    value: object


@dataclass(frozen=True, slots=True)
class Ref:
    oid: int


@dataclass(frozen=True, slots=True)
class Multi:
    """One of several values; `each`: a loop variable that is each of them in turn."""

    values: tuple
    each: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    pass


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class Cut:
    """The place where a value leaves the recorded path."""

    path: str
    span: object
    kind: str  # item, float, int, tolist, math, …
    source: int  # the tensor's oid
    statement: object = None


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number read from tensors: the cuts it came through."""

    cuts: frozenset


@dataclass(frozen=True, slots=True)
class External:
    """A name from a package that is not among the checked files: `torch.nn.Linear`."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    node: ast.AST
    module: object
    closure: object = None
    owner: object = None  # the Class that defines it
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    node: ast.ClassDef
    module: object
    bases: tuple = ()
    attrs: dict = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bound:
    """An attribute of a heap object that is not data: a method about to be called."""

    receiver: object
    name: str
    node: object = None
    function: object = None


@dataclass(frozen=True, slots=True)
class Imported:
    """A name imported from a checked file, not yet looked up there."""

    path: str
    name: str
    sub: bool = False


@dataclass(frozen=True, slots=True)
class ModuleValue:
    path: str


class Obj:
    """A heap object.  `kind`: tensor, opaque (can't be read), instance, module, list, tuple, dict, optimizer."""

    __slots__ = (
        "kind", "leaf", "rg", "retained", "ins", "grad", "dead", "dtype", "param", "module", "node", "statement",
        "cls", "attrs", "items", "open", "origin", "lost", "view", "mode", "reached", "cleared", "made_after",
        "hooked", "numeric", "conversion", "grads", "alive", "frozen", "computed", "misspelt", "emptied",
    )

    def __init__(self, kind, **kw):
        self.kind = kind
        self.leaf = self.rg = self.dtype = self.module = self.node = self.statement = self.cls = None
        self.retained = self.param = self.open = self.reached = self.hooked = self.frozen = self.computed = self.misspelt = False
        self.ins = self.items = ()
        self.grad = "unknown"
        self.dead = frozenset()
        self.attrs = {}
        self.origin = self.lost = self.view = self.mode = self.cleared = self.made_after = self.emptied = None
        self.numeric = self.conversion = self.grads = None
        self.alive = True
        for name, value in kw.items():
            setattr(self, name, value)

    def copy(self) -> Obj:
        new = object.__new__(Obj)
        for name in Obj.__slots__:
            setattr(new, name, getattr(self, name))
        new.attrs = dict(self.attrs)
        return new


class Heap:
    """oid -> Obj, in two layers: what all branches share, and what this one changed since.

    A branch copies only the upper layer, and two branches are joined by looking at their upper layers alone.
    """

    __slots__ = ("base", "delta")

    def __init__(self, base=None, delta=None):
        self.base, self.delta = {} if base is None else base, {} if delta is None else delta

    def fork(self) -> Heap:
        if len(self.delta) > 64:
            self.base, self.delta = {**self.base, **self.delta}, {}
        return Heap(self.base, dict(self.delta))

    def get(self, oid, default=None):
        found = self.delta.get(oid)
        return found if found is not None else self.base.get(oid, default)

    def __getitem__(self, oid):
        found = self.delta.get(oid)
        return found if found is not None else self.base[oid]

    def __setitem__(self, oid, obj):
        self.delta[oid] = obj

    def __contains__(self, oid):
        return oid in self.delta or oid in self.base

    def objects(self):
        return list({**self.base, **self.delta}.items())

    def join(self, other: Heap, join_objects) -> Heap:
        if self.base is other.base:
            out = Heap(self.base, dict(self.delta))
            for oid, obj in other.delta.items():
                mine = self.get(oid)
                out.delta[oid] = obj if mine is None or mine is obj else join_objects(mine, obj)
            for oid, obj in self.delta.items():
                if oid not in other.delta and (theirs := self.base.get(oid)) is not None and theirs is not obj:
                    out.delta[oid] = join_objects(obj, theirs)
            return out
        merged = {**self.base, **self.delta}
        for layer in (other.base, other.delta):
            for oid in layer:
                obj = other[oid]
                mine = merged.get(oid)
                if mine is None:
                    merged[oid] = obj
                elif mine is not obj and self.get(oid) is not None and self.get(oid) is not obj:
                    merged[oid] = join_objects(self.get(oid), obj)
        return Heap(merged)


def values_of(value) -> tuple:
    return value.values if isinstance(value, Multi) else (value,)


def join_values(a, b):
    if a == b or a is b:
        return a
    if isinstance(a, Number) and isinstance(b, Number):
        return Number(a.cuts | b.cuts)
    if isinstance(a, Number) and isinstance(b, Const):
        return a
    if isinstance(b, Number) and isinstance(a, Const):
        return b
    if isinstance(a, Const) and isinstance(b, Const):
        if a.value is not None and b.value is not None:
            return UNKNOWN
    seen = []
    for v in values_of(a) + values_of(b):
        if v not in seen:
            seen.append(v)
    return Multi(tuple(seen)) if len(seen) <= 6 else UNKNOWN

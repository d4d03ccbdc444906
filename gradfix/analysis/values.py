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
    op: object = ""  # the operation, where the kind does not say it


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number read from tensors: the cuts it came through."""

    cuts: frozenset


# A Python number that has nothing to do with tensors' values: a size, a length, a count.
PLAIN = Number(frozenset())


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
    """A heap object.  `kind`: tensor, opaque (can't be read), instance, module, list, tuple, dict, iter, range, optimizer.

    Of a tensor: `leaf`, `rg` (requires grad), `retained` are three-valued; `grad` is `none`, `set`, `cleared`, `maybe` or
    `unknown`; `ins` are the objects it was computed from; `dead` are the cuts through which a value that is not recorded
    depends on tensors; `numeric` the cuts whose numbers went into a recorded one, `added` those that were added to it;
    `linear` are the operands that it is the sum of (None: it is no sum); `flat` is the operation whose derivative is zero
    everywhere; `grads` the objects whose `.grad` went in; `lost` is the leaf it was made from in one step; `view` the tensor
    it is a view of; `frozen` is where it was told not to require grad; `unsure` are those of `ins` of which it was computed from one only,
    `cold` those that did not require grad then, so that the recorded path does not lead to them.
    """

    DEFAULTS = {
        **dict.fromkeys(
            ("leaf", "rg", "dtype", "module", "node", "statement", "cls", "origin", "lost", "view", "mode", "cleared", "made_after",
             "emptied", "flagged", "numeric", "conversion", "grads", "callee", "linear", "flat", "raises", "frozen")
        ),
        **dict.fromkeys(("retained", "param", "open", "reached", "hooked", "computed", "misspelt", "partial", "filled", "loaded"), False),
        "ins": (), "items": (), "grad": "unknown", "dead": frozenset(), "added": frozenset(), "alive": True, "unsure": frozenset(), "cold": frozenset(),
    }

    def __init__(self, kind, **kw):
        fields = self.__dict__
        fields.update(self.DEFAULTS)
        fields["kind"], fields["attrs"] = kind, {}
        fields.update(kw)

    def copy(self) -> Obj:
        new = object.__new__(Obj)
        new.__dict__.update(self.__dict__)
        new.attrs = dict(self.attrs)
        return new


class Heap:
    """oid -> Obj, in layers: a branch starts an empty layer, and a join looks only at what the branches changed.

    A layer is frozen once something was forked from it, and `pins` counts the joins that still need it as the
    common ancestor; a layer that nobody needs is folded into the next, so that look-ups stay short.
    """

    __slots__ = ("parent", "delta", "pins")

    def __init__(self, parent=None, delta=None):
        self.parent, self.delta, self.pins = parent, {} if delta is None else delta, 0

    def fork(self) -> Heap:
        node = Heap(self.parent, self.delta)
        while node.parent is not None and not node.parent.pins and len(node.parent.delta) <= 4 * len(node.delta) + 64:
            node = Heap(node.parent.parent, {**node.parent.delta, **node.delta})
        node.pins = 1
        self.parent, self.delta = node, {}
        return Heap(node)

    def get(self, oid, default=None):
        layer = self
        while layer is not None:
            found = layer.delta.get(oid)
            if found is not None:
                return found
            layer = layer.parent
        return default

    def __getitem__(self, oid):
        layer = self
        while layer is not None:
            found = layer.delta.get(oid)
            if found is not None:
                return found
            layer = layer.parent
        raise KeyError(oid)

    def __setitem__(self, oid, obj):
        self.delta[oid] = obj

    def __contains__(self, oid):
        return self.get(oid) is not None

    def objects(self):
        layers, layer = [], self
        while layer is not None:
            layers.append(layer.delta)
            layer = layer.parent
        out: dict = {}
        for delta in reversed(layers):
            out.update(delta)
        return list(out.items())

    def _changes(self, ancestor):
        layers, layer = [], self
        while layer is not ancestor:
            layers.append(layer.delta)
            layer = layer.parent
        if len(layers) == 1:
            return layers[0]
        out: dict = {}
        for delta in reversed(layers):
            out.update(delta)
        return out

    def join(self, other: Heap, join_objects) -> Heap:
        chain, layer = set(), self
        while layer is not None:
            chain.add(id(layer))
            layer = layer.parent
        ancestor = other
        while ancestor is not None and id(ancestor) not in chain:
            ancestor = ancestor.parent
        mine, theirs = self._changes(ancestor), other._changes(ancestor)
        merged = {}
        for oid, obj in mine.items():
            against = theirs.get(oid) or (ancestor.get(oid) if ancestor is not None else None)
            merged[oid] = obj if against is None or against is obj else join_objects(obj, against)
        for oid, obj in theirs.items():
            if oid not in mine:
                before = ancestor.get(oid) if ancestor is not None else None
                merged[oid] = obj if before is None or before is obj else join_objects(before, obj)
        if ancestor is not None and ancestor.pins:
            ancestor.pins -= 1
        return Heap(ancestor, merged)


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
            return PLAIN if all(isinstance(v.value, (int, float)) for v in (a, b)) else UNKNOWN
    seen = []
    for v in values_of(a) + values_of(b):
        if v not in seen:
            seen.append(v)
    return Multi(tuple(seen)) if len(seen) <= 6 else UNKNOWN

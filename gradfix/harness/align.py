"""What differs between two records of a script whose lines may have moved."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from dataclasses import dataclass, field

from gradfix.cells import Cells
from gradfix.findings import Span
from gradfix.harness.trace import Event, Place, Record, Value

# Relative to the largest number of the tensor, where two computations may round differently.
CLOSE = {"float16": 1e-2, "bfloat16": 3e-2, "float32": 1e-4, "float64": 1e-7, "complex64": 1e-4, "complex128": 1e-7}


@dataclass
class Difference:
    """`change`: gained (None became a value), lost, changed, appeared, vanished."""

    kind: str
    name: str
    change: str
    place: Place | None = None
    before: Value | None = None
    after: Value | None = None
    note: str = ""
    at: int = 1 << 30  # how many events of the original came before; large where it shows at the end

    @property
    def largest(self) -> float | None:
        if self.before is None or self.after is None or self.before.shape != self.after.shape:
            return None
        a, b = self.before.numbers(), self.after.numbers()
        if a is None or b is None:
            return abs(self.before.norm - self.after.norm)
        return max((abs(x - y) for x, y in zip(a, b) if not (x != x and y != y)), default=0.0)


def close(a: Value | None, b: Value | None, tolerance: float | None = None) -> bool:
    """Equal bit for bit, or as near as two ways to compute the same gradient come."""
    if a is None or b is None:
        return a is b
    if a.same(b):
        return True
    if a.shape != b.shape:
        return False
    limit = tolerance if tolerance is not None else max(CLOSE.get(a.dtype, 0.0), CLOSE.get(b.dtype, 0.0))
    x, y = a.numbers(), b.numbers()
    if x is None or y is None:
        x, y = [a.total, a.norm], [b.total, b.norm]
    scale = max((abs(v) for v in (*x, *y) if math.isfinite(v)), default=0.0)
    for p, q in zip(x, y):
        if p != q and not (p != p and q != q) and not abs(p - q) <= limit * scale:
            return False
    return True


def exact(a: Value | None, b: Value | None, tolerance: float | None = None) -> bool:
    if tolerance:
        return close(a, b, tolerance)
    return a is b if a is None or b is None else a.same(b)


class Rows:
    """Which row of the old text a row of the new one is; rows that were rewritten are known by their block."""

    def __init__(self, old: str, new: str):
        self.old: dict[int, tuple] = {}
        self.new: dict[int, tuple] = {}
        self.changed: list[int] = []  # rows of the new text that are new
        self.removed: list[int] = []  # rows of the old text that are gone, and nothing in their place
        self.places: dict[tuple, int] = {}
        a, b = [[line.strip() for line in text.splitlines()] for text in (old, new)]
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            if tag == "equal":
                for i, j in zip(range(i1, i2), range(j1, j2)):
                    self.old[i + 1] = self.new[j + 1] = ("row", i + 1)
                continue
            block = ("block", i1)
            self.old.update({i + 1: block for i in range(i1, i2)})
            self.new.update({j + 1: block for j in range(j1, j2)})
            self.changed += [j + 1 for j in range(j1, j2) if b[j] and not b[j].startswith("#")]
            if j1 == j2:
                self.removed += [i + 1 for i in range(i1, i2) if a[i] and not a[i].startswith("#")]
            if i1 == i2:  # an insertion: the statement that follows is as good a place
                self.old.setdefault(i1 + 1, ("row", i1 + 1))


@dataclass
class Texts:
    """The rows of every file that the rewrite changes, by path relative to the root."""

    rows: dict[str, Rows] = field(default_factory=dict)
    first: dict[str, Rows] = field(default_factory=dict)  # where the old text is itself a rewrite: from the very first one
    cells: dict[str, Cells] = field(default_factory=dict)  # the notebooks among them, as the user has them

    def old(self, place: Place | None):
        if place is None or place.path not in self.rows:
            return place
        return (place.path, *self.rows[place.path].old.get(place.row, ("row", place.row)))

    def new(self, place: Place | None):
        if place is None or place.path not in self.rows:
            return place
        return (place.path, *self.rows[place.path].new.get(place.row, ("none", place.row)))


    def from_new(self, place: Place | None) -> Place | None:
        """Where a place of the new text was in the old one, at least nearly."""
        if place is None or place.path not in self.rows:
            return place
        return Place(place.path, _row(self.rows[place.path].new.get(place.row, ("row", place.row))))

    def shown(self, place: Place | None) -> Place | None:
        """Where a place of the old text is in what the user has before them: in a notebook the cell, and the row in it."""
        if place is None:
            return None
        path, row = place.path, place.row
        if path in self.first:
            row = _row(self.first[path].new.get(row, ("row", row)))
        if path not in self.cells:
            return Place(path, row)
        cell, span = self.cells[path].locate(Span(row, 0, row, 0))
        return Place(path, max(1, span.row), cell)


def _row(key: tuple) -> int:
    kind, number = key
    return number if kind == "row" else number + 1


def _in_block(key) -> bool:
    return isinstance(key, tuple) and key[1] != "row"


def reads(record: Record, key) -> dict[tuple, list[tuple[Value | None, Place]]]:
    """{(place, name): the values read there}; a value that a guard looks at twice in a row counts once."""
    out: dict[tuple, list] = {}
    last = None
    for event in record.events:
        if event.kind != "read":
            last = None
            continue
        where = key(event.place)
        ((name, value),) = event.values.items()
        known = out.setdefault((where, name), [])
        repeated = known and exact(known[-1][0], value)
        if repeated and (last == (where, name) or _in_block(where)):
            continue
        known.append((value, event.place))
        last = (where, name)
    return out


def of_kind(record: Record, kind: str) -> list[Event]:
    return [e for e in record.events if e.kind == kind]


def is_named(name: str) -> bool:
    return not name.startswith("unnamed[")


def is_told_apart(difference: Difference) -> bool:
    """Is it about something that is the same thing in both runs?  Tensors without a name are counted, but where one is read
    it is the one of that place."""
    return is_named(difference.name) or not difference.name or difference.kind == "read"


def direction(before: Value | None, after: Value | None) -> str:
    return "gained" if before is None else "lost" if after is None else "changed"


def compare(before: Record, after: Record, texts: Texts, tolerance: float | None = None) -> list[Difference]:
    """What `after` does differently, as far as `before` came."""
    out: list[Difference] = []
    complete = before.error is None
    for kind in ("backward", "grad", "step"):
        old, new = of_kind(before, kind), of_kind(after, kind)
        at = [i for i, e in enumerate(before.events) if e.kind == kind]
        for a, b, i in zip(old, new, at):
            if (
                texts.old(a.place) != texts.new(b.place)
                and not _in_block(texts.new(b.place))
                and not _in_block(texts.old(a.place))
            ):
                out.append(Difference(kind, "", "changed", a.place, note="runs in another order", at=i))
                break
            out += [dataclasses.replace(d, at=i) for d in _values(kind, a, b, tolerance)]
        if len(new) < len(old) or (complete and len(new) > len(old)):
            change = "vanished" if len(new) < len(old) else "appeared"
            rest = old[len(new)] if change == "vanished" else new[len(old)]
            names = ", ".join(rest.values)
            out.append(Difference(kind, names, change, rest.place, note=f"{len(old)} before, {len(new)} after"))
    theirs = reads(after, texts.new)
    for (where, name), values in reads(before, texts.old).items():
        other = theirs.get((where, name), [])
        if len(other) < len(values):
            values = (
                [v for v in values if v[0] is not None]
                if len(other) < sum(v[0] is not None for v in values) or not other
                else values
            )
        for (a, place), (b, _) in zip(values, other):
            if not exact(a, b, tolerance):
                out.append(Difference("read", name, direction(a, b), place, a, b))
        missing = [v for v in values[len(other) :] if v[0] is not None]
        if missing and not _in_block(where):
            out.append(Difference("read", name, "vanished", missing[0][1], missing[0][0]))
    if complete and after.error is None:
        for name, held in before.end.items():
            other = after.end.get(name)
            if other is None:
                if is_named(name):
                    out.append(Difference("end", name, "vanished", None, held.value))
                continue
            if not exact(held.value, other.value, tolerance):
                out.append(Difference("value", name, "changed", None, held.value, other.value))
            if not exact(held.grad, other.grad, tolerance):
                out.append(Difference("end", name, direction(held.grad, other.grad), None, held.grad, other.grad))
            if held.leaf and other.leaf and held.requires_grad != other.requires_grad:
                change = "gained" if other.requires_grad else "lost"
                out.append(Difference("requires_grad", name, change))
    return out


def _values(kind: str, a: Event, b: Event, tolerance) -> list[Difference]:
    out = []
    for name, value in a.values.items():
        if name not in b.values:
            out.append(Difference(kind, name, "vanished", a.place, value))
        elif not exact(value, b.values[name], tolerance):
            out.append(Difference(kind, name, direction(value, b.values[name]), a.place, value, b.values[name]))
    for name, value in b.values.items():
        if name not in a.values:
            out.append(Difference(kind, name, "appeared", a.place, None, value))
    return out


def compare_forgiven(forgiven: Record, after: Record, texts: Texts, tolerance: float | None = None) -> list[Difference]:
    """Where the rewritten program departs from the original on a forgiving autograd."""
    out: list[Difference] = []
    complete = forgiven.error is None
    for kind in ("backward", "grad", "step"):
        old, new = of_kind(forgiven, kind), of_kind(after, kind)
        for a, b in zip(old, new):
            for name, value in b.values.items():
                if is_named(name) and name in a.values and not alike(a.values[name], value, tolerance):
                    out.append(Difference(kind, name, "changed", a.place, a.values[name], value))
            if kind == "step":
                out += [
                    Difference(kind, n, "vanished", a.place, v)
                    for n, v in a.values.items()
                    if is_named(n) and n not in b.values
                ]
        if len(new) < len(old) or (complete and len(new) > len(old)):
            change = "vanished" if len(new) < len(old) else "appeared"
            rest = old[len(new)] if change == "vanished" else new[len(old)]
            out.append(Difference(kind, "", change, rest.place, note=f"{len(old)} are meant, {len(new)} run"))
    theirs = reads(after, texts.new)
    for (where, name), values in reads(forgiven, texts.old).items():
        meant = [(v, p) for v, p in values if v is not None and not v.supplied]
        seen = [(v, p) for v, p in theirs.get((where, name), []) if v is not None]
        for (a, place), (b, _) in zip(meant, seen):
            if not alike(a, b, tolerance):
                out.append(Difference("read", name, "changed", place, a, b))
        if len(seen) < len(meant) and not _in_block(where):
            out.append(Difference("read", name, "vanished", meant[len(seen)][1], meant[len(seen)][0]))
    if complete and after.error is None:
        for name, held in forgiven.end.items():
            other = after.end.get(name)
            if other is None:
                if is_named(name):
                    out.append(Difference("end", name, "vanished", None, held.value))
                continue
            if held.leaf and other.leaf and held.requires_grad != other.requires_grad:
                out.append(Difference("requires_grad", name, "gained" if other.requires_grad else "lost"))
            if not close(held.value, other.value, tolerance):
                out.append(Difference("value", name, "changed", None, held.value, other.value))
            if other.grad is not None and held.grad is not None and not alike(held.grad, other.grad, tolerance):
                out.append(Difference("end", name, "changed", None, held.grad, other.grad))
            if other.grad is None and held.grad is not None and other.leaf and held.leaf and other.requires_grad:
                if any(held.grad.numbers() or [held.grad.norm]):
                    out.append(Difference("end", name, "lost", None, held.grad, None))
    return out


def plain_difference(meant: Record, seen: Record, varies: set[str]) -> str | None:
    """The first global name whose plain data is not what is meant; but for those that vary by themselves."""
    for name, text in meant.plain.items():
        if name in varies:
            continue
        other = seen.plain.get(name)
        if other is None and name in seen.end:  # a tensor where a number is meant, or the other way round
            continue
        if not same_output(text, other or ""):
            return name
    return None


def alike(meant: Value | None, value: Value | None, tolerance) -> bool:
    """As `close`; what is `None` may be zeros for the other."""
    for a, b in ((meant, value), (value, meant)):
        if a is None:
            return b is None or not any(b.numbers() or [b.norm])
    return close(meant, value, tolerance)


VARIES = re.compile(r"0x[0-9a-f]+|, requires_grad=True|, grad_fn=<[^>]*>")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|\bnan\b|\binf\b", re.IGNORECASE)


def same_output(a: str, b: str, tolerance: float = 1e-3) -> bool:
    """Equal but for the last digits of numbers."""
    a, b = VARIES.sub("", a), VARIES.sub("", b)
    if a == b:
        return True
    if NUMBER.sub("#", a).split() != NUMBER.sub("#", b).split():
        return False
    for x, y in zip(NUMBER.findall(a), NUMBER.findall(b)):
        p, q = float(x), float(y)
        if p != q and not (p != p and q != q) and not abs(p - q) <= tolerance * max(abs(p), abs(q)) + 1e-6:
            return False
        if p != q and (math.isinf(p) or math.isinf(q)):
            return False
    return True

"""What a run is asked and what it answers: plain data, written by the child and read by the parent."""

from __future__ import annotations

import struct

import msgspec


class Forgive(msgspec.Struct):
    """What the forgiving run may overlook, and at which rows of which file (see `forgive`)."""

    rows: dict[str, list[int]] = {}  # rows that a finding or its fix names
    rebind: dict[str, list[int]] = {}  # statements whose target is updated in place of being rebound
    reads: dict[str, list[tuple[int, str]]] = {}  # at these of the rows, the `.grad`s that a finding means; else all of a row
    leaf: dict[str, list[int]] = {}  # statements whose result is a leaf that requires grad
    parts: dict[str, list[tuple[int, int]]] = {}  # of these statements' results, which items; else all
    late: dict[str, list[int]] = {}  # calls of `zero_grad` that come too early
    register: dict[str, list[int]] = {}  # statements that give a module what it does not register
    rewrap: dict[str, list[int]] = {}  # calls that make a tensor of tensors, and cut them off
    keep: dict[str, list[int]] = {}  # calls that make numbers or arrays of tensors, and cut them off
    variable: dict[str, list[int]] = {}  # tests of whether the type is `Variable`
    scalar: dict[str, list[int]] = {}  # indices of what has one element and no dimension
    truth: dict[str, list[int]] = {}  # tests of whether there is a gradient
    until: str = "backward"  # for what such a `zero_grad` waits: the next "backward", or the next behind a "step"
    none: str = "zeros"  # what a `None` at such a row means: "zeros", or "statement" or "continue", which skip that much


class Job(msgspec.Struct):
    """One run of one script.  Paths are absolute and real."""

    script: str
    root: str  # the folder that holds the project: its files count as the user's code
    folder: str  # where the script runs
    result: str  # file for the answer
    temporary: str  # folder for what the run writes outside its tree
    arguments: list[str] = []
    overlay: dict[str, bytes] = {}  # files that are to hold something else than on disk
    watched: dict[str, list[int]] = {}  # rows of which is told whether they ran
    mode: str = "record"  # or "reference", "forgive"; "plain" watches nothing
    forgive: Forgive | None = None
    copied: bool = False  # `root` is a copy: writing is allowed
    device: str = "cpu"
    seed: int = 0
    timeout: float = 60.0
    memory: int = 0  # bytes beyond what the child starts with; 0: no limit


class Value(msgspec.Struct, array_like=True):
    """A tensor.  Of a large one only the digest and two numbers are kept."""

    dtype: str
    shape: list[int]
    raw: bytes | None
    digest: bytes
    total: float
    norm: float
    supplied: bool = False  # the forgiving run put zeros for a gradient that was `None`

    def same(self, other: Value | None) -> bool:
        """Bit for bit."""
        return (
            other is not None
            and (self.dtype, self.shape) == (other.dtype, other.shape)
            and (self.raw == other.raw if self.raw is not None and other.raw is not None else self.digest == other.digest)
        )

    def numbers(self) -> list[float] | None:
        return None if self.raw is None else _unpack(self.dtype, self.raw)


# How the numbers of a tensor lie in its bytes.  Of other types no bytes are kept.
FORMATS = {
    "float16": "e", "bfloat16": "H", "float32": "f", "float64": "d", "int8": "b", "uint8": "B", "int16": "h", "int32": "i",
    "int64": "q", "bool": "?", "complex64": "f", "complex128": "d",
}  # fmt: skip


def _unpack(dtype: str, raw: bytes) -> list[float]:
    if dtype == "bfloat16":
        return [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]
    code = FORMATS[dtype]
    return [float(x) for x in struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw)]


class Place(msgspec.Struct, array_like=True, frozen=True):
    path: str
    row: int  # of the program that ran; of the cell, where there is one
    cell: int | None = None  # what a verdict says of a notebook: all cells counted from 1


class Event(msgspec.Struct, array_like=True):
    """`backward` and `grad`: gradients afterwards; `read`: the value of one `.grad`; `step`: the moved parameters."""

    kind: str
    place: Place | None
    values: dict[str, Value | None]
    expected: dict[str, Value | None] = {}  # of `backward` in a reference run: what `autograd.grad` makes of it
    scale: float = 1.0
    retained: dict[str, Value | None] = {}  # of `backward` through a re-entrant checkpoint: of what else has a gradient


class Failure(msgspec.Struct, array_like=True):
    type: str
    message: str
    place: Place | None


class Held(msgspec.Struct, array_like=True):
    """A tensor at the end of the run."""

    value: Value
    grad: Value | None
    requires_grad: bool
    leaf: bool


class Record(msgspec.Struct):
    events: list[Event] = []
    end: dict[str, Held] = {}
    varies: set[str] = set()  # of the names in `plain`, those that a second run of the same program has otherwise
    output_varies: bool = False  # and so is what it prints
    plain: dict[str, str] = {}  # the numbers, strings and containers that the script holds at its end
    stdout: str = ""
    error: Failure | None = None
    ran: dict[str, list[int]] = {}  # those of the watched rows that ran
    stopped: str | None = None  # "time", "memory", "died", "writes": the run has no end
    detail: str = ""
    seconds: float = 0.0
    dropped: int = 0  # events that were too many
    cuda: bool = False
    modules: list[str] = []  # files of the project that the run loaded
    skipped: bool = False  # the forgiving run met a `None`
    postponed: bool = False  # and this one a `zero_grad` that came too early
    unfolded: bool = False  # the reference run put the insides of a re-entrant checkpoint into the graph
    forgiven: list[str] = []  # what the forgiving run overlooked


encode = msgspec.msgpack.encode


def decode_record(data: bytes) -> Record:
    return msgspec.msgpack.decode(data, type=Record)


def decode_job(data: bytes) -> Job:
    return msgspec.msgpack.decode(data, type=Job)

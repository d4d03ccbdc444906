"""A file as bytes and as text: encoding, byte order mark, and writing it back in one step."""

from __future__ import annotations

import codecs
import io
import os
import stat
import tempfile
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gradfix.findings import Problem


class SourceError(Exception):
    """Why a file can't be used, and where (rows and columns from 1)."""

    def __init__(self, reason: str, row: int | None = None, col: int | None = None):
        super().__init__(reason)
        self.reason, self.row, self.col = reason, row, col

    def __reduce__(self):
        return SourceError, (self.reason, self.row, self.col)


@dataclass(slots=True)
class Source:
    """`text` has no byte order mark and keeps its newlines as they are."""

    path: str
    data: bytes
    text: str
    encoding: str  # "utf-8-sig" where the file starts with a byte order mark

    @property
    def code(self) -> bytes:
        """`text` as the bytes of a Python file."""
        return self.data

    @property
    def starts(self) -> tuple[int, ...]:
        """The rows above which one cell ends and below which another starts."""
        return ()

    def encode(self, text: str) -> bytes:
        return text.encode(self.encoding)

    def decode_code(self, code: bytes) -> str:
        return code.decode(self.encoding)

    def updated(self, code: bytes) -> bytes:
        """The file with `code` for its Python (ValueError where that can't be)."""
        return code

    @property
    def problems(self) -> Sequence[Problem]:
        """Parts of the file that can't be used; the rest can."""
        return ()

    @property
    def outdated(self) -> Sequence[Problem]:
        """Parts of it that only a run for old code can use."""
        return ()


def _place(data: bytes, offset: int) -> tuple[int, int]:
    before = data[:offset]
    start = before.rfind(b"\n") + 1
    return before.count(b"\n") + 1, len(before[start:].decode("utf-8", "replace")) + 1


def decode(path: str, data: bytes) -> Source:
    if in_cells(path):
        return _decode_cells(path, data)
    nul = data.find(b"\0")
    if nul >= 0:
        what = "UTF-16 or UTF-32 text" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "a NUL byte"
        raise SourceError(f"holds {what}, which Python source can't", *_place(data, nul))
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except (SyntaxError, UnicodeError, LookupError) as error:
        reason = getattr(error, "msg", None) or str(error)
        if "invalid or missing encoding" in reason or "utf-8" in reason:
            try:
                data.decode("utf-8")
            except UnicodeDecodeError as wrong:
                raise SourceError(_undecodable(data, wrong, "utf-8"), *_place(data, wrong.start)) from None
        raise SourceError(reason.split(" for '")[0], 1, 1) from None
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as wrong:
        raise SourceError(_undecodable(data, wrong, encoding), *_place(data, wrong.start)) from None
    except (UnicodeError, LookupError) as error:
        raise SourceError(f"can't be decoded as {encoding}: {error}", 1, 1) from None
    if not isinstance(text, str):
        raise SourceError(f"{encoding} is no text encoding", 1, 1)
    return Source(path, data, text, encoding)


def in_cells(path: str) -> bool:
    """Does the Python of such a file stand in cells: a notebook, or Markdown?"""
    return path.endswith((".ipynb", ".md"))


@lru_cache(maxsize=4)
def _decode_cells(path: str, data: bytes) -> Source:
    if path.endswith(".ipynb"):
        from gradfix.notebook import Notebook as Kind
    else:
        from gradfix.markdown import Markdown as Kind
    return Kind.read(path, data)


def decode_utf8(data: bytes) -> tuple[str, str]:
    """Text and encoding of a file that is UTF-8 by definition."""
    encoding = "utf-8-sig" if data.startswith(codecs.BOM_UTF8) else "utf-8"
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError as wrong:
        raise SourceError(_undecodable(data, wrong, encoding), *_place(data, wrong.start)) from None


def _undecodable(data: bytes, wrong: UnicodeDecodeError, encoding: str) -> str:
    return f"byte 0x{data[min(wrong.start, len(data) - 1)]:02x} is not valid {encoding.removesuffix('-sig')}"


def read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError as error:
        raise SourceError(os_reason(path, error)) from None
    except ValueError as error:  # a NUL in the name
        raise SourceError(str(error)) from None


def os_reason(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "broken symbolic link" if os.path.islink(path) else "no such file or directory"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return (error.strerror or str(error)).lower()


def syntax_problem(text: str) -> SourceError | None:
    """What keeps `text` from being Python of this interpreter."""
    import ast
    import symtable

    try:
        symtable.symtable(text, "<source>", "exec")  # the same parser, without a tree
        return None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    try:
        ast.parse(text)
    except SyntaxError as error:
        return syntax_error(text, error)
    except (ValueError, RecursionError, MemoryError) as error:
        return SourceError(f"cannot be parsed: {error}")
    return None


def syntax_error(text: str, error: SyntaxError) -> SourceError:
    from gradfix import old_python

    return SourceError(old_python.why(text, error) or f"syntax error: {error.msg}", error.lineno, error.offset)


def data_of(project, path: str) -> bytes:
    """The bytes of `path` as the run sees them."""
    overlay = project.overlay
    return overlay[path] if path in overlay else read_bytes(path)


def lines_of(text: str) -> list[str]:
    """Lines with their ends, as Python counts them (not at form feeds and the like)."""
    return io.StringIO(text, newline="").readlines()


def read_source(path: str) -> Source:
    return decode(path, read_bytes(path))


def atomic_write(path: str, data: bytes) -> None:
    """Replace the contents of `path` in one step.  Its mode is kept; of a symbolic link the target changes."""
    target = os.path.realpath(path)
    info = None
    try:
        info = os.stat(target)
    except FileNotFoundError:
        pass
    if info is not None and not os.access(target, os.W_OK):
        raise PermissionError(13, "no permission to write it", path)
    handle, temporary = tempfile.mkstemp(prefix=".gradfix-", suffix=".tmp", dir=os.path.dirname(target))
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if info is not None:
            try:
                if hasattr(os, "chown") and (info.st_uid, info.st_gid) != (os.geteuid(), os.getegid()):
                    os.chown(temporary, info.st_uid, info.st_gid)
            except OSError:
                pass
            os.chmod(temporary, stat.S_IMODE(info.st_mode))
        else:
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise

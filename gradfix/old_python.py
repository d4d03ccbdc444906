"""Source that today's Python can't parse: `async` as a name (before 3.7), and Python 2."""

from __future__ import annotations

import ast
import io
import re
import tokenize

# Calls of torch whose argument `async` is `non_blocking` today.
MOVES = {"cuda", "to", "copy_", "type", "xpu", "npu"}
# What the name `async` is called while such a file is analysed: as long as the word, so that columns stay.
PLACEHOLDER = "asynC"


def async_arguments(text: str) -> list[tuple[int, int]]:
    """(row, column from 0) of each `async` in `.cuda(async=True)` and the like."""
    if "async" not in text:
        return []
    found, stack, before = [], [], []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NL, tokenize.COMMENT):
                continue
            if token.string in ("(", "[", "{"):
                name = before[-1].string if token.string == "(" and before else ""
                stack.append(name if len(before) > 1 and before[-2].string == "." else "")
            elif token.string in (")", "]", "}") and stack:
                stack.pop()
            elif token.string == "=" and before and before[-1].string == "async" and stack and stack[-1] in MOVES:
                found.append(before[-1].start)
            before = [*before[-1:], token]
    except (tokenize.TokenError, SyntaxError):
        return []
    return found


def with_async_renamed(text: str, name: str = PLACEHOLDER) -> str:
    """The text with each such argument called `name`; as PLACEHOLDER, everything stays at its place."""
    lines = io.StringIO(text, newline="").readlines()
    for row, col in reversed(async_arguments(text)):
        line = lines[row - 1]
        lines[row - 1] = line[:col] + name + line[col + len("async") :]
    return "".join(lines)


# Statements that only Python 2 takes, by their first words.
_STATEMENTS = (
    ("a print statement", re.compile(r"^\s*print\s*(?:[\"'\w]|>>)|(?:[:;]|\belse)\s*print\s+[\"'\w]")),
    ("`except X, e`", re.compile(r"^\s*except\s+[\w.()]+(?:\s*,\s*[\w.]+\s*\))*\s*,\s*\w+\s*:")),
    ("an exec statement", re.compile(r"^\s*exec\s+[\"'\w]")),
    ("`raise X, value`", re.compile(r"^\s*raise\s+[\w.]+\s*,")),
    ("the operator `<>`", re.compile(r"<>")),
    ("a number such as `0777` or `10L`", re.compile(r"\b(?:0\d+|\d+[lL]|0[xX][\da-fA-F]+[lL])\b")),
    ("a `ur` string", re.compile(r"\b[uU][rR][\"']")),
    ("backquotes", re.compile(r"`[^`]+`")),
)
_MESSAGES = {
    "Missing parentheses in call to 'print'": "a print statement",
    "Missing parentheses in call to 'exec'": "an exec statement",
    "multiple exception types must be parenthesized": "`except X, e`",
    "leading zeros in decimal integer literals": "a number such as `0777`",
    "parameters cannot be parenthesized": "a tuple as parameter",
}


def why(text: str, error: SyntaxError) -> str | None:
    """What of an older Python the error is about, and how to go on; None where it is something else."""
    row = error.lineno or 0
    lines = text.splitlines()
    line = lines[row - 1] if 0 < row <= len(lines) else ""
    found = next((what for start, what in _MESSAGES.items() if start in (error.msg or "")), None)
    if found is None and error.msg.startswith(("invalid", "expected")):
        found = next((what for what, pattern in _STATEMENTS if pattern.search(line)), None)
    if found is None and isinstance(error, TabError):
        found = "tabs and spaces mixed in one block"
    if found is not None:
        return f"Python 2 code ({found}): convert it to Python 3 first, for instance with 2to3 or python-modernize, then run gradfix again"
    if any(r == row for r, _ in async_arguments(text)):
        renamed = with_async_renamed(text)
        later = _next_error(renamed)
        if later is not None and (later.msg, later.lineno) == (error.msg, error.lineno):
            return None  # the `async` of that row is not what the error is about
        if later is not None and (rest := why(renamed, later)) is not None:
            return rest.replace(":", f" in row {later.lineno}:", 1)
        return "`async` is a keyword since Python 3.7: `gradfix apply --select GF906` makes it `non_blocking`, then run gradfix again"
    if re.search(r"\basync\b(?!\s+(?:def|for|with)\b)", line):
        return "`async` is a keyword since Python 3.7: give the name another one, then run gradfix again"
    return None


def _next_error(text: str) -> SyntaxError | None:
    """What Python says of the rest of the file."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return error
    except ValueError:
        pass
    return None

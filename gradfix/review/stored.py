"""A payload that another job made: it is read as data from a stranger.

That job ran on the code of the pull request, without rights; the one that posts has rights, and no such code.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from gradfix.review import ReviewError
from gradfix.review.changes import Changes
from gradfix.review.payload import MOST_CHARACTERS, MOST_COMMENTS, marked

Row = Annotated[int, msgspec.Meta(ge=1)]
Body = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_CHARACTERS)]


class GitHubComment(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    body: Body
    line: Row
    side: Literal["RIGHT"]
    start_line: Row | None = None
    start_side: Literal["RIGHT"] | None = None


class GitHubReview(msgspec.Struct, forbid_unknown_fields=True):
    body: Body
    event: Literal["COMMENT"]  # never an approval
    comments: Annotated[list[GitHubComment], msgspec.Meta(max_length=MOST_COMMENTS)]
    commit_id: str | None = None


class Position(msgspec.Struct, forbid_unknown_fields=True):
    position_type: Literal["text"]
    old_path: str
    new_path: str
    new_line: Row
    old_line: Row | None = None
    base_sha: str | None = None
    start_sha: str | None = None
    head_sha: str | None = None


class Discussion(msgspec.Struct, forbid_unknown_fields=True):
    body: Body
    position: Position


class GitLabReview(msgspec.Struct, forbid_unknown_fields=True):
    discussions: Annotated[list[Discussion], msgspec.Meta(max_length=MOST_COMMENTS)]
    note: Body | None = None


SHAPES = {"github": GitHubReview, "gitlab": GitLabReview}


def read(data: bytes, platform: str, name: str) -> dict:
    try:
        payload = msgspec.json.decode(data, type=SHAPES[platform])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ReviewError(f"{name}: is no output of `gradfix review --output-format {platform}`: {error}") from None
    return _plain(msgspec.to_builtins(payload))


def _plain(value):
    """Without the fields that are not set."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None or k == "note"}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def head_of(payload: dict) -> set[str]:
    """The commits that the payload says it is about."""
    heads = [payload.get("commit_id"), *(d["position"].get("head_sha") for d in payload.get("discussions", ()))]
    return {head for head in heads if head}


def fresh(payload: dict, platform: str, known: set[str], changes: Changes) -> dict | None:
    """The payload without what is posted already and what the diff doesn't hold; None when nothing is left."""
    files = {file.path: file for file in changes.files if not file.deleted}

    def wanted(body: str, path: str, start: int, end: int) -> bool:
        marks = marked(body)
        return bool(marks - known) and path in files and files[path].hunk(start, end) is not None

    if platform == "github":
        comments = [c for c in payload["comments"] if wanted(c["body"], c["path"], c.get("start_line", c["line"]), c["line"])]
        if not comments and not marked(payload["body"]) - known:
            return None
        return {**payload, "comments": comments}
    discussions = [
        d for d in payload["discussions"]
        if wanted(d["body"], d["position"]["new_path"], d["position"]["new_line"], d["position"]["new_line"])
    ]  # fmt: skip
    note = payload["note"] if marked(payload["note"]) - known else None
    return {"discussions": discussions, "note": note} if discussions or note else None

"""Review comments as the platforms take them."""

from __future__ import annotations

import re

from gradfix import findings
from gradfix.findings import Finding, Related
from gradfix.reports import count
from gradfix.review.comments import Comment, Item, Review

MOST_COMMENTS = 30  # more in one review look like abuse, to the platform and to its reader
MOST_LISTED = 50
MOST_MARKED = 2000  # of those that only a number stands for: they are said, too, and don't come back in the next run
MOST_CHARACTERS = 60_000  # of a body; GitHub takes 65,536
MARK = re.compile(r"<!-- gradfix: ([0-9a-f ]+) -->\s*\Z")


def mark(items: list[Item]) -> str:
    """A hidden line by which a later run knows what is posted already."""
    return f"<!-- gradfix: {' '.join(dict.fromkeys(i.fingerprint for i in items))} -->"


def marked(body: str | None) -> set[str]:
    found = MARK.search((body or "").replace("\r\n", "\n"))
    return set(found[1].split()) if found else set()


# ------------------------------------------------------------------------- Markdown


def fence(text: str, kind: str) -> str:
    """A fenced block: the fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{kind}\n{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{ticks}"


def prose(text: str) -> str:
    """A message as Markdown: its code spans stay, the rest can't mention, link or format."""
    text = " ".join(text.split())
    parts = text.split("`")
    if len(parts) % 2 == 0 or "``" in text:  # backticks that are no plain pairs
        return _escaped(text)
    return "".join(f"`{part}`" if i % 2 else _escaped(part) for i, part in enumerate(parts))


def code(text: str) -> str:
    text = " ".join(text.split())
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _escaped(text: str) -> str:
    text = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("@", "@\u200b")


def printable(text: str) -> str:
    """What JSON and UTF-8 can hold."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def headline(item: Item) -> str:
    finding = item.finding
    return f"**{finding.code} {finding.name}** ({finding.severity.value}): {prose(finding.message)}"


def place(at: Finding | Related) -> str:
    return code(findings.place(at.path, at.cell, at.span.row))


def body(comment: Comment, local: str, suggestion_kind: str = "suggestion") -> str:
    """`local` is the comment's file as findings name it."""
    parts = []
    for item in comment.items:
        finding = item.finding
        lines = [headline(item)]
        if not comment.here(item, local):
            lines.append(f"\nIt shows in {place(finding)}.")
        if finding.related:
            lines.append("")
            lines += [f"- {place(r)}: {prose(r.message)}" for r in finding.related]
        parts.append("\n".join(lines))
    short = list(parts)
    if comment.suggestion is not None:
        parts.append("\n\n".join(_fix_line(item) for item in comment.items))
        parts.append(fence("\n".join(comment.suggestion) + "\n" if comment.suggestion else "", suggestion_kind))
    else:
        for item in comment.items:
            if item.finding.fix is not None:
                parts.append(_fix_line(item) + (f" {item.note}" if item.note else ""))
                if item.diff:
                    parts.append(fence(item.diff, "diff"))
    parts.append(mark(comment.items))
    text = printable("\n\n".join(parts))
    if len(text) > MOST_CHARACTERS:
        why = "The fix is too long for a comment: `gradfix apply --dry-run` shows it."
        room = MOST_CHARACTERS - 200 - len(parts[-1])
        text = "\n\n".join([printable("\n\n".join(short))[:room], why, parts[-1]])
    return text


def _fix_line(item: Item) -> str:
    return f"{item.finding.fix.applicability.value.capitalize()} fix: {prose(item.finding.fix.message)}."


def summary(shown: list[Comment], rest: list[Item], known: int = 0) -> str:
    """The text above the comments; it lists what has no comment of its own."""
    total = sum(len(c.items) for c in shown) + len(rest)
    clicks = sum(c.suggestion is not None for c in shown)
    text = f"GradFix: this change introduces {count(total, 'new finding' if known else 'finding')}"
    text += f", {count(clicks, 'suggestion')} to apply by a click." if clicks else "."
    if not rest:
        return text
    lines = [text, "", "Without a comment of their own:", ""]
    for item in rest[:MOST_LISTED]:
        lines.append(f"- {place(item.finding)} {headline(item)}")
    if len(rest) > MOST_LISTED:
        lines.append(f"- and {len(rest) - MOST_LISTED} more; `gradfix check` shows them.")
    text, end = printable("\n".join(lines)), "\n\n" + mark(rest[:MOST_MARKED])
    return text[: MOST_CHARACTERS - len(end)] + end


def split(review: Review) -> tuple[list[Comment], list[Item]]:
    """The comments to post, most severe first where there are too many, and what the summary lists."""
    rank = {"error": 0, "warning": 1, "info": 2}
    chosen = sorted(review.comments, key=lambda c: min(rank[i.finding.severity.value] for i in c.items))[:MOST_COMMENTS]
    kept = set(map(id, chosen))
    left = [item for c in review.comments if id(c) not in kept for item in c.items]
    return [c for c in review.comments if id(c) in kept], left + review.elsewhere


# --------------------------------------------------------------------------- GitHub


def github(review: Review, known: int = 0) -> dict:
    """The body of "create a review for a pull request"."""
    shown, rest = split(review)
    payload = {
        "body": summary(shown, rest, known),
        "event": "COMMENT",
        "comments": [github_comment(review, comment) for comment in shown],
    }
    return ({"commit_id": review.changes.head} if review.changes.head else {}) | payload


def github_comment(review: Review, comment: Comment) -> dict:
    out = {
        "path": printable(comment.file.path),
        "body": body(comment, review.changes.local(comment.file.path)),
        "side": "RIGHT",
        "line": comment.end,
    }
    if comment.start < comment.end:
        out |= {"start_side": "RIGHT", "start_line": comment.start}
    return out


# --------------------------------------------------------------------------- GitLab


def gitlab(review: Review, known: int = 0) -> dict:
    """`discussions`: one body of "create a merge request thread" each; `note`: the body of the note with the rest."""
    shown, rest = split(review)
    return {
        "discussions": [gitlab_discussion(review, comment) for comment in shown],
        "note": summary(shown, rest, known) if rest else None,
    }


MOST_LINES_ABOVE = 100  # that a suggestion can replace


def gitlab_discussion(review: Review, comment: Comment) -> dict:
    above = comment.end - comment.start
    if above > MOST_LINES_ABOVE and comment.suggestion is not None:
        comment = Comment(comment.file, comment.start, comment.end, comment.items)
        for item in comment.items:
            item.note = "The fix is too long for a suggestion."
    position = {
        "position_type": "text",
        "base_sha": review.changes.base,
        "start_sha": review.changes.start,
        "head_sha": review.changes.head,
        "old_path": printable(comment.file.old_path or comment.file.path),
        "new_path": printable(comment.file.path),
        "new_line": comment.end,
    }
    hunk = comment.file.hunk(comment.end, comment.end)
    if comment.end in hunk.old_rows:  # an unchanged line is named by both of its numbers
        position["old_line"] = hunk.old_rows[comment.end]
    text = body(comment, review.changes.local(comment.file.path), f"suggestion:-{above}+0")
    return {"body": text, "position": {k: v for k, v in position.items() if v is not None}}

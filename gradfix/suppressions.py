"""Comments that silence findings: `# gradfix: ignore[retain-grad]`, `# noqa: GF101`, `# gradfix: skip-file`."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradfix.codemod import UNUSED_SUPPRESSION, Codemod
from gradfix.findings import Finding, Severity, Span

IGNORE = re.compile(r"#\s*gradfix:\s*ignore(?![\w-])\s*(?:\[([^\]#]*)\])?", re.I)
SKIP = re.compile(r"#\s*gradfix:\s*skip-file\b", re.I)
NOQA = re.compile(r"#\s*noqa(?![\w-])(?:\s*:\s*([A-Z]+[0-9]+(?:[\s,]+[A-Z]+[0-9]+)*)?)?", re.I)
MARK = re.compile(rb"gradfix:|noqa", re.I)


@dataclass
class Suppression:
    row: int
    col: int
    end_col: int
    rules: tuple[str, ...] | None  # None: every rule
    ours: bool
    used: set[str] = field(default_factory=set)

    def covers(self, code: str, name: str) -> str | None:
        if self.rules is None:
            return "*"
        for rule in self.rules:
            if rule == name or rule.upper() == code or rule.upper() == "ALL":
                return rule
            if re.fullmatch(r"[A-Za-z]+[0-9]*", rule) and code.startswith(rule.upper()):
                return rule
        return None


@dataclass
class Suppressions:
    path: str
    skip: bool = False
    comments: list[Suppression] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.skip and not self.comments

    def suppresses(self, finding: Finding) -> bool:
        if self.skip:
            return True
        first, last = finding.statement_rows
        if (first, last) == (0, 0):
            first, last = finding.span.row, finding.span.end_row
        first, last = min(first, finding.span.row), max(last, first)
        hit = False
        for comment in self.comments:
            if first <= comment.row <= last or comment.row == finding.span.row:
                if (rule := comment.covers(finding.code, finding.name)) is not None:
                    comment.used.add(rule)
                    hit = True
        return hit

    def unused(self, rules: Sequence[Codemod], active: set[str]) -> list[Finding]:
        """Findings for our comments that silence nothing, as far as the rules that ran can tell."""
        from gradfix.config import default_codes

        out = []
        if self.skip:
            return out
        for comment in self.comments:
            if not comment.ours:
                continue
            if comment.rules is None:
                if not comment.used and default_codes(rules) <= active:
                    out.append(self._finding(comment, "this comment suppresses nothing"))
                continue
            for rule in comment.rules:
                if rule in comment.used:
                    continue
                meant = {r.code for r in rules if comment_means(rule, r)}
                if not meant:
                    out.append(self._finding(comment, f"{rule!r} in this comment is no rule"))
                elif meant <= active and comment_is_first(rule, comment):
                    out.append(self._finding(comment, f"this comment suppresses nothing of {rule}"))
        return out

    def _finding(self, comment: Suppression, message: str) -> Finding:
        span = Span(comment.row, comment.col, comment.row, comment.end_col)
        return UNUSED_SUPPRESSION.finding(
            path=self.path, span=span, message=message, severity=Severity.INFO, statement_rows=(comment.row, comment.row)
        )


def comment_means(rule: str, codemod: Codemod) -> bool:
    return Suppression(0, 0, 0, (rule,), True).covers(codemod.code, codemod.name) is not None


def comment_is_first(rule: str, comment: Suppression) -> bool:
    return comment.rules is not None and comment.rules.count(rule) >= 1


def parse(path: str, text: str) -> Suppressions:
    out = Suppressions(path)
    if not MARK.search(text.encode("utf-8", "replace")):
        return out
    for row, col, comment in comments(text):
        if SKIP.search(comment):
            out.skip = True
        for match in IGNORE.finditer(comment):
            names = None
            if match[1] is not None:
                names = tuple(dict.fromkeys(n for n in re.split(r"[\s,]+", match[1]) if n))
            out.comments.append(Suppression(row, col + match.start(), col + match.end(), names, True))
        for match in NOQA.finditer(comment):
            tail = comment[match.start() :]
            names = None
            if match[1] is not None:
                names = tuple(n for n in re.split(r"[\s,]+", match[1]) if n)
            elif re.match(r"#\s*noqa\s*:", tail, re.I):
                continue  # `# noqa: something that is no code`
            out.comments.append(Suppression(row, col + match.start(), col + match.end(), names, False))
    return out


def comments(text: str):
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            if token.type == tokenize.COMMENT:
                yield *token.start, token.string
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        return

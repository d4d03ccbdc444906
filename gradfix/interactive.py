"""`apply --interactive`: each fix is shown as a diff, and made when it is wanted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from gradfix.engine import is_safe, unified_diff
from gradfix.findings import Finding, place
from gradfix.fingerprints import Key, keys
from gradfix.preview import Fixes
from gradfix.source import SourceError, data_of

HELP = "y: make this fix; n: leave it; a: make this and all that follow; q: leave this and all that follow"


class Round:
    """The answers about the findings of one state of the project."""

    def __init__(self, project):
        self.project = project
        self.fixes = Fixes(project)
        self.answers: dict[Finding, bool] = {}
        self.seen: Counter[Key] = Counter()


class Chooser:
    """Says which fixes are wanted.  `show` prints text; `read` returns a line, empty at the end of the input.

    Fixes are made in rounds, and what is found in a later one was perhaps found before, at another line: what was refused
    is not asked again, nor what was wanted and has to wait for another fix of the same lines.
    """

    def __init__(self, settings, show: Callable[[str], None], read: Callable[[], str], tint: Callable[[str], str] = str):
        self.settings, self.show, self.read, self.tint = settings, show, read, tint
        self.rounds: list[Round] = []
        self.refused: Counter[Key] = Counter()
        self.wanted: set[tuple[Key, str]] = set()
        self.rest: bool | None = None  # the answer to all that follow

    def __call__(self, finding: Finding, project) -> bool:
        this = next((r for r in self.rounds if r.project is project), None)
        if this is None:
            this = Round(project)
            self.rounds.append(this)
        if finding not in this.answers:
            this.answers[finding] = self.answer(finding, this)
        return this.answers[finding]

    def answer(self, finding: Finding, this: Round) -> bool:
        (key,) = keys([finding], this.fixes.lines)
        this.seen[key] += 1
        if this.seen[key] <= self.refused[key]:
            return False
        diff = self.diff(finding, this.fixes)
        if not diff:  # it can't be made, which is said where it is tried
            return True
        known = key, re.sub(r"^@@.*", "", diff, flags=re.M)
        if known in self.wanted:
            return True
        yes = self.rest if self.rest is not None else self.ask(finding, diff)
        if yes:
            self.wanted.add(known)
        else:
            self.refused[key] += 1
        return yes

    def ask(self, finding: Finding, diff: str) -> bool:
        where = place(finding.path, finding.cell, finding.span.row, finding.span.col + 1)
        kind = "safe" if is_safe(finding, self.settings) else "unsafe"
        self.show(f"{where}: {finding.severity.value} {finding.code} ({finding.name}) {' '.join(finding.message.split())}\n")
        self.show(f"{kind} fix: {finding.fix.message}\n{self.tint(diff)}")
        while True:
            self.show("Make this fix? [y]es, [n]o, [a]ll, [q]uit: ")
            line = self.read()
            word = line.strip().lower()
            if not line:
                self.show("\n")
            if word in ("y", "yes", "n", "no"):
                return word[0] == "y"
            if word in ("a", "all", "q", "quit") or not line:
                self.rest = word[:1] == "a"
                return self.rest
            self.show(HELP + "\n")

    @staticmethod
    def diff(finding: Finding, fixes: Fixes) -> str:
        out = []
        try:
            for path, made in sorted(fixes.changed(finding.fix).items()):
                out.append(unified_diff(path, data_of(fixes.project, path), fixes.updated(path, made)))
        except (SourceError, ValueError):
            return ""
        return "".join(out)

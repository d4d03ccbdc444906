"""A fake analysis, fake rules and a fake rewriter, so that the shell is tested without the real ones.

The fake analysis sees the lines that hold `backward`; the fake fix of a finding replaces its line.
"""

from __future__ import annotations

import os
import sys
import types
from dataclasses import dataclass, field

import pytest

from gradfix import codemod as codemod_module
from gradfix.codemod import UNUSED_SUPPRESSION, Codemod
from gradfix.findings import Applicability, Fix, Problem, Related, ReplaceStatement, Severity, Span


class RewriteError(Exception):
    pass


@dataclass
class FakeObservations:
    lines: list = field(default_factory=list)
    problems: list = field(default_factory=list)
    pid: int = 0


class FakeFacts:
    def __init__(self, project, observations, options=None):
        self.project = project
        self.lines = sorted(x for o in observations for x in o.lines)
        self.pids = {o.pid for o in observations}


@dataclass
class FakeProject:
    files: tuple
    overlay: dict
    target_torch: tuple


def fake_observe(project, paths):
    from gradfix.source import SourceError, decode, read_bytes

    out = FakeObservations(pid=os.getpid())
    for path in paths:
        try:
            data = project.overlay[path] if path in project.overlay else read_bytes(path)
            text = decode(path, data).text
        except SourceError as error:
            out.problems.append(Problem(path, error.reason, error.row, error.col))
            continue
        if "KILL" in text:
            os.kill(os.getpid(), 9)
        if "CRASH" in text:
            raise RuntimeError("boom")
        for row, line in enumerate(text.split("\n"), 1):
            line = line.rstrip("\r")
            out.lines.append((path, row, line))
    return out


def fake_rewrite(data, groups):
    """Whole-line replacements; two fixes of one line: the second waits.  `FAIL` in new code: RewriteError."""
    from gradfix.source import decode

    source = decode("x", data)
    lines = source.text.split("\n")
    taken, deferred = set(), []
    for index, edits in enumerate(groups):
        if any("FAIL" in e.code for e in edits):
            raise RewriteError("can't be done")
        if any(e.target.row in taken for e in edits):
            deferred.append(index)
            continue
        for e in edits:
            taken.add(e.target.row)
            old = lines[e.target.row - 1]
            end = "\r" if old.endswith("\r") else ""
            lines[e.target.row - 1] = e.code.replace("\n", end + "\n") + end
    return source.encode("\n".join(lines)), deferred


def line_rule(
    name, code, word, new=None, applicability=Applicability.SAFE, severity=Severity.ERROR, related=(), default_on=True
):
    """A rule that reports every line holding `word`, and replaces the word by `new`."""
    rule = Codemod(f"fake.{name}", code=code, default_on=default_on, fixable=new is not None)

    @rule.check
    def check(facts):
        for path, row, line in facts.lines:
            if word not in line.split("#")[0]:
                continue
            span = Span(row, line.index(word), row, line.index(word) + len(word))
            fix = None
            if new is not None:
                whole = Span(row, 0, row, len(line))
                edit = ReplaceStatement(path, whole, line.replace(word, new))
                fix = Fix(applicability, f"write {new}", (edit,))
            yield rule.finding(
                path=path, span=span, message=f"{word} is wrong", severity=severity, fix=fix, related=related,
                statement_rows=(row, row),
            )  # fmt: skip

    return rule


class Shell:
    def __init__(self, monkeypatch, capsys):
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def rules(self, *rules):
        self.monkeypatch.setattr(codemod_module, "load", lambda packages=None: [UNUSED_SUPPRESSION, *rules])

    def __call__(self, *arguments):
        from gradfix.cli import run

        self.capsys.readouterr()
        code = run(list(map(str, arguments)))
        out, err = self.capsys.readouterr()
        return types.SimpleNamespace(code=code, out=out, err=err)


@pytest.fixture
def shell(monkeypatch, capsys, tmp_path):
    analysis = types.ModuleType("gradfix.analysis")
    analysis.Project, analysis.observe, analysis.Facts = FakeProject, fake_observe, FakeFacts
    analysis.explain = lambda project, path, line: f"believes {path}:{line}"
    rewriting = types.ModuleType("gradfix.rewriting")
    rewriting.rewrite, rewriting.RewriteError = fake_rewrite, RewriteError
    monkeypatch.setitem(sys.modules, "gradfix.analysis", analysis)
    monkeypatch.setitem(sys.modules, "gradfix.rewriting", rewriting)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    made = Shell(monkeypatch, capsys)
    made.rules(
        line_rule("bad_word", "GF101", "bad", "good"),
        line_rule("ugly_word", "GF301", "ugly", "nice", Applicability.UNSAFE, Severity.WARNING),
        line_rule("odd_word", "GF401", "odd", None, severity=Severity.INFO),
        line_rule("old_word", "GF901", "old", "new"),
    )
    return made


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path

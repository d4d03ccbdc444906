"""Rounds, rollbacks, writing, diffs; over fake rules and a fake rewriter."""

import os
import subprocess
import types

import pytest
from shell_support import line_rule, shell, write  # noqa: F401

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Fix, ReplaceStatement, Severity, Span


def test_apply_writes_safe_fixes_only(shell, tmp_path):
    file = write(tmp_path / "a.py", "bad\r\nx\r\nugly")
    os.chmod(file, 0o640)
    found = shell("apply")
    assert file.read_bytes() == b"good\r\nx\r\nugly" and found.code == 1
    assert os.stat(file).st_mode & 0o777 == 0o640
    assert "Fixed 1 finding. 1 warning left." in found.out
    assert shell("apply", "--unsafe-fixes").code == 0
    assert file.read_bytes() == b"good\r\nx\r\nnice"
    assert [p.name for p in tmp_path.iterdir()] == ["a.py"]


def test_dry_run(shell, tmp_path):
    file = write(tmp_path / "a.py", "bad\nx\r\nugly")
    found = shell("apply", "--dry-run")
    assert found.code == 1 and file.read_bytes() == b"bad\nx\r\nugly"
    assert found.out == "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n-bad\n+good\n x\r\n ugly\n\\ No newline at end of file\n"
    assert "Would fix 1 finding in 1 file." in found.err
    write(tmp_path / "a.py", "ugly\n")
    found = shell("apply", "--diff")
    assert found.code == 0 and found.out == ""


def test_diffs_apply_with_patch(tmp_path):
    from gradfix.engine import unified_diff

    for old, new in [
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
        (b"a\nb", b"a\nc"),
        (b"a\nb", b"a\nb\n"),
        ("\ufeffé\n\x0cx\x85y\n".encode(), "\ufeffé\n\x0cx\x85z\n".encode()),
        (b"# coding: latin-1\n'\xe9'\na\n", b"# coding: latin-1\n'\xe9'\nb\n"),
    ]:
        diff = unified_diff("a.py", old, new)
        assert diff.startswith("--- a/a.py\n+++ b/a.py\n@@ ")
        body = diff.split("\n", 3)[3]
        minus = "".join(line[1:] + "\n" for line in body.split("\n")[:-1] if line[:1] in "- " and line)
        assert minus.replace("\r", "").strip("\n")


def test_rounds_until_stable(shell, tmp_path):
    shell.rules(line_rule("one", "GF101", "aaa", "bbb"), line_rule("two", "GF102", "bbb", "ccc"))
    file = write(tmp_path / "a.py", "aaa\nbbb\n")
    assert shell("apply").code == 0 and file.read_text() == "ccc\nccc\n"


def test_two_fixes_of_one_line_both_land(shell, tmp_path):
    shell.rules(line_rule("one", "GF101", "aaa", "x"), line_rule("two", "GF102", "bbb", "y"))
    file = write(tmp_path / "a.py", "aaa + bbb\n")
    assert shell("apply").code == 0 and file.read_text() == "x + y\n"


def test_fixes_that_undo_each_other(shell, tmp_path):
    shell.rules(line_rule("one", "GF101", "aaa", "bbb"), line_rule("two", "GF102", "bbb", "aaa"))
    file = write(tmp_path / "a.py", "aaa\n")
    other = write(tmp_path / "b.py", "x\n")
    found = shell("apply")
    assert found.code == 2 and file.read_text() == "aaa\n" and other.read_text() == "x\n"
    assert found.err == "error: a.py: left as it was: fixes undo each other (one, two)\n"


def test_a_fix_that_never_ends_is_capped(shell, tmp_path):
    shell.rules(line_rule("one", "GF101", "aaa", "aaaa"))
    file = write(tmp_path / "a.py", "aaa\n")
    other = write(tmp_path / "b.py", "x = 1\n")
    found = shell("apply")
    assert found.code == 2 and "a.py: left as it was: " in found.err and "after 30 rounds (one)" in found.err
    assert file.read_text() == "aaa\n" and other.read_text() == "x = 1\n"


def test_result_that_does_not_compile(shell, tmp_path):
    shell.rules(line_rule("one", "GF101", "aaa", "((("), line_rule("two", "GF102", "bbb", "ccc"))
    a, b = write(tmp_path / "a.py", "aaa\nbbb\n"), write(tmp_path / "b.py", "bbb\n")
    found = shell("apply")
    assert found.code == 2 and a.read_text() == "aaa\nbbb\n" and b.read_text() == "ccc\n"
    assert found.err.startswith("error: a.py: left as it was: after the fixes of one, two, it would not compile")


def test_lost_comment(shell, tmp_path):
    rule = Codemod("fake.eat", code="GF101")

    @rule.check
    def check(facts):
        for path, row, line in facts.lines:
            if "aaa" in line:
                edit = ReplaceStatement(path, Span(row, 0, row, len(line)), "ok")
                yield rule.finding(path=path, span=Span(row, 0, row, 3), message="m", severity=Severity.ERROR,
                                   fix=Fix(Applicability.SAFE, "eat", (edit,)))  # fmt: skip

    shell.rules(rule)
    file = write(tmp_path / "a.py", "aaa  # why\n")
    found = shell("apply")
    assert found.code == 2 and file.read_text() == "aaa  # why\n" and "a comment would be lost: # why" in found.err


def two_files(new_b="new"):
    rule = Codemod("fake.both", code="GF101")

    @rule.check
    def check(facts):
        if any("aaa" in line for _, _, line in facts.lines):
            edits = (
                ReplaceStatement("a.py", Span(1, 0, 1, 3), "new"),
                ReplaceStatement("b.py", Span(1, 0, 1, 3), new_b),
            )
            yield rule.finding(path="a.py", span=Span(1, 0, 1, 3), message="m", severity=Severity.ERROR,
                               fix=Fix(Applicability.SAFE, "both", edits))  # fmt: skip

    return rule


def test_fix_over_two_files(shell, tmp_path):
    shell.rules(two_files())
    a, b = write(tmp_path / "a.py", "aaa\n"), write(tmp_path / "b.py", "bbb\n")
    assert shell("apply").code == 0 and a.read_text() == b.read_text() == "new\n"
    # Not when one of them is not among the checked files.
    a.write_text("aaa\n"), b.write_text("bbb\n")
    assert shell("apply", "a.py").code == 1 and a.read_text() == "aaa\n"


@pytest.mark.parametrize("new_b", ["(((", "FAIL"])
def test_fix_over_two_files_goes_in_all_or_none(shell, tmp_path, new_b):
    shell.rules(two_files(new_b), line_rule("two", "GF102", "ccc", "ddd"))
    a, b = write(tmp_path / "a.py", "aaa\nccc\n"), write(tmp_path / "b.py", "bbb\n")
    found = shell("apply")
    assert a.read_text() == "aaa\nddd\n" and b.read_text() == "bbb\n"
    assert found.code == (2 if new_b == "(((" else 1) or found.code == 2


def test_stdin(shell, tmp_path, monkeypatch):
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b"bad\r\nugly")))
    found = shell("apply", "-", "--stdin-filename", "x.py")
    assert found.out == "good\r\nugly" and found.code == 1 and "x.py:2:1: warning" in found.err
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b"bad\n")))
    found = shell("apply", "-", "--diff")
    assert found.out.startswith("--- a/-\n+++ b/-\n")


def test_symlink_is_followed_not_replaced(shell, tmp_path):
    target = write(tmp_path / "real" / "t.txt", "bad\n")
    os.symlink(target, tmp_path / "a.py")
    assert shell("apply").code == 0
    assert (tmp_path / "a.py").is_symlink() and target.read_text() == "good\n"


def test_read_only_file_is_a_problem(shell, tmp_path, monkeypatch):
    from gradfix import source

    def refuse(path, data):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(source, "atomic_write", refuse)
    write(tmp_path / "a.py", "bad\n")
    found = shell("apply")
    assert found.code == 2 and found.err == "error: a.py: can't be written: permission denied\n"


def test_uncommitted_changes_are_named(shell, tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    for name in ("a.py", "b.py", "c.py"):
        write(tmp_path / name, "bad\n")
    calls = []

    def status(command, **more):
        calls.append(command)
        return types.SimpleNamespace(returncode=0, stdout=b" M a.py\0?? c.py\0 M z.py\0")

    monkeypatch.setattr(subprocess, "run", status)
    found = shell("apply")
    assert found.code == 0 and calls[0][:2] == ["git", "status"]
    assert [line.split()[1] for line in found.err.splitlines()] == ["a.py", "c.py"]
    write(tmp_path / "a.py", "bad\n")
    calls.clear()
    shell("apply", "--diff")
    assert calls == []


def test_a_fix_that_cannot_be_made_is_named_and_the_others_go_in(shell, tmp_path):
    shell.rules(line_rule("one", "GF101", "aaa", "FAIL"), line_rule("two", "GF102", "bbb", "ccc"))
    file = write(tmp_path / "a.py", "bbb\nx = aaa\n")
    found = shell("apply")
    assert found.code == 2 and file.read_text() == "ccc\nx = aaa\n"
    assert found.err == "error: a.py:2:5: the fix of one can't be made: can't be done\n"

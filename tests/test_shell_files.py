"""Sources, discovery, the runner and the registry."""

import os
import sys
import types

import pytest
from shell_support import shell, write  # noqa: F401

from gradfix import codemod, suppressions
from gradfix.codemod import Codemod, RegistryError
from gradfix.discovery import Patterns, discover
from gradfix import preview
from gradfix.preview import Replacement
from gradfix.source import SourceError, atomic_write, decode, lines_of, read_source


@pytest.mark.parametrize(
    "data, text, encoding",
    [
        (b"", "", "utf-8"),
        (b"\xef\xbb\xbfx = 1\r\n", "x = 1\r\n", "utf-8-sig"),
        (b"# -*- coding: latin-1 -*-\n'\xe9'", "# -*- coding: latin-1 -*-\n'é'", "iso-8859-1"),
        ("'é'\x0c\n".encode(), "'é'\x0c\n", "utf-8"),
    ],
)
def test_decode(data, text, encoding):
    source = decode("a.py", data)
    assert (source.text, source.encoding) == (text, encoding) and source.encode(text) == data


@pytest.mark.parametrize(
    "data, words, row, col",
    [
        (b"x\ny = \0", "NUL", 2, 5),
        ("x = 1\n".encode("utf-16"), "UTF-16", 1, None),
        (b"x = 1\n\n# \xff", "byte 0xff is not valid utf-8", 3, 3),
        (b"'\xe9'\n", "byte 0xe9 is not valid utf-8", 1, 2),
        (b"# coding: nope\n", "unknown encoding: nope", 1, 1),
        (b"# coding: rot13\n", "rot", 1, 1),
        (b"# coding: ascii\n# \xe9", "is not valid ascii", 2, 3),
        (b"\xef\xbb\xbf# coding: latin-1\n", "", 1, 1),
    ],
)
def test_undecodable(data, words, row, col):
    with pytest.raises(SourceError) as caught:
        decode("a.py", data)
    assert words in caught.value.reason and caught.value.row == row and col in (None, caught.value.col)


def test_unreadable(tmp_path):
    os.symlink("nowhere", tmp_path / "a.py")
    for name, reason in (("a.py", "broken symbolic link"), ("b.py", "no such file or directory")):
        with pytest.raises(SourceError, match=reason):
            read_source(str(tmp_path / name))
    with pytest.raises(SourceError, match="directory"):
        read_source(str(tmp_path))


def test_atomic_write_leaves_nothing_behind(tmp_path, monkeypatch):
    file = write(tmp_path / "a.py", "old")
    atomic_write(str(file), b"new")
    assert file.read_bytes() == b"new"

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        atomic_write(str(file), b"newer")
    assert file.read_bytes() == b"new" and os.listdir(tmp_path) == ["a.py"]


def names(*paths, **more):
    return discover(list(paths) or ["."], **more)[0]


def test_discovery(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "a.py", "b.txt", "run", "p/b.py", "p/gen/c.py", "p/gen/keep.py", ".venv/x.py", "build/x.py", "p/node_modules/x.py",
        "site-packages/y.py", "out/z.py", ".hidden/h.py",
    ):  # fmt: skip
        write(tmp_path / name, "")
    assert names() == sorted(
        [".hidden/h.py", "a.py", "p/b.py", "p/gen/c.py", "p/gen/keep.py", "site-packages/y.py", "out/z.py"]
    )
    write(tmp_path / ".gitignore", "out/\n*.txt\n")
    write(tmp_path / "p/.gitignore", "gen/*\n!gen/keep.py\n")
    assert names() == sorted([".hidden/h.py", "a.py", "p/b.py", "p/gen/keep.py", "site-packages/y.py"])
    assert names("out/z.py", "run", "a.py", "./a.py") == ["a.py", "out/z.py", "run"]
    excludes = [Patterns(str(tmp_path), ["p", "a*"])]
    assert names(excludes=excludes) == [".hidden/h.py", "site-packages/y.py"]
    assert names("a.py", "p/b.py", excludes=excludes) == ["a.py", "p/b.py"]
    assert names("a.py", "p/b.py", "run", excludes=excludes, force_exclude=True) == ["run"]
    # From a folder below the repository's root, its ignore files still count, unless the folder itself is ignored.
    (tmp_path / ".git").mkdir()
    write(tmp_path / ".gitignore", "out/\nb.py\n")
    monkeypatch.chdir(tmp_path / "p")
    assert names() == ["gen/keep.py"]
    assert names("../out") == [str(tmp_path / "out/z.py")]


def test_links_are_listed_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "z.py", "")
    os.symlink("z.py", tmp_path / "a.py")
    os.symlink("nowhere.py", tmp_path / "b.py")
    os.symlink(".", tmp_path / "loop")
    os.mkdir(tmp_path / "folder.py")
    files, problems = discover(["."])
    assert files == ["z.py"]
    assert [(p.path, p.reason) for p in problems] == [("b.py", "broken symbolic link")]


def test_notebooks_and_markdown_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.ipynb", "b.md", ".ipynb_checkpoints/a.ipynb"):
        write(tmp_path / name, "{}")
    assert discover(["."]) == (["a.ipynb"], [])
    assert discover(["."], markdown=True) == (["a.ipynb", "b.md"], [])


def many(tmp_path, count=8):
    for i in range(count):
        write(tmp_path / f"p{i % 3}/m{i}.py", f"bad{i} = 1\n" + f"# {'x' * 70}\n" * 400)


def test_pool_gives_the_same_as_one_process(shell, tmp_path):
    many(tmp_path)
    one = shell("check", "--jobs", "1", "--output-format", "json")
    two = shell("check", "--jobs", "2", "--output-format", "json")
    assert one.out == two.out and one.out.count("GF101") == 8 and one.code == two.code == 1


def test_killed_worker_is_a_problem(shell, tmp_path):
    many(tmp_path)
    write(tmp_path / "p1/dead.py", "KILL = 1\n")
    found = shell("check", "--jobs", "2", "--output-format", "concise")
    assert found.code == 2 and found.out.count("GF101") == 8
    assert found.err == "error: p1/dead.py: the process that analysed it was killed (out of memory?)\n"


def test_crash_of_the_analysis_loses_one_file(shell, tmp_path):
    many(tmp_path)
    write(tmp_path / "p1/crash.py", "CRASH = 1\n")
    for jobs in "12":
        found = shell("check", "--jobs", jobs, "--output-format", "concise")
        assert found.code == 2 and found.out.count("GF101") == 8
        assert found.err.startswith("error: p1/crash.py: the analysis crashed: RuntimeError: boom (")
        assert found.err.count("\n") == 1


def test_bad_files_one_line_each(shell, tmp_path):
    bad = {
        "syntax.py": b"def f(:\n",
        "py2.py": b"print 'x'\n",
        "nul.py": b"x\0",
        "enc.py": b"'\xe9'\n",
        "deep.py": b"".join(b" " * i + b"if x:\n" for i in range(200)) + b" " * 200 + b"pass\n",
    }
    for name, data in bad.items():
        write(tmp_path / name, data)
    write(tmp_path / "empty.py", b"")
    write(tmp_path / "good.py", b"bad\n")
    os.symlink("nowhere", tmp_path / "link.py")
    found = shell("check", ".", "gone.py", "--output-format", "concise")
    assert found.code == 2 and "good.py:1:1" in found.out
    lines = found.err.splitlines()
    assert sorted(line.split(":")[1].strip() for line in lines) == sorted([*bad, "link.py", "gone.py"])


def replacements(before, after):
    old = lines_of(before)
    return preview.replacements(old, preview.changes(old, lines_of(after)))


def test_replacements():
    assert replacements("a\nb\nc", "a\nx\nb\nc") == [Replacement("x\n", 2, 1, 2, 1)]
    assert replacements("a\nb", "a\nc\n") == [Replacement("c\n", 2, 1, 2, 2)]
    assert replacements("a\r\nb\r\n", "a\r\n") == [Replacement("", 2, 1, 3, 1)]
    assert replacements("", "x\n") == [Replacement("x\n", 1, 1, 1, 1)]
    assert replacements("a\nb\n", "a\nb\n") == []


def test_registry(monkeypatch, tmp_path):
    write(tmp_path / "fakepack/__init__.py", "")
    text = "'''# Title\n\nFirst sentence.\n'''\nfrom gradfix.codemod import Codemod\ncodemod = Codemod(__name__, code={!r})\n"
    write(tmp_path / "fakepack/some_rule.py", text.format("XX101"))
    write(tmp_path / "fakepack/helpers.py", "x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    rules = codemod.load(["fakepack"])
    assert [(r.code, r.name) for r in rules] == [("GF001", "unused-suppression"), ("XX101", "some-rule")]
    assert rules[1].doc.startswith("# Title") and rules[1].summary == "First sentence."
    write(tmp_path / "fakepack/other_rule.py", text.format("XX101"))
    with pytest.raises(RegistryError, match="the code XX101 is used by both"):
        codemod.load(["fakepack"])
    write(tmp_path / "fakepack2/__init__.py", "1/0")
    with pytest.raises(RegistryError, match="fakepack2 can't be loaded"):
        codemod.load(["fakepack2"])
    with pytest.raises(RegistryError):
        Codemod("a.b", code="nope")


def test_our_rules_load_without_torch_or_libcst(tmp_path):
    import subprocess

    code = (
        "import sys; from gradfix import codemod, cli, engine; codemod.load();"
        "print([m for m in ('torch', 'libcst', 'numpy') if m in sys.modules])"
    )
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert found.stdout == "[]\n", found.stderr


def test_suppression_comments():
    parsed = suppressions.parse("a.py", "x = '# gradfix: ignore'\ny = 1  # why # gradfix: ignore[a-b, GF1] # noqa:GF101\n")
    assert [(c.row, c.rules, c.ours) for c in parsed.comments] == [(2, ("a-b", "GF1"), True), (2, ("GF101",), False)]
    assert suppressions.parse("a.py", "# gradfix: skip-file\nx = (\n").skip
    assert not suppressions.parse("a.py", "# gradfix: ignored\n# noqable\n").comments

"""`gradfix review`: what a change introduces, where it is said, and that it is posted once."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from review_support import API, Fault, GitHub, GitLab, blocks, clicked, git

from gradfix.cli import run
from gradfix.review import changes, comments, payload, posting

MODEL = "import torch\n\nbase = torch.ones(1, requires_grad=True)\n\n\ndef make_gain():\n    return base\n"
TRAIN = """\
import torch
from torch import nn

from model import make_gain

x = torch.randn(8, 4)
net = nn.Linear(4, 1)
gain = make_gain()

out = gain * net(x)
loss = out.pow(2).mean()
loss.backward()
print("gradient", gain.grad.norm().item())
"""
OLD = """\
import torch

w = torch.zeros(3, requires_grad=True)
for _ in range(3):
    loss = (w - 1).pow(2).sum()
    loss.backward()
    w -= 0.1 * w.grad
    w.grad = None
"""
SHOW = 'loss.backward()\nprint("output", out.grad.norm().item())\n'
FIRST = {"model.py": MODEL, "train.py": TRAIN, "old.py": OLD}
# One mistake on a changed line, one caused by a changed line of another file, one old.
SECOND = {"model.py": MODEL.replace("return base", "return base * 0.5"), "train.py": TRAIN.replace("loss.backward()\n", SHOW)}


def write(folder: Path, files: dict):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def repository(folder: Path, first: dict, second: dict, removed=()) -> Path:
    """Branch `main` has `first`; branch `change`, checked out, adds `second`."""
    git(folder, "init", "-q", "-b", "main", ".")
    write(folder, first)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first", "--allow-empty")
    git(folder, "checkout", "-qb", "change")
    write(folder, second)
    for name in removed:
        (folder / name).unlink()
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "second", "--allow-empty")
    return folder


@pytest.fixture
def repo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith(("GITHUB_", "CI_", "GITLAB_", "GH_"))]:
        monkeypatch.delenv(name)

    def make(first=FIRST, second=SECOND, removed=()):
        return repository(tmp_path, first, second, removed)

    return make


@pytest.fixture
def review(capsys):
    def call(*arguments, command="review"):
        capsys.readouterr()
        code = run([command, "--isolated", "--no-cache", "-j1", *map(str, arguments)])
        out, err = capsys.readouterr()
        return types.SimpleNamespace(code=code, out=out, err=err)

    return call


def found(output: str) -> list[str]:
    return re.findall(r"^ *--> (.*):\d+$", output, re.M)


# ------------------------------------------------------------------ what is kept


def test_two_of_three(repo, review):
    repo()
    done = review("--base", "main")
    assert done.code == 1 and found(done.out) == ["train.py:13", "train.py:14"]
    assert len(re.findall(r"^\w+\[GF", review(command="check").out, re.M)) == 3
    assert review("--base", "main", "--exit-zero").code == 0


def test_filters(repo, review):
    repo()
    rows = {"added": 2, "context": 2, "file": 2, "none": 3}
    assert {m: len(found(review("--base", "main", "--filter", m).out)) for m in rows} == rows


def test_context_filter_keeps_what_lies_near(repo, review):
    repo({"a.py": OLD}, {"a.py": OLD.replace("    loss = ", "    # the loss\n    loss = ")})
    assert found(review("--base", "main").out) == []
    assert found(review("--base", "main", "--filter", "context").out) == ["a.py:8"]


def test_a_removed_line_is_a_cause(repo, review):
    kept = "import torch\nx = torch.ones(2, requires_grad=True)\nh = x * 2\nh.retain_grad()\n" + "\n" * 9
    kept += "h.sum().backward()\nprint(h.grad)\n"
    repo({"a.py": kept}, {"a.py": kept.replace("h.retain_grad()\n", "")})
    assert found(review("--base", "main").out) == ["a.py:14"]
    for context in ("-U3", "-U0"):
        Path("d.diff").write_text(git(".", "diff", context, "main", "change"))
        assert found(review("--diff", "d.diff").out) == ["a.py:14"]


def test_a_hunk_that_only_removes_is_taken_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"a.py": "1\n4\n5"})
    diff = "--- a/a.py\n+++ b/a.py\n@@ -2,2 +1,0 @@\n-2\n-3\n@@ -6 +3 @@\n-6\n+5\n\\ No newline at end of file\n"
    change = changes.Changes(str(tmp_path), changes.parse(diff))
    assert changes.old_contents(change) == {"a.py": b"1\n2\n3\n4\n6\n"}


def test_moved_and_renamed_files_bring_nothing_new(repo, review):
    repo({"a.py": OLD, "gone.py": OLD}, {"b/c.py": "\n\n" + OLD}, removed=["a.py", "gone.py"])
    done = review("--base", "main")
    assert (done.code, found(done.out)) == (0, [])


INSIDE = "import torch\n\n\ndef f():\n    {}\n".format("\n    ".join(OLD.splitlines()[1:]).replace("\n    \n", "\n\n"))


def test_a_new_name_around_an_old_finding_makes_it_no_new_one(repo, review):
    late = INSIDE + "\n\nv = torch.tensor([1], requires_grad=True)\n"
    repo({"a.py": INSIDE}, {"a.py": "# moved\n\n" + late.replace("def f():", "def g():")})
    assert found(review(command="check").out) == ["a.py:12", "a.py:16"]
    assert found(review("--base", "main").out) == ["a.py:16"]


def test_a_second_finding_on_an_old_line_is_new(repo, review):
    text = "import torch\na = torch.ones(2, requires_grad=True)\nb = {}\n" + "\n" * 8
    text += "h, k = a * 2, b * 2\n(h.sum() + k.sum()).backward()\nprint(h.grad, k.grad)\n"
    never, always = text.format("a.detach()"), text.format("a")
    repo({"a.py": never}, {"a.py": always})
    assert found(review(command="check").out) == ["a.py:14", "a.py:14"]
    assert len(found(review("--base", "main").out)) == 1


def test_new_file_and_uncommitted_change(repo, review):
    root = repo({"a.py": "x = 1\n"}, {"new.py": OLD})
    assert found(review("--base", "main").out) == ["new.py:7"]
    write(root, {"new.py": OLD + "w.require_grad = True\n"})
    assert found(review("--base", "main").out) == ["new.py:7", "new.py:9"]


def test_untracked_files_are_new_ones(repo, review):
    root = repo({"a.py": OLD, ".gitignore": "made.py\n"}, {"b.py": "x = 1\n"})
    index = (root / ".git/index").read_bytes()
    objects = sorted((root / ".git/objects").rglob("*"))
    write(root, {"sub/new é.py": OLD, "made.py": OLD, "empty.py": ""})
    assert found(review("--base", "main").out) == ["sub/new é.py:7"]
    assert found(review("--base", "main", "--no-untracked").out) == []
    assert found(review("--base", "main", "--exclude", "sub").out) == []
    (root / "a.py").rename(root / "c.py")  # as a move, which git is told of later
    assert found(review("--base", "main").out) == ["sub/new é.py:7"]
    # The platform has no such file.
    assert github_payload(review, "--base", "main")["comments"] == []
    assert (root / ".git/index").read_bytes() == index and sorted((root / ".git/objects").rglob("*")) == objects


def test_untracked_files_seen_from_a_subfolder(repo, review, monkeypatch):
    root = repo({"a.py": OLD}, {"sub/b.py": "x = 1\n"})
    write(root, {"sub/new.py": OLD})
    monkeypatch.chdir(root / "sub")
    assert found(review("--base", "main").out) == ["new.py:7"]


def test_renamed_markdown_brings_nothing_new(repo, review):
    text = f"# Lesson\n\n```python\n{OLD}```\n" + "Text.\n" * 20
    repo({"a.md": text}, {"b.md": text.replace("Text", "Words", 1)}, removed=["a.md"])
    assert review("--include-markdown", command="check").code == 1
    assert review("--base", "main", "--include-markdown").code == 0
    assert review("--base", "main", "--include-markdown", "--filter", "file").code == 1


def test_before_the_first_commit(tmp_path, monkeypatch, review):
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q", ".")
    write(tmp_path, {"train.py": SECOND["train.py"], "old.py": OLD})
    assert found(review("--base", "HEAD").out) == ["old.py:7", "train.py:13"]
    assert review("--base", "HEAD", "--no-untracked").code == 0
    git(tmp_path, "add", "train.py")
    done = review("--base", "HEAD", "--no-untracked")
    assert done.code == 1 and found(done.out) == ["train.py:13"]
    assert review("--base", "main").code == 2


def test_the_merge_base_counts(repo, review):
    """What main gained in the meantime is none of this change's business."""
    root = repo({"a.py": OLD, "b.py": "x = 1\n"}, {"b.py": "x = 2\n"})
    git(root, "checkout", "-q", "main")
    write(root, {"a.py": "x = 1\n"})
    git(root, "commit", "-qam", "repaired on main")
    git(root, "checkout", "-q", "change")
    assert found(review("--base", "main").out) == []


def test_subfolder(repo, review, monkeypatch):
    root = repo({"sub/a.py": "x = 1\n"}, {"sub/a.py": OLD, "other.py": OLD})
    monkeypatch.chdir(root / "sub")
    assert found(review("--base", "main").out) == ["a.py:7"]
    made = json.loads(review("--base", "main", "--output-format", "github").out)
    assert [c["path"] for c in made["comments"]] == ["sub/a.py"]


@pytest.mark.parametrize("options", [["-U0"], ["--no-prefix"], ["--src-prefix=i/", "--dst-prefix=w/"], ["-U99"]], ids=str)
def test_diffs_of_other_makers(repo, review, monkeypatch, options):
    repo()
    diff = git(".", "diff", *options, "main", "change")
    Path("d.diff").write_text(diff)
    assert found(review("--diff", "d.diff").out) == ["train.py:13", "train.py:14"]
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=open("d.diff", "rb")))
    assert found(review("--diff", "-").out) == ["train.py:13", "train.py:14"]


@pytest.mark.parametrize(
    "written",
    [
        lambda d: d.replace(b"\n", b"\r\n"),  # by an editor, or git on Windows
        lambda d: d.decode().replace("\n", "\r\n").encode("utf-16"),  # by a Windows shell
        lambda d: b"\xef\xbb\xbf" + d,
        lambda d: b"From 0123 Mon Sep 17 00:00:00 2001\nSubject: --- x\n\n" + d + b"-- \n2.39.5\n\n",
        lambda d: re.sub(rb"(?m)^([^ \n][^\r\n]*)", b"\x1b[1;32m\\1\x1b[m", d),  # git with color.ui=always
    ],
    ids=["crlf", "utf-16", "bom", "mail", "colour"],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf-file", "crlf-file"])
def test_diffs_that_were_written_oddly(repo, review, written, newline):
    first, second = ({n: t.replace("\n", newline) for n, t in files.items()} for files in (FIRST, SECOND))
    root = repo(first, {**second, "é.py": OLD.replace("\n", newline)})
    Path("d.diff").write_bytes(written(git(root, "-c", "core.quotePath=false", "diff", "main", "change").encode()))
    assert found(review("--diff", "d.diff").out) == ["train.py:13", "train.py:14", "é.py:7"]


def test_a_series_of_patches_is_no_change(repo, review):
    """Each leads to the next: the rows of all but the last are not those of the files."""
    root = repo()
    write(root, {"train.py": SECOND["train.py"] + "w = torch.tensor([1], requires_grad=True)\n"})
    git(root, "commit", "-qam", "third")
    for command in (["format-patch", "--stdout", "main"], ["log", "-p", "main..change"]):
        Path("d.diff").write_text(git(root, *command))
        done = review("--diff", "d.diff")
        assert done.code == 2 and "the diff has train.py twice" in done.err


def test_a_diff_of_a_merge_is_refused(repo, review):
    root = repo()
    git(root, "checkout", "-q", "main")
    write(root, {"train.py": TRAIN.replace("randn(8, 4)", "randn(9, 4)")})
    git(root, "commit", "-qam", "other")
    git(root, "checkout", "-q", "change")
    git(root, "merge", "-q", "--no-commit", "main")
    write(root, {"train.py": (root / "train.py").read_text().replace("randn(9", "randn(7")})
    git(root, "commit", "-qam", "merged")
    for option in ("--cc", "-c"):
        Path("d.diff").write_text(git(root, "show", option))
        done = review("--diff", "d.diff")
        assert done.code == 2 and "has several old sides" in done.err
    assert found(review("--base", "main").out) == ["train.py:13", "train.py:14"]


def test_a_file_that_turns_into_a_link_is_no_series(repo, review):
    root = repo({"a.py": "x = 1\n", "b.py": "x = 1\n"}, {"b.py": OLD})
    (root / "a.py").unlink()
    (root / "a.py").symlink_to("b.py")
    git(root, "commit", "-qam", "third")
    Path("d.diff").write_text(git(root, "diff", "main"))
    assert found(review("--diff", "d.diff").out) == ["b.py:7"]


@pytest.mark.parametrize("attributes", ["*.py -diff", "*.py binary", "*.py diff=odd"])
def test_attributes_hide_no_lines(repo, review, attributes):
    root = repo()
    (root / ".git" / "info").mkdir(exist_ok=True)
    (root / ".git" / "info" / "attributes").write_text(attributes)
    git(root, "config", "diff.odd.binary", "true")
    assert found(review("--base", "main").out) == ["train.py:13", "train.py:14"]


def test_a_diff_without_the_lines_of_a_file_says_so(repo, review):
    root = repo()
    (root / ".git" / "info").mkdir(exist_ok=True)
    (root / ".git" / "info" / "attributes").write_text("train.py binary")
    Path("d.diff").write_text(git(root, "diff", "main"))
    done = review("--diff", "d.diff")
    assert done.code == 1 and "warning: train.py: the diff does not have its lines" in done.err
    assert found(done.out) == ["train.py:14"]  # by its cause in model.py


def test_a_file_that_the_change_does_not_touch_may_be_unreadable(repo, review):
    repo({**FIRST, "legacy.py": "print 1\n", "legacy2.py": "print 1\n"}, SECOND)
    done = review("--base", "main")
    assert done.code == 1 and found(done.out) == ["train.py:13", "train.py:14"]
    assert "warning: not read, and not part of the change: legacy.py:1: " in done.err and done.err.endswith(", and 1 more file\n")
    assert "legacy" not in review("--base", "main", "--output-format", "rdjson").out
    assert review("--base", "main", "--filter", "none").code == 2
    write(Path(), {"legacy.py": "print 2\n"})
    done = review("--base", "main")
    assert done.code == 2 and "error: legacy.py:1:1: " in done.err and "legacy2" not in done.out


def test_what_is_no_text_is_left_out(repo, review):
    root = repo(
        {"a.py": "x = 1\n", "b.bin": b"\0", "c.ipynb": b"\0\1", "link.py": "x = 1\n"},
        {"a.py": OLD, "b.bin": b"\0\2"},
        ["c.ipynb"],
    )
    (root / "link.py").unlink()
    (root / "link.py").symlink_to("a.py")
    (root / "a.py").chmod(0o755)
    git(root, "add", "-A")
    done = review("--base", "main")
    assert (done.code, done.err, found(done.out)) == (1, "", ["a.py:7"])
    Path("d.diff").write_text(git(root, "diff", "--binary", "main"))
    done = review("--diff", "d.diff")
    assert (done.code, done.err, found(done.out)) == (1, "", ["a.py:7"])


def test_a_submodule_is_not_part_of_the_change(repo, review, tmp_path_factory):
    other = repository(tmp_path_factory.mktemp("other"), {"s.py": OLD}, {"s.py": OLD + "\n"})
    root = repo({"a.py": "x = 1\n"}, {"a.py": OLD})
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(root, "commit", "-qm", "with a submodule")
    assert found(review("--base", "main").out) == ["a.py:7"]
    assert found(review("--base", "HEAD~1").out) == []


def test_a_shallow_clone_says_what_it_lacks(repo, review, tmp_path_factory, monkeypatch):
    root = repo()
    clone = tmp_path_factory.mktemp("clone")
    git(clone, "clone", "-q", "--depth=1", "--no-single-branch", root.as_uri(), "c")
    monkeypatch.chdir(clone / "c")
    done = review("--base", "origin/main")
    assert done.code == 2 and "no merge base: the clone may be shallow" in done.err
    Path("d.diff").write_text(git(clone / "c", "diff", "origin/main"))
    assert found(review("--diff", "d.diff").out) == ["train.py:13", "train.py:14"]


def test_odd_names_and_contents(repo, review):
    names = ['we "ird é.py', "sp ace.py", "tab\t.py", "𝄞.py"]
    late = "# coding: latin-1\ns = '\xe9'\n".encode("latin-1") + OLD.replace("import torch", "import torch  # \x0c\x85").encode(
        "latin-1"
    )
    repo({n: "x = 1\n" for n in names} | {"l.py": b"x = 1\n"}, {n: OLD for n in names} | {"l.py": late})
    done = review("--base", "main")
    assert sorted(f.rsplit(":", 1)[0] for f in found(done.out)) == sorted([*names, "l.py"])
    made = json.loads(review("--base", "main", "--output-format", "github").out)
    assert sorted(c["path"] for c in made["comments"]) == sorted([*names, "l.py"])


def test_lone_carriage_returns_do_not_shift_rows(repo, review):
    repo({"a.py": "x = 1\n"}, {"a.py": b"x = 1\r# one\r# two\r" + OLD.encode()})
    made = json.loads(review("--base", "main", "--output-format", "github").out)
    (comment,) = made["comments"]
    assert comment["line"] == 7 and "```suggestion" not in comment["body"]  # git's seventh row, Python's tenth


def test_nothing_to_do(repo, review):
    repo({"a.txt": "x"}, {"a.txt": "y"})
    assert review("--base", "main").code == 0
    made = json.loads(review("--base", "main", "--output-format", "github").out)
    assert made["comments"] == []


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ([], "a review needs a change"),
        (["--base", "nope"], "nope is no commit that git knows here"),
        (["--base", "--help"], "--help is no commit that git knows here"),
        (["--base", "main", "--diff", "d"], "exclude each other"),
        (["--diff", "nope.diff"], "nope.diff: no such file or directory"),
        (["--diff", "model.py"], "names no file"),
        (["--diff", "bad.diff"], "the diff can't be read"),
        (["--from", "x"], "--from needs --post"),
        (["--base", "orphan"], "no merge base"),
        (["--post", "github"], "GITHUB_TOKEN"),
        (["--post", "gitlab"], "CI_MERGE_REQUEST_IID"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_bad_usage_is_one_line(repo, review, arguments, reason):
    root = repo()
    write(root, {"bad.diff": "--- a/x\n+++ b/x\n@@ -1,5 +1,9 @@\n-a\n+b\n"})
    git(root, "checkout", "-q", "--orphan", "orphan")
    git(root, "commit", "-qm", "alone")
    git(root, "checkout", "-q", "change")
    done = review(*arguments)
    assert done.code == 2 and done.out == ""
    assert reason in done.err and len(done.err.splitlines()) == 1


def test_outside_of_a_repository(tmp_path, review, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    write(
        tmp_path,
        {"a.py": OLD, "d.diff": "--- /dev/null\n+++ b/a.py\n@@ -0,0 +1,8 @@\n" + "".join(f"+{x}\n" for x in OLD.splitlines())},
    )
    assert "not a git repository" in review("--base", "main").err
    assert found(review("--diff", "d.diff").out) == ["a.py:7"]


def test_a_diff_of_other_contents(repo, review):
    root = repo()
    Path("d.diff").write_text(git(root, "diff", "main", "change"))
    write(root, {"train.py": "# moved\n" + SECOND["train.py"]})
    done = review("--diff", "d.diff")
    assert done.code == 2
    assert "error: train.py:10: the diff does not fit this file: it was made from other contents" in done.err
    assert found(done.out) == ["train.py:15"]  # by its cause in model.py


# ---------------------------------------------------------------- what is suggested


def github_payload(review, *arguments) -> dict:
    made = json.loads(review("--output-format", "github", *arguments).out)
    post = API["paths"]["/repos/{owner}/{repo}/pulls/{pull_number}/reviews"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.validate(made, schema)
    assert set(made) <= set(schema["properties"]) and made["body"] and made["event"] == "COMMENT"
    for comment in made["comments"]:
        assert set(comment) <= set(schema["properties"]["comments"]["items"]["properties"])
        assert comment.get("start_line", 0) < comment["line"]
    return made


def click_all(made: dict) -> None:
    """Apply all suggestions of a payload to the files."""
    if "discussions" in made:
        at = [d["position"] | {"body": d["body"]} for d in made["discussions"]]
        found = [(p["new_path"], p["new_line"], p["new_line"], p["body"]) for p in at]
    else:
        found = [(c["path"], c.get("start_line", c["line"]), c["line"], c["body"]) for c in made["comments"]]
    contents = {path: Path(path).read_bytes() for path, *_ in found}
    for path, data in clicked(contents, found).items():
        Path(path).write_bytes(data)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.glob("*.py")}


def clicks_give_what_apply_gives(root, review, *options, platform="github"):
    if platform == "github":
        made = github_payload(review, "--base", "main", *options)
        assert made["commit_id"] == git(root, "rev-parse", "HEAD").strip()
    else:
        made = json.loads(review("--base", "main", "--output-format", "gitlab", *options).out)
    before = contents(root)
    click_all(made)
    by_click = contents(root)
    write(root, before)
    review("train.py", "model.py", *options, command="apply")
    assert contents(root) == by_click != before
    assert review("--base", "main").code == 0


def test_suggestions_give_what_apply_gives(repo, review):
    clicks_give_what_apply_gives(repo(), review)


real_fence, real_comment, real_replaced = payload.fence, payload.github_comment, comments._replaced
real_discussion = payload.gitlab_discussion
HARD = """\
import torch


def f(w):
    h = w * 2
    h.sum().backward()
    return h.grad.norm()


f(torch.ones(2, requires_grad=True))
v = torch.randn(3, requires_grad=True) * len('''
```
''')
v.sum().backward()
print(v.grad)
"""


def no_lines_above(review, comment):
    made = real_discussion(review, comment)
    return made | {"body": re.sub(r"suggestion:-\d+", "suggestion:-0", made["body"])}


FENCES = [
    (payload, "fence", lambda text, kind: f"```{kind}\n{text}```"),
    (payload, "fence", lambda text, kind: real_fence(text + "\n", kind)),
    (payload, "fence", lambda text, kind: real_fence(text.lstrip(), kind)),
    (comments, "_replaced", lambda lines, group: real_replaced(lines, group)[:-1]),
]


@pytest.mark.parametrize(
    "platform, module, name, broken",
    [
        *[(platform, *how) for platform in ("github", "gitlab") for how in FENCES],
        ("github", payload, "github_comment", lambda *a: (c := real_comment(*a)) | {"line": c["line"] - 1}),
        (
            "github", payload, "github_comment",
            lambda *a: {k: v for k, v in real_comment(*a).items() if not k.startswith("start")},
        ),
        ("gitlab", payload, "gitlab_discussion", no_lines_above),
    ],
    ids=[
        *[f"{platform} {how}" for platform in ("github", "gitlab") for how in ("short fence", "blank line", "indentation", "last line")],
        "github line", "github start", "gitlab start",
    ],
)  # fmt: skip
def test_a_broken_suggestion_is_noticed(repo, review, monkeypatch, platform, module, name, broken):
    root = repo(FIRST, {**SECOND, "train.py": HARD})
    clicks_give_what_apply_gives(root, review, "--unsafe-fixes", platform=platform)
    write(root, {"train.py": HARD})
    monkeypatch.setattr(module, name, broken)
    with pytest.raises((AssertionError, IndexError)):
        clicks_give_what_apply_gives(root, review, "--unsafe-fixes", platform=platform)


RUNS = "import pathlib\n\npathlib.Path(__file__).with_name('ran').touch()\n"


def test_only_verify_runs_the_code_and_suggests_what_proves_right(repo, review):
    right = TRAIN.replace("loss.backward()\n", SHOW) + RUNS
    wrong = "import no_such_module\n" + right
    files = {"train.py": right, "wrong.py": wrong}
    root = repo({"model.py": MODEL}, files)
    made = github_payload(review, "--base", "main")
    assert all("```suggestion" in c["body"] for c in made["comments"]) and not (root / "ran").exists()
    done = review("--base", "main", "--verify", "--output-format", "github")
    assert "gradfix review --verify runs your scripts" in done.err and "not proven: wrong.py:" in done.err
    bodies = {c["path"]: c["body"] for c in json.loads(done.out)["comments"]}
    assert "```suggestion" in bodies["train.py"] and "```suggestion" not in bodies["wrong.py"]
    assert "The fix did not prove right (" in bodies["wrong.py"] and "+out.retain_grad()" in bodies["wrong.py"]
    found = json.loads(review("--base", "main", "--verify", "--output-format", "rdjson").out)["diagnostics"]
    assert [(d["location"]["path"], "suggestions" in d) for d in found] == [("train.py", True), ("wrong.py", False)]


SPAWNED = """\
import multiprocessing, sys

from gradfix.cli import run

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv.pop(1))
    sys.exit(run())
"""


@pytest.mark.parametrize("how", ["-m", "fork", "spawn", "forkserver"])
def test_no_module_of_the_repository_is_imported(repo, tmp_path_factory, how):
    """A pull request may bring a file that is named as a module that GradFix or Python itself imports."""
    if how in ("spawn", "forkserver") and sys.version_info < (3, 11):
        pytest.skip("Python can't be told")
    names = ["enum", "typer", "unidiff", "codemods", "multiprocessing", "libcst", "signal"]
    files = {f"{name}.py": RUNS for name in names} | {f"big{i}.py": OLD + "x = 1\n" * 12_000 for i in range(2)}
    root = repo({"a.py": "x = 1\n"}, {**files, "a.py": OLD})
    if how == "-m":
        command = ["-m", "gradfix"]
    else:
        (script := tmp_path_factory.mktemp("bin") / "gradfix-command").write_text(SPAWNED)
        command = [str(script), how]
    done = subprocess.run(
        [sys.executable, *command, "review", "--base", "main", "--isolated", "-j2"], cwd=root, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}, timeout=120,
    )  # fmt: skip
    assert (done.returncode, found(done.stdout)) == (1, ["a.py:7", "big0.py:7", "big1.py:7"]), done.stderr
    assert not (root / "ran").exists()


def test_verify_by_a_command(repo, review):
    repo()
    command = f"{sys.executable} -c 'import train'"
    done = review("--base", "main", "--verify-command", command, "--output-format", "github")
    assert done.code == 1 and any("```suggestion" in c["body"] for c in json.loads(done.out)["comments"])
    done = review("--base", "main", "--verify-command", "false", "--output-format", "github")
    assert not any("```suggestion" in c["body"] for c in json.loads(done.out)["comments"])


def lesson(*cells: str) -> str:
    made = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": text.splitlines(True)} for text in cells]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}, indent=1) + "\n"


def test_a_notebook_is_reviewed_by_the_lines_of_its_file(repo, review):
    setup = "import torch\n'é𝄞'\nx = torch.randn(3, requires_grad=True)\n"
    old = "k = x * 2\nk.sum().backward()\nprint(k.grad)"
    new = "h = x * 2\nh.sum().backward()\nprint('𝄞', h.grad)\n"
    pad = [f"print({i})\n" * 9 for i in range(3)]
    root = repo({"n.ipynb": lesson(setup, old, *pad)}, {"n.ipynb": lesson(setup, old, *pad, new)})
    done = review("--base", "main")
    assert done.code == 1 and re.findall(r"--> (\S+:cell \d+:\d+)", done.out) == ["n.ipynb:cell 6:3"]
    before = (root / "n.ipynb").read_bytes()
    made = github_payload(review, "--base", "main")
    (comment,) = made["comments"]
    assert "`n.ipynb:cell 6:2`: backward runs here" in comment["body"]
    row = next(i for i, line in enumerate(before.decode().splitlines(), 1) if "h.sum()" in line)
    assert comment["line"] == row
    click_all(made)
    by_click = (root / "n.ipynb").read_bytes()
    (root / "n.ipynb").write_bytes(before)
    review("n.ipynb", command="apply")
    applied = (root / "n.ipynb").read_bytes()
    assert by_click != before and by_click == applied.replace(b'    "k.retain_grad()\\n",\n', b"")
    gone = review("--base", "main", "--filter", "none")
    assert gone.code == 0


def test_a_renamed_notebook_brings_nothing_new(repo, review):
    text = lesson(OLD, "print(1)\n" * 20)
    repo({"a.ipynb": text}, {"b.ipynb": text.replace("print(1)", "print(2)", 1)}, removed=["a.ipynb"])
    assert review(command="check").code == 1
    assert review("--base", "main").code == 0


FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.mark.parametrize("options", [[], ["--unsafe-fixes"]], ids=["safe", "unsafe"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_suggestions_for_many_files(repo, review, options, newline):
    """Each fixture as a new file, with wide characters, tabs and other line ends around."""
    names = ["showcase/train.py", *sorted(str(p.relative_to(FIXTURES)) for p in FIXTURES.glob("*/*.py"))[::9]]
    files = {}
    for name in names:
        text = "# é 𝄞\ttab `````\n" + (FIXTURES / name).read_text()
        files[name.replace("/", "_")] = text.replace("\n", newline).rstrip("\r\n")
    root = repo({"a.txt": "x"}, files)
    # More than a review may hold: all of them are wanted here.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload, "MOST_COMMENTS", 10_000)
        made = github_payload(review, "--base", "main", *options)
    before = contents(root)
    click_all(made)
    by_click = contents(root)
    write(root, before)
    review(*options, command="apply")
    assert by_click != before
    for name, data in contents(root).items():
        assert by_click[name] == data, name


def test_a_fix_beyond_the_diff_is_shown_as_a_diff(repo, review):
    far = "import torch\nx = torch.ones(2, requires_grad=True)\nh = x * 2\nh.sum().backward()\n" + "\n" * 9
    repo({"a.py": far}, {"a.py": far + "print(h.grad)\n"})
    (comment,) = github_payload(review, "--base", "main")["comments"]
    assert (comment["path"], comment["line"]) == ("a.py", 14)
    ((kind, diff),) = blocks(comment["body"])
    assert kind == "diff" and "+h.retain_grad()\n" in diff and "beyond one part of the diff" in comment["body"]
    Path("d.patch").write_text(diff)
    git(".", "apply", "d.patch")
    assert review("--base", "main").code == 0


def test_an_unsafe_fix_is_a_suggestion_only_when_asked_for(repo, review):
    unsafe = "import torch\nw = torch.zeros(2)\n(w * 2).sum().backward()\nprint(w.grad.norm())\n"
    repo({"a.py": "x = 1\n"}, {"a.py": unsafe})
    bodies = [c["body"] for c in github_payload(review, "--base", "main")["comments"]]
    asked = [c["body"] for c in github_payload(review, "--base", "main", "--unsafe-fixes")["comments"]]
    assert bodies and "check that this is what you mean" in bodies[0]
    assert {k for b in bodies for k, _ in blocks(b)} == {"diff"}
    assert {k for b in asked for k, _ in blocks(b)} == {"suggestion"}


def test_a_fix_of_two_files_is_shown_as_a_diff(repo):
    """Half of it would be no fix."""
    from gradfix import engine
    from gradfix.codemod import load
    from gradfix.findings import Fix, InsertBefore, Span
    from gradfix.runner import Runner

    repo({"b.txt": ""}, {"a.py": OLD, "b.py": "x = 1\n"})
    rules = load()
    options = engine.Settings(rules, {r.code for r in rules})
    with Runner(1) as runner:
        result = engine.check(["a.py", "b.py"], options, runner)
        (finding,) = result.findings
        more = InsertBefore("b.py", Span(1, 0, 1, 5), "y = 2")
        both = Fix(finding.fix.applicability, "both", (*finding.fix.edits, more))
        result.findings[:] = [dataclasses.replace(finding, fix=both)]
        made = comments.build(result.findings, result, changes.from_git("main"), options, runner)
    (comment,) = made.comments
    assert comment.suggestion is None and "more than one file" in comment.items[0].note
    assert "+++ b/a.py" in comment.items[0].diff and "+++ b/b.py" in comment.items[0].diff


def test_a_cause_elsewhere_is_where_the_comment_stands(repo, review):
    """The finding's own line is not in the diff: the comment stands at the changed line that caused it."""
    repo(FIRST, {"model.py": SECOND["model.py"]})
    (comment,) = github_payload(review, "--base", "main")["comments"]
    assert (comment["path"], comment["line"]) == ("model.py", 7)
    assert "It shows in `train.py:13`" in comment["body"]


def test_a_late_row_of_a_long_statement_is_where_the_comment_stands(repo, review):
    text = "import torch\nv = torch.tensor(\n    [\n" + "".join(f"        {i},\n" for i in range(20)) + "    ],\n"
    repo({"a.py": text + "    requires_grad=False,\n)\n"}, {"a.py": text + "    requires_grad=True,\n)\n"})
    (comment,) = github_payload(review, "--base", "main")["comments"]
    assert (comment["start_line"], comment["line"]) == (25, 26)
    assert "It shows in `a.py:2`." in comment["body"] and "reaches beyond one part of the diff" in comment["body"]


def test_at_most_thirty_comments(repo, review):
    lines = "".join(f"w{i} = torch.tensor([1, {i}], requires_grad=True)\n\n" for i in range(34))
    repo({"a.py": "x = 1\n"}, {"a.py": "import torch\n" + lines})
    made = github_payload(review, "--base", "main")
    assert len(made["comments"]) == 30
    assert made["body"].count("- `a.py:") == 4 and "introduces 34 findings" in made["body"]
    marks = [payload.marked(t) for t in [made["body"], *(c["body"] for c in made["comments"])]]
    assert len(set().union(*marks)) == 34


def test_gitlab_format(repo, review):
    root = repo()
    made = json.loads(review("--base", "main", "--output-format", "gitlab").out)
    (discussion,) = made["discussions"]
    assert discussion["position"] == {
        "position_type": "text", "old_path": "train.py", "new_path": "train.py", "old_line": 12, "new_line": 12,
        "base_sha": git(root, "rev-parse", "main").strip(), "start_sha": git(root, "rev-parse", "main").strip(),
        "head_sha": git(root, "rev-parse", "change").strip(),
    }  # fmt: skip
    assert "```suggestion:-0+0\nout.retain_grad()\ngain.retain_grad()\nloss.backward()\n```" in discussion["body"]
    assert made["note"] is None


def test_rdjson_format(repo, review):
    unsafe = "import torch\nw = torch.zeros(2)\n(w * 2).sum().backward()\nprint(w.grad.norm())\n"
    repo(FIRST, {**SECOND, "unsafe.py": unsafe})
    found = json.loads(review("--base", "main", "--output-format", "rdjson").out)["diagnostics"]
    assert [(d["location"]["path"], "suggestions" in d) for d in found] == [
        ("train.py", True), ("train.py", True), ("unsafe.py", False)
    ]  # fmt: skip
    asked = json.loads(review("--base", "main", "--unsafe-fixes", "--output-format", "rdjson").out)["diagnostics"]
    assert all("suggestions" in d for d in asked)


# ------------------------------------------------------------------------- Markdown


@given(st.lists(st.sampled_from(["```", "`````", "~~~", "`", "a", "\n", " "]), max_size=12).map("".join))
@example("```")
@example("a\n`````\nb")
def test_a_fence_holds_what_is_put_in(text):
    text += "\n"
    assert blocks(payload.fence(text, "diff")) == [("diff", text)]


@given(st.text(alphabet="`@<a>_*&[]()!#~|\\ ", max_size=40))
def test_prose_says_what_it_is_given_and_no_more(text):
    shown = MarkdownIt("commonmark").parseInline(payload.prose(text))
    tokens = shown[0].children if shown else []
    assert {t.type for t in tokens} <= {"text", "code_inline", "text_special"}
    said = "".join(f"`{t.content}`" if t.type == "code_inline" else t.content for t in tokens)
    assert said.replace("@\u200b", "@").replace(" ", "") == text.replace(" ", "")
    assert not re.search(r"@\w", "".join(t.content for t in tokens if t.type == "text"))


def test_prose_keeps_code():
    assert payload.prose("`p.grad` may be `None` in a_b") == "`p.grad` may be `None` in a\\_b"
    assert payload.prose("one ` and @you") == "one \\` and @\u200byou"


def test_long_bodies_are_cut(repo, review):
    body = "import torch\nx = torch.ones(2, requires_grad=True)\nh = x * 2\nlong = '" + "x" * 70_000 + "'\n"
    repo({"a.py": "x = 1\n"}, {"a.py": body + "h.sum().backward(); long2 = '" + "y" * 70_000 + "'\nprint(h.grad)\n"})
    (comment,) = github_payload(review, "--base", "main")["comments"]
    assert len(comment["body"]) <= 60_000 and payload.marked(comment["body"])


LINE = st.text(alphabet="ab `\té𝄞", max_size=4)


@settings(deadline=None)
@given(st.lists(LINE, min_size=1, max_size=8), st.lists(LINE, max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_change_as_suggestions(old, new, newline, ends):
    """Groups of line changes, made suggestions and clicked, give the new text."""
    from gradfix.preview import changes as line_changes

    before = [line + newline for line in old]
    after = [line + newline for line in new]
    if not ends:
        before[-1] = before[-1].removesuffix(newline)
        if after:
            after[-1] = after[-1].removesuffix(newline)
    if not before[-1] or after and not after[-1]:
        return
    out = list(before)
    groups = [comments._Group([], [c]) for c in line_changes(before, after)]
    for group in groups:
        group.measure(len(before))
    for group in sorted(comments._merged(groups, len(before)), key=lambda g: -g.start):
        text = [line.rstrip("\r\n") for line in comments._replaced(before, group)]
        out = comments.applied(out, group.start + 1, group.end + 1, text)
    assert "".join(out) == "".join(after) or not ends


# -------------------------------------------------------------------------- posting


@pytest.fixture
def no_waiting(monkeypatch):
    waits = []
    monkeypatch.setattr(posting, "pause", waits.append)
    return waits


@pytest.fixture
def github(repo, monkeypatch, no_waiting):
    made = []

    def start(*arguments, **more):
        server = GitHub(repo(*arguments, **more), "main", "change")
        event = Path(os.environ.get("TMPDIR", "/tmp")) / f"event-{os.getpid()}.json"
        event.write_text(json.dumps({"pull_request": {"number": 7}}))
        environment = {
            "GITHUB_TOKEN": "secret",
            "GITHUB_REPOSITORY": "o/r",
            "GITHUB_API_URL": server.url,
            "GITHUB_EVENT_PATH": str(event),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        made.append((server, event))
        return server

    yield start
    for server, event in made:
        server.close()
        event.unlink()


def test_github_post(github, review):
    server = github()
    done = review("--base", "main", "--post", "github")
    assert done.code == 1 and done.out == "" and "Posted 1 comment." in done.err
    assert len(server.reviews) == 1 and len(server.posted) == 1
    before = contents(server.folder)
    click_all({"comments": server.posted})
    by_click = contents(server.folder)
    write(server.folder, before)
    review("train.py", "model.py", command="apply")
    assert contents(server.folder) == by_click != before


def test_a_pull_request_with_three_mistakes(github, review):
    """One on a changed line, one that a changed line of another file causes, one old: from the report to the click."""
    server = github()
    everything = review(command="check")
    assert found(everything.out) == ["old.py:7", "train.py:13", "train.py:14"]
    reported = review("--base", "main")
    assert reported.code == 1 and found(reported.out) == ["train.py:13", "train.py:14"]
    assert re.findall(r"^ *::: (.*)$", reported.out, re.M) == ["model.py:7:12"]

    made = github_payload(review, "--base", "main")
    assert review("--base", "main", "--post", "github").code == 1
    sent = [{k: v for k, v in c.items() if k in made["comments"][0]} for c in server.posted]
    assert sent == made["comments"] and server.reviews[0]["body"] == made["body"]

    before = contents(server.folder)
    click_all({"comments": server.posted})
    by_click = contents(server.folder)
    assert {name for name in before if by_click[name] != before[name]} == {"train.py"}
    assert found(review(command="check").out) == ["old.py:7"]
    assert review("--base", "main").code == 0
    write(server.folder, before)
    review("--exclude", "old.py", command="apply")
    assert contents(server.folder) == by_click


def test_github_needs_no_history(github, review):
    """Without --base, the diff is GitHub's own."""
    server = github()
    assert review("--post", "github").code == 1
    assert [(c["path"], c["line"]) for c in server.posted] == [("train.py", 12)]


def test_github_a_diff_that_is_too_large_to_send(github, review):
    server = github(FIRST, {**SECOND, "new.py": OLD})
    server.too_large = {"train.py", "new.py"}
    done = review("--post", "github")
    assert "warning: train.py: the diff does not have its lines" in done.err and "new.py" not in done.err
    (posted,) = server.reviews
    assert "`new.py:7`" in posted["body"] and [c["path"] for c in server.posted] == ["model.py"]
    assert "warning" not in review("--base", "main", "--post", "github").err
    assert "`train.py:13`" in server.reviews[1]["body"]


def test_github_posts_once(github, review):
    server = github()
    review("--base", "main", "--post", "github")
    done = review("--base", "main", "--post", "github")
    assert "Posted nothing: all of it is there already." in done.err and len(server.reviews) == 1
    # A push that moves the lines is no news either.
    write(server.folder, {"train.py": SECOND["train.py"].replace("x = ", "\n\n\nx = ")})
    git(server.folder, "commit", "-qam", "third")
    server.head = git(server.folder, "rev-parse", "HEAD").strip()
    review("--base", "main", "--post", "github")
    assert len(server.reviews) == 1


def test_github_posts_once_even_what_is_only_counted(github, review):
    lines = "".join(f"w{i} = torch.tensor([1, {i}], requires_grad=True)\n\n" for i in range(10))
    server = github({"a.py": "x = 1\n"}, {f"a{i}.py": "import torch\n" + lines for i in range(9)})
    assert "Posted 30 comments." in review("--post", "github").err
    assert "- and 10 more; `gradfix check` shows them." in server.reviews[0]["body"]
    assert "Posted nothing: all of it is there already." in review("--post", "github").err


def test_github_posts_what_is_new(github, review):
    server = github()
    review("--base", "main", "--post", "github")
    write(server.folder, {"new.py": OLD})
    git(server.folder, "add", "-A")
    git(server.folder, "commit", "-qm", "third")
    server.head = git(server.folder, "rev-parse", "HEAD").strip()
    assert "Posted 1 comment." in review("--base", "main", "--post", "github").err
    assert [c["path"] for c in server.posted] == ["train.py", "new.py"]
    assert "1 new finding" in server.reviews[1]["body"]


def test_github_posts_nothing_without_findings(github, review):
    server = github({"a.py": "x = 1\n"}, {"a.py": "x = 2\n"})
    done = review("--base", "main", "--post", "github")
    assert done.code == 0 and not server.reviews and "Posted nothing: no findings." in done.err


LIMITS = [
    Fault("POST", 403, "You have exceeded a secondary rate limit.", {"Retry-After": "7"}),
    Fault("POST", 403, "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."),
    Fault("POST", 429, "Too many requests", {"Retry-After": "7"}),
    Fault("POST", 403, "API rate limit exceeded for installation.", {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}),
]


@pytest.mark.parametrize("fault, wait", [*zip(LIMITS, [7, 60, 7, 1])], ids=["secondary", "unsaid", "429", "primary"])
def test_github_limits_are_waited_for(github, review, no_waiting, fault, wait):
    server = github()
    server.faults = [fault]
    assert "Posted 1 comment." in review("--base", "main", "--post", "github").err
    assert len(server.reviews) == 1 and no_waiting == [wait]


def test_github_a_long_wait_is_not_waited_for(github, review, no_waiting):
    server = github()
    server.faults = [Fault("POST", 403, "You have exceeded a secondary rate limit.", {"Retry-After": "3600"})]
    done = review("--base", "main", "--post", "github")
    assert done.code == 1 and not server.reviews and no_waiting == []
    assert "nothing was posted" in done.err and "3600 seconds" in done.err and "::error " in done.out


@pytest.mark.parametrize("works", [False, True], ids=["failed", "done"])
@pytest.mark.parametrize("status", [500, 502, 503, 0], ids=str)
def test_github_failures_post_nothing_twice(github, review, status, works):
    server = github()
    server.faults = [Fault("POST", status, works=works), Fault("GET", 503)]
    done = review("--base", "main", "--post", "github")
    assert "Posted 1 comment." in done.err
    assert len(server.reviews) == 1 and len(server.posted) == 1
    assert sum(r == ("POST", "/repos/o/r/pulls/7/reviews") for r in server.requests) == (1 if works else 2)


def test_github_that_stays_down(github, review):
    server = github()
    server.faults = [Fault("POST", 502) for _ in range(9)]
    done = review("--base", "main", "--post", "github")
    assert done.code == 1 and "nothing was posted: GitHub: Server Error (status 502) (tried 5 times)" in done.err
    assert done.out.count("::error ") == 2


def test_github_read_only_token_falls_back_to_annotations(github, review):
    server = github()
    server.may_write = False
    done = review("--base", "main", "--post", "github")
    assert done.code == 1 and not server.reviews
    assert "Resource not accessible by integration (status 403)" in done.err
    lines = [line for line in done.out.splitlines() if line.startswith("::error ")]
    assert len(lines) == 2 and "file=train.py,line=13" in lines[0] and "GF101" in lines[0]


def test_github_wrong_token(github, review, monkeypatch):
    github()
    monkeypatch.setenv("GITHUB_TOKEN", "wrong")
    done = review("--base", "main", "--post", "github")
    assert done.code == 1 and "Bad credentials" in done.err and "::error " in done.out
    done = review("--post", "github")
    assert done.code == 2 and "the change can't be had: GitHub: Bad credentials" in done.err


@pytest.mark.parametrize(
    "name, value, reason",
    [
        ("GITHUB_API_URL", "nonsense", "GITHUB_API_URL is 'nonsense', no address of a server"),
        ("GITHUB_TOKEN", "é𝄞", "GITHUB_TOKEN has characters that can't be part of it"),
        ("GITHUB_TOKEN", "\n", "--post needs GITHUB_TOKEN or GH_TOKEN in the environment"),
    ],
)
def test_github_odd_environment(github, review, monkeypatch, name, value, reason):
    github()
    monkeypatch.setenv(name, value)
    done = review("--post", "github")
    assert (done.code, done.out, done.err) == (2, "", f"error: {reason}\n")


def test_github_token_with_a_newline(github, review, monkeypatch):
    github()
    monkeypatch.setenv("GITHUB_TOKEN", "secret\n")
    assert "Posted 1 comment." in review("--post", "github").err


def test_github_refusal_of_a_review(github, review, monkeypatch):
    """Should GitHub refuse a line after all, the findings are not lost."""
    server = github()
    monkeypatch.setattr(payload, "github_comment", lambda *_: {"path": "train.py", "body": "x", "line": 9999, "side": "RIGHT"})
    done = review("--base", "main", "--post", "github")
    assert "must be part of the diff (status 422)" in done.err and "::error " in done.out and not server.reviews


def test_github_checkout_of_another_commit(github, review):
    """Where the files are not those under review, no comment lands on a wrong line."""
    server = github()
    write(server.folder, {"train.py": "# merged\n" + SECOND["train.py"]})
    git(server.folder, "commit", "-qam", "merge")
    done = review("--base", "main", "--post", "github")
    assert "train.py: the checked-out file is not the one under review" in done.err
    assert [c["path"] for c in server.posted] == ["model.py"]
    assert "- `train.py:14` **GF101" in server.reviews[0]["body"]


def test_github_pull_request_of_a_workflow_run(github, review, monkeypatch):
    server = github()
    run_event = {"head_sha": server.head, "head_branch": "change", "head_repository": {"owner": {"login": "fork"}}}
    Path(os.environ["GITHUB_EVENT_PATH"]).write_text(json.dumps({"workflow_run": run_event}))
    assert "Posted 1 comment." in review("--post", "github").err
    run_event["head_sha"] = "0" * 40
    Path(os.environ["GITHUB_EVENT_PATH"]).write_text(json.dumps({"workflow_run": run_event}))
    assert "no open pull request has commit" in review("--post", "github").err
    run_event["head_repository"] = None
    Path(os.environ["GITHUB_EVENT_PATH"]).write_text(json.dumps({"workflow_run": run_event}))
    assert "the change comes from is gone" in review("--post", "github").err
    assert len(server.reviews) == 1


def test_github_ref_and_number(github, review, monkeypatch):
    server = github()
    monkeypatch.delenv("GITHUB_EVENT_PATH_", raising=False)
    Path(os.environ["GITHUB_EVENT_PATH"]).write_text("{}")
    assert "give its number by --pull-request" in review("--base", "main", "--post", "github").err
    monkeypatch.setenv("GITHUB_REF", "refs/pull/7/merge")
    assert "Posted 1 comment." in review("--base", "main", "--post", "github").err
    monkeypatch.delenv("GITHUB_REF")
    assert "all of it is there" in review("--base", "main", "--post", "github", "--pull-request", "7").err
    assert "Not Found (status 404)" in review("--base", "main", "--post", "github", "--pull-request", "8").err
    assert len(server.reviews) == 1


@pytest.mark.parametrize("bot", [True, False], ids=["bot", "user"])
def test_github_outdated_comments(github, review, bot):
    server = github()
    server.is_bot = bot
    stale = "gone\n\n<!-- gradfix: 0123456789abcdef -->"
    person = {"login": "someone", "id": 9, "type": "User"}
    mine = server.add(stale)
    server.add(stale, user=person)
    answered = server.add(stale + "\n")
    server.add("I disagree", user=person, in_reply_to_id=answered["id"])
    server.add("no mark")
    review("--base", "main", "--post", "github")
    assert len(server.comments) == 6
    done = review("--base", "main", "--post", "github", "--outdated", "remove")
    assert "Removed 1 outdated comment." in done.err
    assert len(server.comments) == 5 and mine not in server.comments


# -------------------------------------------------------- a payload of another job


def test_github_stored_payload(github, review):
    server = github()
    review("--base", "main", "--output-format", "github", "-o", "review.json")
    done = review("--post", "github", "--from", "review.json")
    assert done.code == 0 and done.err == "Posted 1 comment.\n" and len(server.posted) == 1
    assert "all of it is there already" in review("--post", "github", "--from", "review.json").err
    assert len(server.reviews) == 1


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"event": "APPROVE"}, "event"),
        ({"extra": 1}, "extra"),
        ({"comments": [{"path": "train.py", "body": "x", "line": 0, "side": "RIGHT"}]}, "line"),
        ({"comments": [{"path": "train.py", "body": "x", "line": 12, "side": "RIGHT"}] * 31}, "comments"),
        ({"body": "x" * 70_000}, "body"),
        ({"commit_id": "f" * 40}, "the review is of commit"),
    ],
    ids=str,
)
def test_a_stored_payload_is_read_as_a_stranger_s(github, review, change, reason):
    server = github()
    made = github_payload(review, "--base", "main")
    Path("review.json").write_text(json.dumps({**made, **change}))
    assert reason in review("--post", "github", "--from", "review.json").err
    assert not server.reviews


def test_a_stored_comment_beyond_the_diff_is_left_out(github, review):
    server = github()
    made = github_payload(review, "--base", "main")
    for line, path in [(9999, "train.py"), (1, "old.py")]:
        made["comments"].append({**made["comments"][0], "line": line, "path": path})
    Path("review.json").write_text(json.dumps(made))
    assert "Posted 1 comment." in review("--post", "github", "--from", "review.json").err
    assert len(server.posted) == 1


# --------------------------------------------------------------------------- GitLab


@pytest.fixture
def gitlab(repo, monkeypatch, no_waiting):
    made = []

    def start(*arguments, **more):
        server = GitLab(repo(*arguments, **more), "main", "change")
        environment = {"GITLAB_TOKEN": "secret", "CI_SERVER_URL": server.url, "CI_PROJECT_ID": "5", "CI_MERGE_REQUEST_IID": "7"}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        made.append(server)
        return server

    yield start
    for server in made:
        server.close()


def test_gitlab_post(gitlab, review):
    server = gitlab()
    done = review("--base", "main", "--post", "gitlab")
    assert done.code == 1 and "Posted 1 comment." in done.err
    (note,) = server.posted
    before = contents(server.folder)
    place = note["position"]
    after = clicked(before, [(place["new_path"], place["new_line"], place["new_line"], note["body"])])
    review("train.py", "model.py", command="apply")
    assert contents(server.folder) == after != before


def test_gitlab_suggestion_for_several_lines(gitlab, review):
    two = OLD.replace("w = torch", "v = torch.zeros(3, requires_grad=True)\nw = torch").replace("(w - 1)", "(w + v - 1)")
    two = two.replace("    w -= 0.1 * w.grad\n", "    w -= 0.1 * w.grad\n    v -= 0.1 * v.grad\n")
    server = gitlab({"a.py": "x = 1\n"}, {"a.py": two})
    review("--post", "gitlab")
    (note,) = server.posted
    assert note["position"]["new_line"] == 9 and "```suggestion:-1+0\n    with torch.no_grad():\n" in note["body"]
    after = clicked(contents(server.folder), [("a.py", 9, 9, note["body"])])
    review(command="apply")
    assert contents(server.folder) == after


def test_gitlab_added_lines_and_renames(gitlab, review):
    server = gitlab(
        {"a.py": OLD + "\n" * 30},
        {"b.py": OLD.replace("requires_grad=True)", "requires_grad=True) * 2") + "\n" * 30},
        removed=["a.py"],
    )
    assert "Posted" in review("--post", "gitlab").err
    assert server.posted[0]["position"]["old_path"] == "a.py" and "old_line" not in server.posted[0]["position"]


def test_gitlab_a_diff_that_is_too_large_to_send(gitlab, review):
    server = gitlab(FIRST, SECOND)
    server.too_large = {"train.py"}
    assert "warning: train.py: the diff does not have its lines" in review("--post", "gitlab").err
    assert [d["position"]["new_path"] for d in server.posted] == ["model.py"]


def test_gitlab_posts_once_and_the_rest_in_a_note(gitlab, review):
    lines = "".join(f"w{i} = torch.tensor([1, {i}], requires_grad=True)\n\n" for i in range(32))
    server = gitlab({"a.py": "x = 1\n"}, {"a.py": "import torch\n" + lines})
    for _ in range(2):
        review("--post", "gitlab")
        assert len(server.discussions) == 31 and server.posted[-1]["body"].count("- `a.py:") == 2


@pytest.mark.parametrize("works", [False, True], ids=["failed", "done"])
@pytest.mark.parametrize("status", [500, 0], ids=str)
def test_gitlab_failures_post_nothing_twice(gitlab, review, status, works):
    server = gitlab()
    server.faults = [Fault("POST", status, works=works), Fault("GET", 502)]
    assert "Posted 1 comment." in review("--base", "main", "--post", "gitlab").err
    assert len(server.discussions) == 1


def test_gitlab_limits_are_waited_for(gitlab, review, monkeypatch):
    waits = []
    monkeypatch.setattr("gitlab.utils.time.sleep", waits.append)
    server = gitlab()
    server.faults = [Fault("POST", 429, "Retry later", {"Retry-After": "7"})]
    assert "Posted 1 comment." in review("--base", "main", "--post", "gitlab").err
    assert waits == [7] and len(server.discussions) == 1


def test_gitlab_token_that_may_not_write(gitlab, review):
    server = gitlab()
    server.may_write = False
    done = review("--base", "main", "--post", "gitlab")
    assert done.code == 1 and "403 Forbidden" in done.err and found(done.out) == ["train.py:13", "train.py:14"]
    assert not server.discussions


def test_gitlab_odd_address(gitlab, review, monkeypatch):
    gitlab()
    monkeypatch.setenv("CI_SERVER_URL", "nonsense")
    assert review("--post", "gitlab").err == "error: CI_SERVER_URL is 'nonsense', no address of a server\n"


def test_gitlab_outdated_threads(gitlab, review):
    server = gitlab()
    stale = "gone\n\n<!-- gradfix: 0123456789abcdef -->"
    mine = server.add(stale, position={})
    theirs = server.add(stale, author={"id": 4}, position={})
    done = review("--base", "main", "--post", "gitlab", "--outdated", "remove")
    assert "Removed 1 outdated comment." in done.err
    assert mine["notes"][0].get("resolved") and not theirs["notes"][0].get("resolved")


def test_gitlab_stored_payload(gitlab, review):
    server = gitlab()
    review("--base", "main", "--output-format", "gitlab", "-o", "review.json")
    for _ in range(2):
        assert review("--post", "gitlab", "--from", "review.json").code == 0
        assert len(server.discussions) == 1


# ------------------------------------------------------------------ the servers


def test_the_github_server_refuses(github):
    """What the tests above lean on: the server does refuse what GitHub refuses."""
    server = github()

    def status(comments=(), **review):
        data = {"event": "COMMENT", "body": "x", "comments": list(comments), **review}
        headers = {"Authorization": "Bearer secret"}
        return server.answer("POST", "/repos/o/r/pulls/7/reviews", {}, headers, json.dumps(data).encode()).status

    line = {"path": "train.py", "body": "x", "side": "RIGHT", "line": 12}
    assert status([line]) == 200
    assert status([{**line, "start_side": "RIGHT", "start_line": 11}]) == 200
    assert status([{**line, "start_side": "RIGHT", "start_line": 12}]) == 422
    assert status([{**line, "start_side": "RIGHT", "start_line": 2}]) == 422
    assert status([{**line, "line": 2}]) == 422
    assert status([{**line, "path": "old.py"}]) == 422
    assert status([{**line, "body": ""}]) == 422
    assert status([{"path": "train.py", "line": 12}]) == 422
    assert status(body="") == 422
    assert status(event="NOD") == 422
    assert status(commit_id="0" * 40) == 422
    assert len(server.reviews) == 2

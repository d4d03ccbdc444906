"""`gradfix migrate`: sources, branches, patches, verification, limits, the journal and the engines."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from migrate_support import git, many, migrate, module, repository, state, write_files  # noqa: F401

ROOT = Path(__file__).parent.parent


def branch_of(repo: Path) -> str:
    (name,) = [b for b in git(repo, "branch", "--format=%(refname:short)").split() if b.startswith("gradfix/")]
    return name


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, git's own included."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def run_one(migrate, repo, *more):
    out = migrate.folder / "r.html"
    migrate(repo, "--report", out, *more)
    (record,) = json.loads(out.with_suffix(".json").read_text())["repositories"]
    return record


# ------------------------------------------------------------------- what it writes


def test_a_dry_run_is_the_default_and_writes_nothing(migrate, tmp_path):
    repo = repository(tmp_path / "one")
    before = snapshot(repo)
    done = migrate(repo)
    assert done.code == 1 and "2 fixable" in done.out and "Nothing was written" in done.out
    assert snapshot(repo) == before
    assert migrate(repository(tmp_path / "two", {"a.py": module("right")})).code == 0
    assert "Nothing was written" not in migrate.out


def test_each_rule_is_a_commit_and_the_checkout_is_left_alone(migrate, tmp_path):
    repo = repository(tmp_path / "one", {"a.py": module("retain", "norm"), "b/c.py": module("retain", "integer")})
    write_files(repo, {"a.py": module("right"), "new.txt": "mine"})
    before = {k: v for k, v in snapshot(repo).items() if not k.startswith(".git")}
    head, status = git(repo, "rev-parse", "HEAD"), git(repo, "status", "--porcelain")
    done = migrate("--write", repo)
    assert done.code == 0 and "uncommitted changes" in done.err
    assert {k: v for k, v in snapshot(repo).items() if not k.startswith(".git")} == before
    assert (git(repo, "rev-parse", "HEAD"), git(repo, "status", "--porcelain")) == (head, status)
    assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"
    name = branch_of(repo)
    subjects = git(repo, "log", "--reverse", "--format=%s", f"main..{name}").splitlines()
    assert subjects == ["Apply retain-grad (GF101)", "Apply integer-requires-grad (GF202)", "Apply none-guarded-grad (GF301)"]
    for commit in git(repo, "rev-list", name).split():
        for path in git(repo, "ls-tree", "-r", "--name-only", commit).splitlines():
            compile(git(repo, "show", f"{commit}:{path}"), path, "exec")
    assert git(repo, "log", "-1", "--format=%ad", "--date=raw", name) == "1600000002 +0200"
    assert "h.retain_grad()" in git(repo, "show", f"{name}:b/c.py")
    assert git(repo, "fsck", "--strict") == ""


def test_the_same_again_gives_the_same_commits_and_a_second_run_changes_nothing(migrate, tmp_path):
    repo = repository(tmp_path / "one")
    migrate("--write", repo)
    name = branch_of(repo)
    first = git(repo, "rev-parse", name)
    assert migrate("--write", repo, "--restart").code == 0
    assert git(repo, "rev-parse", branch_of(repo)) == first
    git(repo, "branch", "-D", name)
    assert "changed: 2 fixes" in migrate("--write", repo).out  # the branch is gone, so the journal's record is not enough
    assert git(repo, "rev-parse", name) == first
    git(repo, "checkout", "-q", name)
    assert migrate(repo).code == 0 and "would be changed" not in migrate.out


def test_the_branch_holds_what_apply_writes(migrate, tmp_path):
    from gradfix import cli

    repo = repository(tmp_path / "one", {"a.py": module("retain", "rebind", "norm", "typo", "integer", "item"), "b.py": module("norm", "retain")})
    record = run_one(migrate, repo, "--write", "--unsafe-fixes")
    assert len(record["commits"]) >= 5
    cli.run(["apply", "--isolated", "--unsafe-fixes", "--extend-select", "GF9", str(repo)])
    git(repo, "add", "-A")
    assert git(repo, "write-tree") == git(repo, "rev-parse", record["branch"] + "^{tree}")


def test_a_branch_of_that_name_that_holds_something_else_is_kept(migrate, tmp_path):
    repo = repository(tmp_path / "one")
    git(repo, "branch", "fix/all")
    migrate("--write", "--branch", "fix/all", repo)
    assert git(repo, "rev-parse", "fix/all") == git(repo, "rev-parse", "main")
    assert git(repo, "log", "-1", "--format=%s", "fix/all-2") == "Apply none-guarded-grad (GF301)"
    git(repo, "branch", "-D", "fix/all", "fix/all-2")
    git(repo, "branch", "fix")
    done = migrate("--write", "--branch", "fix/all", repo, "--restart")
    assert done.code == 2 and "'refs/heads/fix' exists" in done.err


def test_patches_are_what_the_branch_holds(migrate, tmp_path):
    repo = repository(tmp_path / "one", {"a.py": module("retain", "norm").replace("\n", "\r\n"), "ü b.py": module("integer")})
    done = migrate("--patches", tmp_path / "out", repo)
    assert done.code == 0 and "3 patches" in done.out and "gradfix/" not in git(repo, "branch")
    names = sorted(p.name for p in (tmp_path / "out" / "one").iterdir())
    assert names == ["0001-GF101-retain-grad.patch", "0002-GF202-integer-requires-grad.patch", "0003-GF301-none-guarded-grad.patch"]
    migrate("--write", "--branch", "b", repo)
    git(repo, "am", "-q", "--keep-cr", *(str(tmp_path / "out" / "one" / n) for n in names))
    assert git(repo, "rev-parse", "HEAD^{tree}") == git(repo, "rev-parse", "b^{tree}")
    # What an earlier run wrote and this one does not is removed; other files are kept.
    write_files(tmp_path / "out" / "one", {"0009-GF101-retain-grad.patch": "old", "notes.txt": "mine"})
    git(repo, "reset", "-q", "--hard", "HEAD~1")
    migrate("--patches", tmp_path / "out", repo)
    assert sorted(p.name for p in (tmp_path / "out" / "one").iterdir()) == ["0001-GF301-none-guarded-grad.patch", "notes.txt"]


def test_what_one_fix_repairs_together_counts_each(migrate, tmp_path):
    text = "import torch\n\nx = torch.ones(2)\n" + "y = x.cuda(async=True)\n" * 3
    repo = repository(tmp_path / "one", {"a.py": text})
    record = run_one(migrate, repo)
    assert record["found"] == {"GF906": 3} and [c["fixes"] for c in record["commits"]] == [3] and not record["left"]
    assert "3 findings: 3 fixable, 0 left." in migrate.out


def test_notebooks(migrate, tmp_path):
    cells = [{"cell_type": "code", "id": str(i), "metadata": {}, "outputs": [], "execution_count": None, "source": text.splitlines(True)}
             for i, text in enumerate(["import torch", "%time\nw = torch.ones(3, requires_grad=True)\nh = w * 2", "h.sum().backward()", "h.grad"])]  # fmt: skip
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    repo = repository(tmp_path / "one", {"a.ipynb": json.dumps(notebook, indent=1) + "\n"})
    record = run_one(migrate, repo, "--write")
    assert [c["code"] for c in record["commits"]] == ["GF101"]
    cells[2]["source"] = ["h.retain_grad()\n", "h.sum().backward()"]
    assert json.loads(git(repo, "show", f"{record['branch']}:a.ipynb")) == notebook
    assert git(repo, "diff", "--numstat", "main", record["branch"]).split()[:2] == ["1", "0"]


def test_a_plain_folder_gives_patches_but_no_branch(migrate, tmp_path):
    write_files(tmp_path / "plain", {"a.py": module("retain"), "sub/b.py": module("norm"), "big.bin": b"\0" * 100})
    before = snapshot(tmp_path / "plain")
    done = migrate("--write", tmp_path / "plain")
    assert done.code == 2 and "error: plain: is no git repository" in done.err and "--patches" in done.err
    assert migrate("--patches", tmp_path / "out", tmp_path / "plain").code == 0
    assert snapshot(tmp_path / "plain") == before
    for patch in sorted((tmp_path / "out" / "plain").iterdir()):
        git(tmp_path / "plain", "apply", str(patch))
    assert "h.retain_grad()" in (tmp_path / "plain" / "a.py").read_text()
    assert migrate(tmp_path / "plain").code == 0


def test_unsafe_fixes_and_selection(migrate, tmp_path):
    repo = repository(tmp_path / "one", {"a.py": module("retain", "norm", "typo")})
    record = run_one(migrate, repo, "--select", "GF301")
    assert [c["code"] for c in record["commits"]] == ["GF301"] and set(record["found"]) == {"GF301"}
    record = run_one(migrate, repo)
    assert [c["code"] for c in record["commits"]] == ["GF101", "GF301"]
    assert [(r["code"], r["fix"]) for r in record["left"]] == [("GF203", "unsafe")]
    write_files(repo, {"gradfix.toml": 'ignore = ["GF101"]\n'})
    git(repo, "add", "-A"), git(repo, "commit", "-qm", "Configure")
    record = run_one(migrate, repo, "--unsafe-fixes")
    assert [c["code"] for c in record["commits"]] == ["GF203", "GF301"]
    record = run_one(migrate, repo, "--isolated", "--unfixable", "GF301")
    assert [c["code"] for c in record["commits"]] == ["GF101"]
    record = run_one(migrate, repo, "--isolated", "--extend-safe-fixes", "GF2")
    assert [c["code"] for c in record["commits"]] == ["GF101", "GF203", "GF301"]


def test_legacy_rules_are_on():
    from gradfix.migrate.records import Options
    from gradfix.migrate.repository import in_order, settings_of

    settings, _ = settings_of(Options(isolated=True), os.getcwd())
    legacy = {r.code for r in settings.rules if r.code.startswith("GF9")}
    assert legacy <= settings.active
    assert not legacy & settings_of(Options(isolated=True, select=["GF1"]), os.getcwd())[0].active
    assert not legacy & settings_of(Options(isolated=True, ignore=["GF9"]), os.getcwd())[0].active

    class Rule:
        def __init__(self, code):
            self.code = code

    ordered = [r.code for r in in_order([Rule(c) for c in ("GF101", "GF906", "GF901", "GF001", "X1")])]
    assert ordered == ["GF906", "GF901", "GF001", "GF101", "X1"]


# ------------------------------------------------------------------------- sources


def test_kinds_of_source(migrate, tmp_path):
    work = repository(tmp_path / "work", {"sub/a.py": module("retain"), "b.py": module("norm")})
    git(tmp_path, "clone", "-q", "--bare", str(work), "bare.git")
    git(work, "worktree", "add", "-q", str(tmp_path / "linked"), "-b", "other")
    shallow = tmp_path / "shallow"
    git(work, "commit", "-q", "--allow-empty", "-m", "Second")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{work}", str(shallow))
    done = migrate("--write", work, tmp_path / "bare.git", tmp_path / "linked", shallow, "--branch", "b")
    assert done.code == 0 and done.out.count("2 fixes") == 4, done.err + done.out
    for repo in (work, tmp_path / "bare.git", shallow):
        assert "retain_grad" in git(repo, "show", "b:sub/a.py") and git(repo, "fsck") == ""
    assert "retain_grad" in git(work, "show", "b-2:sub/a.py")  # the linked worktree is the same repository
    # A folder inside a repository stands for that part of it.
    migrate("--write", work / "sub", "--branch", "part")
    assert git(work, "diff", "--name-only", "main", "part") == "sub/a.py"
    # A folder that holds repositories stands for them.
    (tmp_path / "all").mkdir()
    shutil.move(work, tmp_path / "all" / "work"), shutil.move(shallow, tmp_path / "all" / "shallow")
    assert "2 repositories" in migrate(tmp_path / "all").out


@pytest.mark.parametrize("given", ["repos", "./repos/", "absolute"])
def test_a_folder_stands_for_the_repositories_in_it(migrate, tmp_path, monkeypatch, given):
    outer = repository(tmp_path / "outer", {"a.py": "x = 1\n"})  # that it lies in another repository makes no difference
    repository(outer / "repos" / "one"), repository(outer / "repos" / "two")
    monkeypatch.chdir(outer)
    done = migrate("--write", outer / "repos" if given == "absolute" else given)
    assert done.code == 0 and "2 repositories: 2 changed" in done.out, done.err + done.out


def test_a_url_is_cloned_beside_the_journal_and_brought_up_to_date(migrate, tmp_path):
    repo = repository(tmp_path / "origin")
    url = f"file://{repo}"
    assert migrate("--write", url, "--report", tmp_path / "r.html").code == 0
    (record,) = json.loads((tmp_path / "r.json").read_text())["repositories"]
    assert git(record["location"], "rev-parse", record["branch"]) == record["tip"]
    assert "gradfix/" not in git(repo, "branch")
    write_files(repo, {"more.py": module("retain")})
    git(repo, "add", "-A"), git(repo, "commit", "-qm", "More")
    migrate("--write", url, "--report", tmp_path / "r.html")
    (record,) = json.loads((tmp_path / "r.json").read_text())["repositories"]
    assert record["base"] == git(repo, "rev-parse", "HEAD") and record["files"] == 2
    assert git(record["location"], "rev-parse", record["branch"]) == record["tip"]
    done = migrate("file:///no/such/place", "ssh://user@localhost:1/x.git")
    assert done.code == 2 and done.err.count("error:") == 2


def test_manifest(migrate, tmp_path):
    repository(tmp_path / "one", {"a/x.py": module("retain"), "b/y.py": module("retain", "norm")})
    repository(tmp_path / "two", {"a.py": module("retain", "norm")})
    manifest = tmp_path / "repos.toml"
    manifest.write_text(
        '[defaults]\nignore = ["GF101"]\n'
        '[[repos]]\nsource = "one"\nname = "first"\npaths = ["b"]\n'
        '[[repos]]\nsource = "two"\nselect = ["GF1", "GF3"]\nexclude = ["b.py"]\nverify-command = ["true"]\n'
    )
    migrate(manifest, "--report", tmp_path / "r.html")
    first, second = json.loads((tmp_path / "r.json").read_text())["repositories"]
    assert first["name"] == "first" and first["files"] == 1 and [c["code"] for c in first["commits"]] == ["GF301"]
    assert [c["code"] for c in second["commits"]] == ["GF301"] and second["verifications"][0]["verdict"] == "preserved"
    migrate(manifest, "--select", "GF202", "--report", tmp_path / "r.html")
    assert not json.loads((tmp_path / "r.json").read_text())["rules"]


@pytest.mark.parametrize(
    "text, why",
    [
        ('[[repos]]\nsource = "x"\nrule = 1\n', "unknown key 'rule' (at repos[0]); known: paths, select"),
        ('[default]\n[[repos]]\nsource = "x"\n', "unknown key 'default'; known: defaults, repos"),
        ("[[repos]]\npaths = []\n", "missing required field `source`"),
        ('[[repos]]\nsource = "x"\npaths = "a"\n', "Expected `array`, got `str` (at repos[0].paths)"),
        ('[[repos]]\nsource = "--upload-pack=x"\n', "'--upload-pack=x' is no source"),
        ('[[repos]]\nsource = "x"\npaths = ["a", "../b"]\n', "'../b' in paths lies outside of the repository"),
        ('[[repos]]\nsource = "x"\npaths = ["/b"]\n', "'/b' in paths lies outside of the repository"),
        ('[defaults]\npaths = ["~/b"]\n[[repos]]\nsource = "x"\npaths = []\n', "'~/b' in paths lies outside of the repository"),
        ("repos = [", "Invalid value"),
    ],
)
def test_manifest_errors(migrate, tmp_path, text, why):
    (tmp_path / "m.toml").write_text(text)
    done = migrate(tmp_path / "m.toml")
    assert done.code == 2 and why in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, why",
    [
        (["--write", "--dry-run"], "--dry-run goes with neither"),
        (["--branch", "x"], "--branch goes with --write"),
        (["--write", "--branch", "a..b"], "no valid name"),
        (["--select", "GF777"], "unknown rule 'GF777'"),
        (["--report", "x.txt"], "ends in .html"),
        (["--report", "missing/x.html"], "there is no folder"),
        (["--timeout", "0"], "more than 0"),
        (["--cluster", "tcp://127.0.0.1:9"], "--cluster tcp://127.0.0.1:9: "),
    ],
)
def test_usage_errors(migrate, tmp_path, arguments, why, monkeypatch):
    monkeypatch.setattr("gradfix.migrate.executors.CONNECT_SECONDS", 1)
    repo = repository(tmp_path / "one")
    done = migrate(repo, *arguments)
    assert done.code == 2 and why in done.err and "Traceback" not in done.err and done.out == ""


def test_what_can_not_be_done_costs_one_line_each(migrate, tmp_path):
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    (tmp_path / "file").write_text("x")
    bad = repository(tmp_path / "bad", {"gradfix.toml": "nope = 1\n"})
    old = repository(tmp_path / "old", {"a.py": 'print "x"\n', "b.py": b"\xff\n", "good.py": module("norm")})
    done = migrate("--write", tmp_path / "gone", tmp_path / "file", tmp_path / "empty", bad, old)
    assert done.code == 2
    errors = [line for line in done.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 6 and "Traceback" not in done.err
    for part in ("gone: no such", "file: is no folder", "empty: has no commit yet", "unknown key 'nope'", "old/a.py:1", "old/b.py:1:1"):
        assert any(part in line for line in errors), part
    assert "is not None" in git(old, "show", f"{branch_of(old)}:good.py")


@pytest.mark.parametrize("mode", ["--write", "--patches"])
def test_a_folder_that_a_link_leads_out_to_is_not_rewritten(migrate, tmp_path, mode):
    write_files(tmp_path / "outside", {"train.py": module("norm")})
    repo = repository(tmp_path / "one")
    os.symlink(tmp_path / "outside", repo / "lib")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "Link")
    (tmp_path / "m.toml").write_text('[[repos]]\nsource = "one"\npaths = ["lib"]\n')
    done = migrate(tmp_path / "m.toml", mode, *([tmp_path / "out"] if mode == "--patches" else []))
    assert done.code == 2 and "error: one: lib/train.py lies outside of the repository\n" in done.err
    assert (tmp_path / "outside" / "train.py").read_text() == module("norm")


def test_a_commit_that_is_lost_is_not_called_none(migrate, tmp_path):
    repo = repository(tmp_path / "one")
    for folder in (repo / ".git" / "objects").glob("??"):
        shutil.rmtree(folder)
    done = migrate(repo)
    assert done.code == 2 and "error: one: its last commit can't be read (is the repository damaged?)\n" in done.err


def test_links_filters_and_odd_names(migrate, tmp_path):
    write_files(tmp_path, {"outside.py": module("norm")})
    files = {"a b.py": module("norm"), "crlf.py": module("norm").replace("\n", "\r\n"), ".gitattributes": "crlf.py text eol=crlf\n"}
    repo = repository(tmp_path / "one", files)
    odd = os.fsdecode(b"odd\xff.py")
    (repo / odd).write_text(module("norm"))
    os.symlink("../outside.py", repo / "link.py")
    os.symlink("a b.py", repo / "inner.py")
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    for name in ("pre-commit", "reference-transaction", "post-commit"):
        shutil.copy(hook, hook.parent / name)
    subprocess.run(["git", "-c", "core.hooksPath=/dev/null", "add", "-A"], cwd=repo, check=True)
    git(repo, "-c", "core.hooksPath=/dev/null", "commit", "-qm", "Odd")
    done = migrate("--write", repo, "--report", tmp_path / "r.html")
    assert done.code == 0 and not (tmp_path / "ran").exists(), done.err
    name = branch_of(repo)
    changed = git(repo, "-c", "core.quotePath=true", "diff", "--name-only", "main", name).splitlines()
    assert changed == ["a b.py", "crlf.py", '"odd\\377.py"']
    assert git(repo, "diff", "--numstat", "main", name, "--", "crlf.py").startswith("2\t1")
    assert (tmp_path / "outside.py").read_text() == module("norm")
    assert json.loads((tmp_path / "r.json").read_text())["repositories"][0]["commits"][0]["files"] == ["a b.py", "crlf.py", odd]


# -------------------------------------------------------------------- verification

COUNT = "open({path!r}, 'a').write('x')"


def test_verify_command(migrate, tmp_path):
    repo = repository(tmp_path / "one", {"a.py": module("retain", "norm", "integer")})
    before = snapshot(repo)
    record = run_one(migrate, repo, "--verify-command", "echo hello; touch made.txt; test ! -e more")
    assert record["verifications"][0]["verdict"] == "preserved" and record["verifications"][0]["after"]["output"] == "hello\n"
    assert {c["verdict"] for c in record["commits"]} == {"preserved"} and snapshot(repo) == before
    record = run_one(migrate, repo, "--verify-command", "grep -q retain_grad a.py")
    assert record["verifications"][0]["verdict"] == "gained"
    record = run_one(migrate, repo, "--verify-command", "exit 3")
    assert record["verifications"][0]["verdict"] == "inconclusive" and len(record["commits"]) == 3
    record = run_one(migrate, repo, "--verify-command", "no-such-command-here")
    assert record["verifications"][0]["before"]["code"] == 127
    # The rule that the command refuses is left out, the others stay.
    record = run_one(migrate, repo, "--verify-command", "grep -q '1, 2' a.py")
    assert [c["code"] for c in record["commits"]] == ["GF101", "GF301"]
    assert [(c["code"], c["verdict"]) for c in record["dropped"]] == [("GF202", "failed")]
    assert record["verifications"][0]["verdict"] == "preserved" and "integer-requires-grad" in record["verifications"][0]["reason"]
    record = run_one(migrate, repo, "--verify-command", "! grep -q -e retain_grad -e 'is not None' -e '2\\.0' a.py")
    assert record["commits"] == [] and len(record["dropped"]) == 3 and record["verifications"][0]["verdict"] == "failed"


def test_a_verify_command_that_takes_too_long_is_ended_with_all_it_started(migrate, tmp_path):
    repo = repository(tmp_path / "one")
    record = run_one(migrate, repo, "--verify-command", f"(sleep 4; touch {tmp_path}/late) & sleep 60", "--timeout", "7")
    assert record["state"] == "done" and record["verifications"][0]["verdict"] == "inconclusive"
    assert "ran out of time before" in record["verifications"][0]["reason"] and record["commits"]
    time.sleep(2)
    assert not (tmp_path / "late").exists()


def test_a_plain_folder_is_verified_with_its_data(migrate, tmp_path):
    write_files(tmp_path / "plain", {"a.py": module("norm"), "data.bin": b"1234"})
    record = run_one(migrate, tmp_path / "plain", "--verify-command", "test -s data.bin && rm data.bin")
    assert record["verifications"][0]["verdict"] == "preserved" and (tmp_path / "plain" / "data.bin").exists()


SCRIPT = """\
import torch
import helper

w = torch.ones(3, requires_grad=True)
h = w * 2
h.sum().backward()
print(h.grad, helper.norm(torch.nn.Linear(2, 1)) if False else helper.VALUE)
"""


def test_scripts_prove_the_rules_that_they_run(migrate, tmp_path):
    pytest.importorskip("torch")
    files = {"run/train.py": SCRIPT, "helper.py": module("norm") + "\nVALUE = 1\n", "other.py": module("integer")}
    files["run/train.py"] = SCRIPT.replace("import torch\n", "import sys\nimport torch\n\nsys.path.insert(0, sys.path[0] + '/..')\n", 1)
    repo = repository(tmp_path / "one", files)
    manifest = tmp_path / "m.toml"
    manifest.write_text('[[repos]]\nsource = "one"\nverify-scripts = ["run/*.py"]\nverify-command = "test -e helper.py"\n')
    record = run_one(migrate, manifest)
    scripts, command = record["verifications"]
    assert scripts["command"] == "gradfix verify run/train.py" and scripts["verdict"] == "gained", scripts
    assert command["verdict"] == "preserved"
    verdicts = {c["code"]: c["verdict"] for c in record["commits"]}
    assert verdicts["GF101"] == "gained" and verdicts["GF202"] == "preserved"  # of GF202 only the command knows
    manifest.write_text('[[repos]]\nsource = "one"\nverify-scripts = ["gone.py"]\n')
    record = run_one(migrate, manifest)
    assert record["verifications"][0]["verdict"] == "inconclusive" and len(record["commits"]) == 3


# -------------------------------------------------------------------------- limits

EVIL = '''\
import os, time
from gradfix.codemod import Codemod

codemod = Codemod(__name__, code="EVIL1", promises=())


@codemod.check
def check(facts):
    if os.path.exists("KILL"):
        os.kill(os.getpid(), 9)
    if os.path.exists("EXIT"):
        os._exit(3)
    if os.path.exists("HANG"):
        time.sleep(60)
    if os.path.exists("EAT"):
        b"x" * (3 << 30)
    if os.path.exists("PRINT"):
        print("{}")
        os.write(1, b"{}\\n")
    return ()
'''


@pytest.fixture
def evil_rule(tmp_path, monkeypatch):
    """A third party's rule, installed for the workers, that does harm where a file says so."""
    place = tmp_path / "site"
    write_files(place, {"evil_rules/__init__.py": "", "evil_rules/evil.py": EVIL})
    info = "Metadata-Version: 2.1\nName: evil-rules\nVersion: 1\n"
    write_files(place / "evil_rules-1.dist-info", {"METADATA": info, "entry_points.txt": "[gradfix.codemods]\nevil = evil_rules\n"})
    monkeypatch.setenv("PYTHONPATH", f"{place}{os.pathsep}{ROOT}")


def test_what_one_repository_does_costs_one_record(migrate, tmp_path, evil_rule):
    names = ["A", "KILL", "B", "EXIT", "HANG", "EAT", "PRINT", "C"]
    for name in names:
        repository(tmp_path / "all" / name, {"a.py": module("norm"), name: ""})
    done = migrate("--write", tmp_path / "all", "--timeout", "3", "--memory", "2048", "--jobs", "2", "--report", tmp_path / "r.html")
    assert done.code == 2
    records = {r["name"]: r for r in json.loads((tmp_path / "r.json").read_text())["repositories"]}
    assert {n for n, r in records.items() if r["state"] == "failed"} == {"KILL", "EXIT", "HANG"}
    assert "SIGKILL" in records["KILL"]["error"] and "exit code 3" in records["EXIT"]["error"] and "3 s" in records["HANG"]["error"]
    assert "MemoryError" in records["EAT"]["problems"][0]["message"]
    for name in ("A", "B", "PRINT", "C"):
        assert len(records[name]["commits"]) == 1
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("gradfix-migrate-")]


# ------------------------------------------------------------------------- journal


def start(folder: Path, *arguments, **more) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GIT_CONFIG_GLOBAL": os.devnull, "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "gradfix", "migrate", *map(str, arguments)]
    return subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def test_a_run_that_is_killed_goes_on_and_ends_the_same(migrate, tmp_path):
    repos = many(tmp_path / "a", 12)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    others = [tmp_path / "b" / r.name for r in repos]
    assert migrate("--write", "--branch", "b", *others, "--jobs", "2").code == 0
    arguments = ["--write", "--branch", "b", *repos, "--jobs", "2", "--journal", tmp_path / "other.sqlite"]
    lines = []
    for until in (2, 3, 2):
        process = start(tmp_path, *arguments)
        for line in process.stderr:
            lines.append(line)
            until -= line.startswith("[")
            if not until:
                break
        process.kill()
        process.wait()
    process = start(tmp_path, *arguments)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Resuming the run of" in err and "7 of 12 repositories done" in err
    names = [line.split()[1] for line in [*lines, *err.splitlines()] if line.startswith("[")]
    assert len(names) == len(set(names)) == 12  # nothing is done twice
    assert "12 repositories" in out
    assert [state(r) for r in repos] == [state(r) for r in others]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("gradfix-migrate-")]


def test_a_run_that_is_interrupted_leaves_nothing_and_goes_on(migrate, tmp_path):
    repos = many(tmp_path / "a", 12)
    arguments = ["--write", "--branch", "b", *repos, "--jobs", "2", "--journal", tmp_path / "other.sqlite"]
    process = start(tmp_path, *arguments, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # as a shell does
    for line in process.stderr:
        if line.startswith("[2/"):
            process.send_signal(signal.SIGINT)
            break
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped; the same command goes on from here" in err and "Traceback" not in err
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("gradfix-migrate-")]
    process = start(tmp_path, *arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "of 12 repositories done" in err and "12 repositories: " in out


def test_a_lock_that_a_killed_git_left_does_not_stop_the_next_run(migrate, tmp_path):
    repo, other = repository(tmp_path / "one"), repository(tmp_path / "two")
    for name in (".git/refs/heads/gradfix/fixed.lock", ".git/refs/heads/gradfix.lock"):
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_bytes(b"")
    assert migrate("--write", "--branch", "gradfix/fixed", repo, other).code == 0, migrate.err
    assert state(repo) == state(other)


def test_a_lock_that_someone_holds_for_a_moment_is_waited_for(migrate, tmp_path):
    repo = repository(tmp_path / "one")
    lock = repo / ".git/refs/heads/fixed.lock"
    lock.write_bytes(b"")
    threading.Timer(1.0, lock.unlink).start()
    assert migrate("--write", "--branch", "fixed", repo).code == 0, migrate.err
    assert "refs/heads/fixed" in state(repo)


def test_nothing_new_is_not_done_again(migrate, tmp_path):
    repos = many(tmp_path / "all", 3)
    command = COUNT.format(path=str(tmp_path / "count"))
    (tmp_path / "count.py").write_text(command)
    arguments = ["--write", *repos, "--verify-command", f"{sys.executable} {tmp_path}/count.py"]
    migrate(*arguments, "--report", tmp_path / "r.html")
    trials = len((tmp_path / "count").read_text())
    report = json.loads((tmp_path / "r.json").read_text())
    assert trials == 2 * sum(bool(r["commits"]) for r in report["repositories"])
    migrate(*arguments, "--report", tmp_path / "r.html")
    again = json.loads((tmp_path / "r.json").read_text())
    assert len((tmp_path / "count").read_text()) == trials
    assert again["repositories"] == report["repositories"]
    write_files(repos[0], {"more.py": module("norm")})
    git(repos[0], "add", "-A"), git(repos[0], "commit", "-qm", "More")
    migrate(*arguments)
    assert len((tmp_path / "count").read_text()) == trials + 2
    migrate(*arguments, "--restart")
    assert len((tmp_path / "count").read_text()) > trials + 4


def test_failures_are_tried_again_by_the_next_run(migrate, tmp_path):
    (tmp_path / "one").mkdir()
    git(tmp_path / "one", "init", "-q")
    assert migrate(tmp_path / "one").code == 2
    write_files(tmp_path / "one", {"a.py": module("norm")})
    git(tmp_path / "one", "add", "-A"), git(tmp_path / "one", "commit", "-qm", "First")
    assert migrate(tmp_path / "one").code == 1


def test_one_run_at_a_time_has_a_journal(migrate, tmp_path):
    from gradfix.migrate.journal import Journal

    repo = repository(tmp_path / "one")
    with Journal(str(migrate.journal)):
        done = migrate(repo)
        assert done.code == 2 and "another `gradfix migrate` is using this journal" in done.err
    assert migrate(repo).code == 1


def test_a_file_that_is_no_journal_is_left_alone(migrate, tmp_path):
    repo = repository(tmp_path / "one")
    migrate.journal.write_text("not a database, but long enough to be read as one" * 20)
    done = migrate(repo)
    assert done.code == 2 and "is no journal of gradfix" in done.err
    migrate.journal.unlink()
    with sqlite3.connect(migrate.journal) as db:
        db.execute("create table mine (x)")
    db.close()
    before = migrate.journal.read_bytes()
    assert migrate(repo).code == 2 and migrate.journal.read_bytes() == before
    migrate.journal.unlink()
    migrate.journal.mkdir()
    assert migrate(repo).code == 2 and "Traceback" not in migrate.err


def test_the_journal_is_in_the_state_folder(migrate, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    migrate(repository(tmp_path / "one"), journal=False)
    if sys.platform.startswith("linux"):
        assert (tmp_path / "state" / "gradfix" / "migrate.sqlite").is_file()


# ---------------------------------------------------------------------------- Dask


def test_dask_gives_the_same_and_loses_nothing_with_a_worker(migrate, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    repos = many(tmp_path / "a", 10)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    others = [tmp_path / "b" / r.name for r in repos]
    migrate("--write", "--branch", "b", *others)
    slow = tmp_path / "slow"
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs="CRITICAL") as cluster:
        command = f"touch {slow}; sleep 0.3"
        process = start(
            tmp_path, "--write", "--branch", "b", *repos, "--cluster", cluster.scheduler_address,
            "--journal", tmp_path / "dask.sqlite", "--verify-command", command, "--report", tmp_path / "r.html",
        )  # fmt: skip
        for line in process.stderr:
            if line.startswith("[2/"):
                break
        os.kill(next(iter(cluster.workers.values())).pid, 9)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    report = json.loads((tmp_path / "r.json").read_text())
    assert len(report["repositories"]) == 10 and report["summary"]["failed"] == 0
    assert [state(r) for r in repos] == [state(r) for r in others]
    assert slow.exists()


def test_a_cluster_of_its_own(migrate, tmp_path):
    pytest.importorskip("distributed")
    repos = many(tmp_path / "a", 3)
    assert migrate("--write", "--branch", "b", *repos, "--cluster", "local", "--jobs", "1").code == 0
    assert "3 repositories" in migrate.out and migrate.err.count("[") == 3

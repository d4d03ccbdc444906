"""What is shipped for other tools works in them, and the documentation says what is shipped."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml
from markdown_it import MarkdownIt
from review_support import GitHub, git
from test_review import FIRST, SECOND, repository

ROOT = Path(__file__).parent.parent
WRONG = "import torch\n\nw = torch.zeros(3, requires_grad=True)\nh = w * 2\nh.sum().backward()\nprint(h.grad)\n"


def snippets(name: str, kind: str) -> list[str]:
    tokens = MarkdownIt("commonmark").parse((ROOT / name).read_text(encoding="utf-8"))
    return [t.content for t in tokens if t.type == "fence" and t.info == kind]


def schema(name: str) -> dict:
    """As check-jsonschema ships it."""
    vendored = files("check_jsonschema.builtin_schemas.vendor")
    return json.loads((vendored / f"{name}.json").read_text(encoding="utf-8"))


def environment(folder: Path, **more) -> dict:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "GIT_", "CI_", "GITLAB_", "PRE_COMMIT"))}
    return {**kept, "PYTHONPATH": str(ROOT), "PRE_COMMIT_HOME": str(folder / "cache"), "NO_COLOR": "1", **more}


# ----------------------------------------------------------------------- pre-commit


@pytest.fixture
def hooks(tmp_path):
    """A repository whose hooks are ours, run by this Python instead of one that pre-commit installs."""
    source = tmp_path / "source"
    source.mkdir()
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert text.count("language: python\n") == 3
    command = f"{sys.executable} -m gradfix"
    text = text.replace("language: python\n", "language: system\n").replace("entry: gradfix", f"entry: {command}")
    (source / ".pre-commit-hooks.yaml").write_text(text)
    git(source, "init", "-q", ".")
    git(source, "add", "-A")
    git(source, "commit", "-qm", "hooks")
    git(source, "tag", "v0.1.0")
    return source


@pytest.fixture
def committed(tmp_path, hooks):
    pytest.importorskip("pre_commit")

    def make(ids, **contents):
        work = tmp_path / "work"
        work.mkdir()
        git(work, "init", "-q", ".")
        (snippet,) = [s for s in snippets("README.md", "yaml") if "repos:" in s]
        snippet = snippet.replace("https://git.example/gradfix", str(hooks))
        if ids:
            snippet = snippet.replace("      - id: gradfix\n", "".join(f"      - id: {i}\n" for i in ids))
        (work / ".pre-commit-config.yaml").write_text(snippet)
        for name, text in contents.items():
            (work / name.replace("_py", ".py")).write_text(text)
        git(work, "add", "-A")

        def run(*arguments):
            command = [sys.executable, "-m", "pre_commit", "run", *arguments]
            done = subprocess.run(command, cwd=work, env=environment(tmp_path), capture_output=True, text=True, timeout=120)
            return done.returncode, done.stdout + done.stderr

        return work, run

    return make


def test_the_readme_snippet_runs(committed):
    work, run = committed(None, a_py=WRONG)
    code, said = run("--all-files")
    assert code == 1 and "GF101" in said and "exit code: 1" in said
    (work / "a.py").write_text(WRONG.replace("h.sum()", "h.retain_grad()\nh.sum()"))
    git(work, "add", "-A")
    assert run("--all-files")[0] == 0


def test_a_repository_without_python(committed):
    _, run = committed(["gradfix", "gradfix-apply", "gradfix-review"], README="# x\n")
    code, said = run("--all-files")
    assert code == 0 and said.count("Skipped") == 3


def test_apply_repairs_and_the_next_commit_goes_through(committed):
    work, run = committed(["gradfix-apply"], a_py=WRONG)
    code, said = run("--all-files")
    assert code == 1 and "files were modified by this hook" in said
    assert "h.retain_grad()" in (work / "a.py").read_text()
    git(work, "add", "-A")
    assert run("--all-files")[0] == 0


def test_review_looks_at_the_commit_only(committed):
    work, run = committed(["gradfix-review"], old_py=WRONG)
    code, said = run()  # the first commit: all is new
    assert code == 1 and "old.py:6" in said
    git(work, "commit", "-qm", "old")
    (work / "new.py").write_text(WRONG)
    git(work, "add", "-A")
    with open(work / "new.py", "a") as out:  # not part of the commit
        out.write("v = torch.tensor([1], requires_grad=True)\n")
    (work / "scratch.py").write_text(WRONG)  # nor is this
    code, said = run()
    assert code == 1 and "new.py:6" in said and "old.py" not in said and "GF202" not in said and "scratch.py" not in said


def test_the_hooks_are_known_to_pre_commit():
    clientlib = pytest.importorskip("pre_commit.clientlib")
    loaded = clientlib.load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))
    assert [h["id"] for h in loaded] == ["gradfix", "gradfix-apply", "gradfix-review"]
    text = (ROOT / "docs" / "integrations.md").read_text()
    assert all(f"`{h['id']}`" in text for h in loaded)


# --------------------------------------------------------------------------- GitHub


def action() -> dict:
    return yaml.safe_load((ROOT / "action.yml").read_text())


def test_the_action_is_valid():
    jsonschema.validate(action(), schema("github-actions"))


@pytest.fixture
def act(tmp_path):
    """Runs the action's last step as a runner does; the first one would install GradFix."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("needs bash")
    commands = tmp_path / "temp" / "gradfix" / "bin"
    commands.mkdir(parents=True)
    (commands / "gradfix").write_text(f'#!{shell}\nexec "{sys.executable}" -m gradfix "$@"\n')
    (commands / "gradfix").chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()

    def run(more=(), **inputs):
        made = action()
        values = {name: inputs.pop(name, entry["default"]) for name, entry in made["inputs"].items()}
        assert not inputs
        step = made["runs"]["steps"][-1]
        env = {k: values[re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", v)[1]] for k, v in step["env"].items()}
        assert "${{" not in step["run"]  # what a stranger may write is never part of a script
        done = subprocess.run(
            [shell, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], cwd=work, capture_output=True, text=True,
            env=environment(tmp_path, RUNNER_TEMP=str(tmp_path / "temp"), **env, **dict(more)), timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return work, run


def test_the_action_checks(act):
    work, run = act
    (work / "a.py").write_text(WRONG)
    (work / "b.py").write_text(WRONG)
    code, out, _ = run()
    assert code == 1 and out.startswith("::error file=a.py,line=6,") and out.count("::error") == 2
    assert run(args="--exit-zero b.py")[1].count("::error") == 1
    assert run(args="--exclude *.py")[:2] == (0, "")
    assert run(mode="else")[:2] == (2, "::error::mode must be check or review, not else\n")


def test_the_action_reviews(act):
    _, run = act
    code, _, said = run(mode="review")
    assert code == 2 and "GITHUB_REPOSITORY" in said


def test_the_action_posts(act, tmp_path):
    work, run = act
    repository(work, FIRST, SECOND)
    server = GitHub(work, "main", "change")
    try:
        event = tmp_path / "event.json"
        event.write_text(json.dumps({"pull_request": {"number": 7}}))
        more = {"GITHUB_REPOSITORY": "o/r", "GITHUB_API_URL": server.url, "GITHUB_EVENT_PATH": str(event)}
        server.may_write = False
        code, out, said = run(more, mode="review", token="secret", args="--isolated -j1")
        assert code == 1 and out.count("::error file=train.py,") == 2 and not server.posted
        server.may_write = True
        code, out, said = run(more, mode="review", token="secret", args="--isolated -j1")
        assert (code, out) == (1, "") and said.splitlines()[-1] == "Posted 1 comment."
        assert [(c["path"], c["line"]) for c in server.posted] == [("train.py", 12)]
    finally:
        server.close()


# --------------------------------------------------------------------------- GitLab


def test_the_gitlab_template_is_valid():
    made = yaml.safe_load((ROOT / "integrations" / "gitlab-ci.yml").read_text())
    jsonschema.validate(made, schema("gitlab-ci"))
    text = (ROOT / "docs" / "integrations.md").read_text()
    assert all(name in text for name in (*made[".gradfix"]["variables"], "integrations/gitlab-ci.yml"))


def test_the_gitlab_job_writes_what_it_says(tmp_path):
    made = yaml.safe_load((ROOT / "integrations" / "gitlab-ci.yml").read_text())
    (line,) = made["gradfix"]["script"]
    (tmp_path / "a.py").write_text(WRONG)
    script = line.replace("gradfix check", f'"{sys.executable}" -m gradfix check').replace("$GRADFIX_ARGS", "a.py")
    assert subprocess.run(script, shell=True, cwd=tmp_path, env=environment(tmp_path), timeout=120).returncode == 1
    report = json.loads((tmp_path / made["gradfix"]["artifacts"]["reports"]["codequality"]).read_text())
    assert [e["location"]["path"] for e in report] == ["a.py"]


# -------------------------------------------------------------------- documentation


@pytest.mark.parametrize("page", ["docs/review.md", "docs/integrations.md"])
def test_the_workflows_in_the_documentation_are_valid(page):
    seen = 0
    for text in snippets(page, "yaml"):
        made = yaml.safe_load(text)
        if "jobs" in made:
            made["on"] = made.pop(True)  # YAML 1.1 takes `on` for a truth value
            jsonschema.validate(made, schema("github-workflows"))
        elif "repos" not in made:
            jsonschema.validate(made, schema("gitlab-ci"))
        seen += 1
    assert seen


def test_the_formats_in_the_documentation_are_those_there_are():
    from gradfix.config import FORMATS

    table = (ROOT / "docs" / "integrations.md").read_text().split("## Formats")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)`", table, re.M) == list(FORMATS)


def test_the_commands_in_the_documentation_exist():
    import typer

    from gradfix.cli import app

    known = typer.main.get_command(app).commands
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    used = 0
    for page in pages:
        for line in re.findall(r"(?:^|`|- run: |- )(gradfix [a-z][^`\n]*)", page.read_text(), re.M):
            text = re.split("[#|]", line)[0]
            words = shlex.split(text) if text.count('"') % 2 == 0 and text.count("'") % 2 == 0 else text.split()
            if words[1] not in known:
                continue
            options = {o for p in known[words[1]].params for o in (*p.opts, *p.secondary_opts)}
            for word in words[2:]:
                if word == "--":
                    break
                if word.startswith("-") and len(word) > 1 and " " not in word:
                    assert word.split("=")[0].rstrip(".,;:)") in options, f"{page.name}: {line}"
                    used += 1
    assert used > 20

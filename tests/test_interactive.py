"""`apply --interactive` and `check --watch`, as a person at a terminal meets them."""

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue

import pytest
from shell_support import write

from gradfix.cli import run

ROOT = Path(__file__).parent.parent
HEAD = "import torch\n\nw = torch.zeros(3, requires_grad=True)\n"
PARTS = [f"h{i} = w * {i}\nh{i}.sum().backward()\nprint(h{i}.grad)\n" for i in (1, 2, 3)]
FIXED = [p.replace(f"h{i}.sum", f"h{i}.retain_grad()\nh{i}.sum") for i, p in enumerate(PARTS, 1)]
UNSAFE = "u = torch.zeros(2)\n(u * 2).sum().backward()\nprint(u.grad)\n"


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """Runs `apply --interactive` with lines as the input."""
    monkeypatch.chdir(tmp_path)

    def call(lines, *arguments):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        code = run(["apply", "--interactive", "--isolated", "-j1", *arguments])
        out, err = capsys.readouterr()
        assert sys.stdin.read() == "", "not every answer was asked for"
        return code, out, err

    return call


@pytest.mark.parametrize(
    "lines, made, asked",
    [
        ("y\ny\ny\n", (1, 1, 1), 3),
        ("n\ny\nn\n", (0, 1, 0), 3),
        ("y\nNo\nYES\n", (1, 0, 1), 3),
        ("n\na\n", (0, 1, 1), 2),
        ("y\nq\n", (1, 0, 0), 2),
        ("y\n", (1, 0, 0), 2),  # the end of the input
        ("", (0, 0, 0), 1),
        ("what\n\nn\nq\n", (0, 0, 0), 4),
    ],
)
def test_answers(answer, tmp_path, lines, made, asked):
    path = write(tmp_path / "a.py", HEAD + "".join(PARTS))
    code, out, _ = answer(lines)
    assert path.read_text() == HEAD + "".join(f if yes else p for f, p, yes in zip(FIXED, PARTS, made))
    assert out.count("Make this fix?") == asked
    assert code == (0 if all(made) else 1)
    assert "+h1.retain_grad()\n" in out and "a.py:6:7: error GF101 (retain-grad) `h1.grad` is `None`" in out


def test_what_was_refused_is_not_asked_again(answer, tmp_path):
    """A second round has the same findings at other lines."""
    same = "def f{i}():\n    h = w * 2\n    h.sum().backward()\n    print(h.grad)\n    h = w * 3\n    h.sum().backward()\n    print(h.grad)\n"
    path = write(tmp_path / "a.py", HEAD + same.format(i=1) + same.format(i=2))
    _, out, _ = answer("n\ny\ny\nn\n")
    assert out.count("Make this fix?") == 4 and path.read_text().count("retain_grad") == 2
    code, out, _ = answer("n\nn\n")
    assert code == 1 and out.count("Make this fix?") == 2


def test_a_fix_that_waits_for_another_is_asked_once(answer, tmp_path):
    text = "import torch\n\nv, w = torch.tensor([1], requires_grad=True), torch.randn(3, requires_grad=True) * 2\nw.sum().backward()\nprint(w.grad)\n"
    path = write(tmp_path / "a.py", text)
    by_itself = write(tmp_path / "b" / "a.py", text)
    run(["apply", "--isolated", "--unsafe-fixes", "-q", str(by_itself)])
    _, out, _ = answer("a\n", "--unsafe-fixes", "a.py")
    assert path.read_text() == by_itself.read_text() != text


def test_only_what_may_be_made_is_asked(answer, tmp_path):
    path = write(tmp_path / "a.py", "import torch\n" + UNSAFE)
    assert "Make this fix?" not in answer("")[1]
    _, out, _ = answer("y\n", "--unsafe-fixes")
    assert "unsafe fix: " in out and "requires_grad=True" in path.read_text()
    write(tmp_path / "a.py", HEAD + PARTS[0])
    assert "Make this fix?" not in answer("", "--unfixable", "GF101")[1]


def test_cells_are_shown_as_cells(answer, tmp_path):
    from test_review import lesson

    path = write(tmp_path / "n.ipynb", lesson(HEAD, PARTS[0], PARTS[1]))
    _, out, _ = answer("n\ny\n")
    assert "n.ipynb:cell 3:3:7: error" in out and "+++ b/n.ipynb:cell 3\n" in out
    assert path.read_text() == lesson(HEAD, PARTS[0], FIXED[1])


@pytest.mark.parametrize("more", [["-"], ["--dry-run"], ["--verify"], ["--verify-command", "true"]])
def test_interactive_goes_with_no_other_mode(answer, more):
    code, _, said = answer("", *more)
    assert code == 2 and said.startswith("error: --interactive and -")


def listens():
    """As a shell starts a program in the foreground: what a shell starts in the background inherits that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_at_a_terminal(tmp_path):
    pexpect = pytest.importorskip("pexpect")
    path = write(tmp_path / "a.py", HEAD + "".join(PARTS))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    command = ["-m", "gradfix", "apply", "-i", "--isolated", "a.py"]
    child = pexpect.spawn(sys.executable, command, cwd=str(tmp_path), env=environment, encoding="utf-8", timeout=60, preexec_fn=listens)
    child.expect_exact("\x1b[32m+h1.retain_grad()")
    child.expect_exact("[q]uit: ")
    child.sendline("y")
    child.expect_exact("h2.retain_grad()")
    child.expect_exact("[q]uit: ")
    child.sendline("n")
    child.expect_exact("[q]uit: ")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1 and path.read_text() == HEAD + FIXED[0] + PARTS[1] + PARTS[2]
    child = pexpect.spawn(sys.executable, command, cwd=str(tmp_path), env=environment, encoding="utf-8", timeout=60, preexec_fn=listens)
    child.expect_exact("[q]uit: ")
    child.sendline("y")
    child.expect_exact("[q]uit: ")
    child.sendintr()
    child.expect_exact("interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130 and path.read_text() == HEAD + FIXED[0] + PARTS[1] + PARTS[2]


# ---------------------------------------------------------------------------- watch


class Watching:
    def __init__(self, folder: Path, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "gradfix", "check", "--watch", "-j1", "--output-format", "concise", *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            preexec_fn=listens if os.name == "posix" else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self.lines: Queue = Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def until(self, *wanted: str) -> list[str]:
        """What is said in the first round that says all that is wanted, each at the start of a line."""
        out: list[str] = []
        while True:
            out.append(self.lines.get(timeout=60))
            if out[-1].startswith("Watching"):
                if all(any(line.startswith(w) for line in out) for w in wanted):
                    return out
                out = []


@pytest.fixture
def watching(tmp_path):
    pytest.importorskip("watchfiles")
    started = []

    def start(folder, *arguments):
        started.append(Watching(folder, *arguments))
        return started[-1]

    yield start
    for w in started:
        w.process.kill()
        w.process.wait()


def test_watch(watching, tmp_path):
    write(tmp_path / "src" / "a.py", HEAD + PARTS[0])
    write(tmp_path / "pyproject.toml", "")
    watched = watching(tmp_path, "src")
    watched.until("src/a.py:6:7: error GF101", "Found 1 error")
    write(tmp_path / "src" / "a.py", HEAD + FIXED[0])
    watched.until("Changed: src/a.py.", "No findings.")
    write(tmp_path / "src" / "sub" / "b.py", HEAD + PARTS[1])
    watched.until("src/sub/b.py:6:7: error GF101")

    write(tmp_path / "pyproject.toml", "[tool.gradfix]\nignore = ['GF101']\n")  # above what is watched
    watched.until("Changed: pyproject.toml.", "No findings.")
    write(tmp_path / "pyproject.toml", "[tool.gradfix]\nignore = 'x\n")
    assert any("pyproject.toml" in line for line in watched.until("error: "))
    write(tmp_path / "pyproject.toml", "[tool.gradfix]\n")
    watched.until("src/sub/b.py:6:7")

    write(tmp_path / "src" / "notes.txt", "x")
    write(tmp_path / "src" / "__pycache__" / "c.py", HEAD)
    (tmp_path / "src" / "sub" / "b.py").unlink()
    watched.until("Changed: src/sub/b.py.", "No findings.")


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_watch_ends_at_an_interrupt(watching, tmp_path):

    write(tmp_path / "a.py", HEAD + PARTS[0])
    watched = watching(tmp_path, "--isolated")
    watched.until()
    watched.process.send_signal(signal.SIGINT)
    assert watched.process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["-"], "--watch and - exclude each other"),
        (["--write-baseline", "x"], "--watch and --write-baseline exclude each other"),
        (["gone"], "gone: no such file or directory"),
        (["--select", "GFX"], "unknown rule 'GFX'"),
        (["--baseline", "gone.json"], "gone.json: no such file or directory"),
    ],
)
def test_watch_bad_usage(tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    assert run(["check", "--watch", "--isolated", *arguments]) == 2
    assert f"error: {reason}" in capsys.readouterr().err

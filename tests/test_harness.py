"""The recorder, the runner and the judge, on small scripts."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")

from fixture_support import ROOT, settings  # noqa: E402
from harness_support import Verdict, prove, rewritten, runs, script, write  # noqa: E402

from gradfix.harness.rewrites import Rewriter  # noqa: E402
from gradfix.harness.run import Limits, Script  # noqa: E402
from gradfix.harness.trace import Forgive  # noqa: E402
from gradfix.runner import Runner  # noqa: E402

FOUNDING = """\
    import torch

    a = torch.tensor(2.0, requires_grad=True)
    b = a * 3
    c = (b ** 2).sum()
    c.backward()
    print(a.grad, b.grad)
"""


def numbers(value):
    return None if value is None else value.numbers()


def test_the_founding_example():
    judged = prove(ROOT / "retain-grad" / "founding_example.py")
    assert judged.verdict is Verdict.GAINED
    before, after = judged.before, judged.after
    assert numbers(before.end["a"].grad) == [36.0] and before.end["b"].grad is None
    assert numbers(after.end["a"].grad) == [36.0] and numbers(after.end["b"].grad) == [12.0]
    assert before.stdout == "tensor(36.)\nNone\n" and after.stdout == "tensor(36.)\ntensor(12.)\n"


def test_what_is_recorded(tmp_path):
    record = runs().run(
        script(
            write(
                tmp_path,
                """\
                import torch

                net = torch.nn.Linear(2, 1)
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                x = torch.ones(1, 2, requires_grad=True)
                net(x).sum().backward()
                optimizer.step()
                (g,) = torch.autograd.grad(net(x).sum(), x)
                print("seen", x.grad is None)
                raise ValueError("the end")
                """,
            )
        )
    )
    kinds = [(e.kind, sorted(e.values), e.place.row) for e in record.events]
    assert kinds == [
        ("backward", ["net.bias", "net.weight", "x"], 6),
        ("step", ["net.bias", "net.weight"], 7),
        ("grad", ["x"], 8),
        ("read", ["x"], 9),
    ]
    assert record.stdout == "seen False\n"
    assert (record.error.type, record.error.message, record.error.place.row) == ("ValueError", "the end", 10)
    assert set(record.end) >= {"net.weight", "net.bias", "x", "g"}
    assert numbers(record.end["net.bias"].grad) == [1.0]


def test_scripts_of_many_shapes(tmp_path):
    write(tmp_path, "", "pkg/__init__.py")
    write(tmp_path, "import torch\ndef make(n):\n    return torch.ones(n, requires_grad=True)\n", "pkg/parts.py")
    write(tmp_path, "SIZE = 2\n", "pkg/beside.txt")
    path = write(
        tmp_path,
        """\
        import argparse
        import pathlib
        from .parts import make

        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument("--n", type=int, default=1)
            w = make(parser.parse_args().n)
            (w * 2).sum().backward()
            print(w.grad.tolist(), pathlib.Path(__file__).with_name("beside.txt").read_text().strip())

        if __name__ == "__main__":
            main()
        """,
        "pkg/train.py",
    )
    here = script(path, Limits(timeout=30, arguments=["--n", "3"]), tmp_path)
    record = runs().run(here)
    assert record.error is None and record.stdout == "[2.0, 2.0, 2.0] SIZE = 2\n"
    assert numbers(record.end["w"].grad) == [2.0] * 3  # a local of a function that has returned
    assert "pkg/parts.py" in record.modules
    changed = b"import torch\ndef make(n):\n    return torch.zeros(n, requires_grad=True)\n"
    record = runs().run(here, {str((tmp_path / "pkg/parts.py").resolve()): changed})
    assert numbers(record.end["w"].value) == [0.0] * 3


def test_tensors_of_every_kind_are_kept(tmp_path):
    source = """\
        import torch

        x = torch.randn(70, 70)
        kinds = [x.bfloat16(), x.half(), x.double(), x.t(), x.to(torch.complex64).conj(), x.long(), x > 0, x.to(torch.float8_e5m2)]
        large = [t.clone() for t in kinds]
        small = [t[:2, :2] for t in kinds]
        odd = [torch.zeros(0, 3), torch.eye(3).to_sparse(), torch._neg_view(torch.ones(2)), torch.tensor(1.0)]
        """
    path = write(tmp_path, source)
    first = runs().run(script(path)).end
    assert len(first) == 29 and first == runs().run(script(path)).end
    other = runs().run(script(write(tmp_path, source.replace("(70, 70)", "(70, 70) * 1.01")))).end
    same = {name for name in first if first[name].value.same(other[name].value)}
    assert same <= {"kinds[5]", "large[5]", "small[5]", "kinds[6]", "large[6]", "small[6]", "small[7]", "odd[0]", "odd[1]", "odd[2]", "odd[3]"}
    assert numbers(first["small[0]"].value) and numbers(first["odd[2]"].value) == [-1.0, -1.0]
    assert numbers(first["large[0]"].value) is None and numbers(first["small[7]"].value) is None


def test_gradfix_and_python_are_not_the_users_code(tmp_path):
    path = write(tmp_path, FOUNDING)
    here = Script(str(path.resolve()), "/", str(tmp_path), Limits(timeout=30))  # GradFix and Python lie inside of it
    for mode in ({}, {"mode": "forgive", "forgive": Forgive()}):
        record = runs().run(here, **mode)
        assert {e.place.path.rpartition("/")[2] for e in record.events if e.place} == {"script.py"}
        assert not [name for name in record.modules if name.endswith(("argparse.py", "record.py"))]


def test_two_runs_are_the_same_run(tmp_path):
    path = write(
        tmp_path,
        """\
        import random, numpy, torch
        w = torch.randn(3, requires_grad=True)
        (w * random.random() * numpy.random.rand()).sum().backward()
        """,
    )
    assert runs().run(script(path)).end == runs().run(script(path)).end


def test_a_script_that_differs_from_itself_proves_nothing(tmp_path):
    judged = prove(write(tmp_path, FOUNDING.replace("2.0", "float(__import__('time').time_ns() % 1000003)")))
    assert judged.verdict is Verdict.INCONCLUSIVE and "two runs of the original differ" in judged.reason


def test_the_whole_group_is_ended_at_the_limit(tmp_path):
    path = write(
        tmp_path,
        """\
        import os, time
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()  # leaves the group
                time.sleep(600)
            time.sleep(600)
        time.sleep(600)
        """,
    )
    started = time.monotonic()
    record = runs().run(script(path, Limits(timeout=1.0)))
    assert record.stopped == "time" and time.monotonic() - started < 20
    runs().run(script(write(tmp_path, "pass", "next.py")))
    left = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True).stdout.splitlines()
    server = str(runs().server.pid)
    assert not [line for line in left if line.split()[:1] == [server]]


def test_a_script_that_can_not_leave_its_record(tmp_path):
    path = write(tmp_path, "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n")
    record = runs().run(script(path))
    assert record.stopped == "died" and record.detail == "it left no record that can be read"


def test_the_other_scripts_run_where_one_kills_the_process_that_runs_them(tmp_path):
    from gradfix.harness.run import Runs

    source = """\
        import os, signal, tempfile, time
        with open(tempfile.gettempdir() + "/pid", "w") as file:
            file.write(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
        """
    path = write(tmp_path, source)
    with Runs(2) as own:
        for end in ("", "time.sleep(600)"):
            record = own.run(script(write(tmp_path, source.replace("time.sleep(600)", end), "quick.py")))
            assert record.stopped == "died", end
        assert record.detail == "it, or what ran beside it, killed the process that runs the scripts"
        assert own.run(script(write(tmp_path, "print('here')", "next.py"))).stdout == "here\n"
        numbers_of_runs = [own.start(script(path)) for _ in range(2)]
        time.sleep(0.5)
        pids = [pid for file in Path(own.folder).glob("*/tmp/pid") if (pid := file.read_text())]
        assert pids and {own.result(number).stopped for number in numbers_of_runs} == {"died"}
        left = subprocess.run(["ps", "-o", "stat=", "-p", ",".join(pids)], capture_output=True, text=True).stdout.split()
        assert all(state.startswith("Z") for state in left)
    assert not os.path.exists(own.folder)


def test_memory_is_limited(tmp_path):
    path = write(tmp_path, "import torch\nx = torch.ones(1 << 28)\n")
    assert runs().run(script(path, Limits(timeout=30, memory=64 << 20))).stopped == "memory"


def test_output_is_bounded_and_there_is_no_input(tmp_path):
    record = runs().run(script(write(tmp_path, "while True:\n    print('x' * 100000)\n    if input(): pass\n")))
    assert record.error.type == "EOFError"
    record = runs().run(script(write(tmp_path, "for i in range(100): print('x' * 100000)\n")))
    assert len(record.stdout) == 1 << 20


def test_what_a_script_writes_goes_into_a_copy(tmp_path):
    path = write(
        tmp_path,
        """\
        import os, torch
        open("log.txt", "w").write("here")
        torch.save(torch.ones(2), "weights.pt")
        os.mkdir("out")
        os.remove("data.txt")
        print(sorted(os.listdir(".")))
        """,
    )
    (tmp_path / "data.txt").write_text("kept")
    before = sorted(os.listdir(tmp_path))
    record = runs().run(script(path))
    assert record.error is None and record.stdout == "['log.txt', 'out', 'script.py', 'weights.pt']\n"
    assert sorted(os.listdir(tmp_path)) == before and (tmp_path / "data.txt").read_text() == "kept"


def test_temporary_files_are_allowed(tmp_path):
    path = write(
        tmp_path,
        """\
        import tempfile, torch
        with tempfile.TemporaryFile() as one, tempfile.NamedTemporaryFile() as two, tempfile.TemporaryDirectory() as three:
            torch.save(torch.ones(2), one)
            torch.save(torch.ones(2), two.name)
            torch.save(torch.ones(2), three + "/x.pt")
        print("done")
        """,
    )
    import torch.distributed.rpc  # noqa: F401: asks for the folder as the server's imports may

    record = runs().run(script(path))
    assert record.error is None and record.stdout == "done\n"


def test_a_copy_reads_what_lies_beside_the_project(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.txt").write_text("here")
    path = write(tmp_path, "open('log', 'w')\nprint(open('../data/x.txt').read())\nopen('../data/y.txt', 'w')\n", "project/main.py")
    record = runs().run(script(path))
    assert record.stdout == "here\n" and record.error.type == "PermissionError"
    assert os.listdir(tmp_path / "data") == ["x.txt"]


def test_a_copy_is_no_door_to_the_rest(tmp_path):
    outside = tmp_path / "outside.txt"
    path = write(tmp_path, f"open('inside.txt', 'w')\nopen({str(outside)!r}, 'w')\n", "project/script.py")
    record = runs().run(script(path))
    assert record.error.type == "PermissionError" and not outside.exists()


def test_a_notebook_runs_as_one_program_without_its_magics(tmp_path):
    cells = ["%matplotlib inline\nimport torch", "a = torch.tensor(2.0, requires_grad=True)", "text", "b = a * 3\n(b ** 2).backward()"]
    cells.append("display(b)\nb.grad")
    kinds = ["code", "code", "markdown", "code", "code"]
    made = [{"cell_type": k, "metadata": {}, "source": c, **({"outputs": []} if k == "code" else {})} for k, c in zip(kinds, cells)]
    path = write(tmp_path, json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), "lesson.ipynb")
    done = gradfix(tmp_path, "verify", "lesson.ipynb", "--output-format", "json")
    (entry,) = json.loads(done.stdout)
    assert entry["verdict"] == "gained", entry
    assert [(r["cell"], r["row"]) for r in entry["rewrites"]] == [(5, 2)]
    assert gradfix(tmp_path, "apply", "--verify", "lesson.ipynb").returncode == 0 and "b.retain_grad()" in path.read_text()


def notebook(folder: Path, *cells: str, name: str = "lesson.ipynb") -> Path:
    """Each text a code cell; a text that starts with `#` is prose."""
    made = [
        {"cell_type": "markdown", "metadata": {}, "source": c} if c.startswith("#")
        else {"cell_type": "code", "metadata": {}, "source": c, "outputs": []}
        for c in cells
    ]  # fmt: skip
    return write(folder, json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), name)


def test_places_in_a_notebook_are_cells_and_rows_in_them(tmp_path):
    """In the reason, the table, the JSON and what is not applied, as in the findings of `check`."""
    twice = "b = a * 3\n(b ** 2).backward()\nprint(b.grad)\nsteps = torch.tensor([1, 2], requires_grad=True)\nsteps.sum().backward()"
    notebook(tmp_path, "# Prose", "%matplotlib inline\nimport torch\na = torch.tensor(2.0, requires_grad=True)", twice)
    checked = json.loads(gradfix(tmp_path, "check", "lesson.ipynb", "--output-format", "json").stdout)
    done = gradfix(tmp_path, "verify", "lesson.ipynb")
    assert "`b.grad` is gained (lesson.ipynb:cell 3:3)" in done.stdout, done.stdout
    assert "it no longer raises RuntimeError: Only Tensors of floating point and complex dtype can require gradients (lesson.ipynb:cell 3:4)" in done.stdout
    assert "read, lesson.ipynb:cell 3:3 " in done.stdout
    (entry,) = json.loads(gradfix(tmp_path, "verify", "lesson.ipynb", "--output-format", "json").stdout)
    places = sorted((r["code"], r["cell"], r["row"]) for r in entry["rewrites"])
    assert places == sorted((f["code"], f["cell"], f["location"]["row"]) for f in checked) == [("GF101", 3, 3), ("GF202", 3, 4)]
    read = entry["differences"][0]
    assert (read["name"], read["filename"], read["cell"], read["row"]) == ("b", "lesson.ipynb", 3, 3)

    notebook(tmp_path, "# Prose", "import time, torch\na = torch.tensor(time.time() % 1e3, requires_grad=True)", "b = a * 3\n(b ** 2).backward()\nprint(b.grad)")
    done = gradfix(tmp_path, "verify", "lesson.ipynb")
    assert "two runs of the original differ: the gradient of `a` is changed (lesson.ipynb:cell 3:2)" in done.stdout, done.stdout

    notebook(tmp_path, "# Prose", "import torch\na = torch.tensor(2.0, requires_grad=True)", "b = a * 3\nb.retain_grad = lambda: 1 / 0\n(b ** 2).backward()\nprint(b.grad)")
    done = gradfix(tmp_path, "apply", "--verify", "lesson.ipynb")
    assert "not applied: lesson.ipynb:cell 3:4 GF101" in done.stderr, done.stderr
    assert "it raises ZeroDivisionError: division by zero (lesson.ipynb:cell 3:2)" in done.stderr, done.stderr


def test_places_in_markdown_are_rows_of_the_file(tmp_path):
    write(tmp_path, "# Prose\n\n```python\n" + "import torch\na = torch.tensor(2.0, requires_grad=True)\n```\n\n```python\nb = a * 3\n(b ** 2).backward()\nprint(b.grad)\n```\n", "lesson.md")
    (entry,) = json.loads(gradfix(tmp_path, "verify", "lesson.md", "--output-format", "json").stdout)
    assert entry["reason"] == "`b.grad` is gained (lesson.md:11)"
    assert [(r["cell"], r["row"]) for r in entry["rewrites"]] == [(None, 11)]
    assert (entry["differences"][0]["cell"], entry["differences"][0]["row"]) == (None, 11)


def test_what_runs_behind_the_last_line(tmp_path):
    """Threads are awaited, then `atexit` is honoured, and a hook of the script's own is told of the exception."""
    path = write(
        tmp_path,
        """\
        import atexit, sys, threading, time, torch

        def late():
            time.sleep(0.3)
            w = torch.ones(2, requires_grad=True)
            w.sum().backward()
            print("late", w.grad.tolist())

        sys.excepthook = lambda kind, error, traceback: print("hooked", kind.__name__)
        atexit.register(print, "bye")
        threading.Thread(target=late).start()
        raise ValueError("the end")
        """,
    )
    record = runs().run(script(path), watched={"script.py": [6, 99]})
    assert record.stdout == "hooked ValueError\nlate [1.0, 1.0]\nbye\n" and record.error.type == "ValueError"
    assert [e.kind for e in record.events] == ["backward", "read"]
    assert record.ran == {"script.py": [6]}  # in the other thread


def test_rows_count_as_run_where_the_script_takes_the_trace_function_away(tmp_path):
    path = write(tmp_path, "import sys\nsys.settrace(None)\ndef f():\n    return 1\nf()\nx = 2\n")
    assert runs().run(script(path), watched={"script.py": [4, 6]}).ran == {"script.py": [4, 6]}


def test_odd_objects_do_not_disturb_the_recorder(tmp_path):
    source = """\
        import sys, torch

        class Meta(type):
            def __getattribute__(self, name):
                raise RuntimeError(name)
        class Odd(metaclass=Meta): pass
        class Lines(list):
            def __iter__(self):
                raise RuntimeError("iter")
        class Table(dict):
            def items(self):
                raise RuntimeError("items")
        class Slots:
            __slots__ = ("w", "free")
        class Text(str):
            def __repr__(self):
                raise RuntimeError("repr")

        odd, lines, table, slots, text = Odd(), Lines([torch.zeros(1)]), Table(a=torch.zeros(1)), Slots(), {Text("x"): 1}
        slots.w = torch.ones(2, requires_grad=True)
        (slots.w * 2).sum().backward()
        sys.stdout.reconfigure(line_buffering=True)
        print("\\ud800", slots.w.grad.tolist())
        """
    record = runs().run(script(write(tmp_path, source)))
    assert record.stopped is None and record.error is None, (record.detail, record.error)
    assert record.stdout == "\\ud800 [2.0, 2.0]\n"
    assert [list(e.values) for e in record.events] == [["slots.w"], ["slots.w"]]


def test_tensors_without_contents_are_recorded_as_such(tmp_path):
    source = """\
        import torch
        from torch.func import grad, vmap

        print(vmap(grad(lambda x: (x**2).sum()))(torch.ones(2, 2)).tolist())
        w = torch.ones(2, requires_grad=True, device="meta")
        w.sum().backward()
        print(w.grad.shape)
        """
    record = runs().run(script(write(tmp_path, source)))
    assert record.error is None and record.stdout == "[[2.0, 2.0], [2.0, 2.0]]\ntorch.Size([2])\n"
    value = record.events[-1].values["w"]
    assert (value.shape, value.raw) == ([2], None)


VARYING = """\
    import os, time, torch

    a = torch.tensor(2.0, requires_grad=True)
    b = a * 3
    {before}
    (b ** 2).sum().backward()
    print(b.grad{norm})
    {behind}
"""


@pytest.mark.parametrize(
    "parts",
    [
        {"before": "started = time.time_ns() % 9973", "norm": "", "behind": "print(started)"},
        # What is behind the exception is met by the rewritten script alone.
        {"before": "pass", "norm": ".norm()", "behind": "spent = [time.time_ns() % 9973]; print('spent', spent)"},
    ],
)
def test_what_varies_by_itself_proves_nothing_against_a_rewrite(tmp_path, parts):
    path = write(tmp_path, VARYING.format(**parts))
    done = rewritten(path)
    judged = prove(path, done)
    assert judged.verdict is Verdict.GAINED, judged.reason
    for part, instead in ((b"b.retain_grad()", b"b.grad = torch.tensor(11.0)"), (b"(b ** 2)", b"(b ** 2 * (time.time_ns() % 9973))")):
        assert not prove(path, done, done.after[str(path)].replace(part, instead)).good


def test_a_script_that_becomes_another_program(tmp_path):
    path = write(tmp_path, "import os, sys\nif len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, __file__, 'x'])\n")
    record = runs().run(script(path))
    assert record.stopped == "died" and record.detail == "it becomes another program, whose gradients nobody sees"


def test_a_gradient_that_is_read_of_a_tensor_without_a_name(tmp_path):
    source = """\
        import torch
        kept = {0.5: torch.tensor(2.0, requires_grad=True)}
        kept[1.5] = kept[0.5] * 3
        (kept[1.5] ** 2).sum().backward()
        seen = repr(kept[1.5].grad)
        """
    path = write(tmp_path, source)
    done = rewritten(path)
    assert done.after
    judged = prove(path, done)
    assert judged.verdict is Verdict.GAINED, judged.reason
    read = next(d for d in judged.differences if d.kind == "read")
    assert (read.change, read.after.numbers()) == ("gained", [12.0])
    for part, instead in ((b"* 3", b"* 4"), (b"kept[1.5].retain_grad()", b"pass")):
        assert not prove(path, done, done.after[str(path)].replace(part, instead)).good


def test_what_is_recorded_besides_gradients(tmp_path):
    source = "import torch\nlosses = [0.5, (1, 'x'), {'k': None}, torch.ones(1)]\nepochs = 3\nclass A: pass\nmade = [A()]\n"
    record = runs().run(script(write(tmp_path, source)))
    assert record.plain == {"losses": "list(0.5, tuple(1, 'x'), dict('k', None), tensor)", "epochs": "3"}


def test_without_fork(tmp_path):
    from gradfix.harness.run import Runs

    with Runs(2, fork=False) as slow:
        record = slow.run(script(write(tmp_path, FOUNDING)))
    assert record.error is None and numbers(record.end["a"].grad) == [36.0]


# ---------------------------------------------------------------- the command


def gradfix(folder: Path, *arguments: str):
    isolated = [] if "--isolated" in arguments or "--" in arguments else ["--isolated"]
    command = [sys.executable, "-m", "gradfix", *arguments, *isolated]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_verify(tmp_path):
    write(tmp_path, FOUNDING)
    done = gradfix(tmp_path, "verify", "script.py", "--device", "cpu,cuda")
    assert done.returncode == 0, done.stderr
    assert "script.py: gained: `b.grad` is gained (script.py:7)" in done.stdout
    assert "runs 1 script of yours" in done.stderr
    import torch

    assert ("warning: cuda is not here" in done.stderr) == (not torch.cuda.is_available())
    done = gradfix(tmp_path, "verify", ".", "--output-format", "json")
    (entry,) = json.loads(done.stdout)
    assert (entry["verdict"], entry["filename"]) == ("gained", "script.py")
    assert [(r["code"], r["verdict"]) for r in entry["rewrites"]] == [("GF101", "gained")]
    read = entry["differences"][0]
    assert (read["name"], read["before"], read["after"]["values"], read["row"]) == ("b", None, [12.0], 7)


def test_exit_codes_of_verify(tmp_path):
    unsure = FOUNDING.replace("2.0", "float(__import__('time').time_ns() % 1000003)")
    write(tmp_path, unsure)
    assert gradfix(tmp_path, "verify", "script.py").returncode == 0
    assert gradfix(tmp_path, "verify", "script.py", "--strict").returncode == 1
    assert gradfix(tmp_path, "verify", "absent.py").returncode == 2
    assert gradfix(tmp_path, "verify", "script.py", "--device", "tpu").returncode == 2
    assert gradfix(tmp_path, "verify", "script.py", "--memory", "much").returncode == 2


def test_the_tree_stays_as_it_was(tmp_path):
    path = write(tmp_path, FOUNDING)
    before = path.read_bytes()
    rewritten(path)
    assert gradfix(tmp_path, "verify", "script.py").returncode == 0
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["script.py"]


# ---------------------------------------------------------------- apply --verify

TWO = """\
    import torch

    torch.manual_seed(0)
    a = torch.tensor(2.0, requires_grad=True)
    b = a * 3
    seen = []
    b.retain_grad = lambda: seen.append(1 / 0)
    c = (b ** 2).sum()
    c.backward()
    print(b.grad)

    w = torch.ones(2, requires_grad=True)
    h = w * 2
    h.sum().backward()
    print(h.grad)
"""


def test_apply_verify_keeps_the_good_and_reports_the_bad(tmp_path):
    path = write(tmp_path, TWO)
    original = path.read_text()
    plain = gradfix(tmp_path, "apply", "--dry-run", "script.py").stdout
    assert plain.count("+b.retain_grad()") == 1 and plain.count("+h.retain_grad()") == 1
    done = gradfix(tmp_path, "apply", "--verify", "script.py")
    assert done.returncode == 1, done.stderr
    assert path.read_text() == original.replace("h.sum().backward", "h.retain_grad()\nh.sum().backward")
    assert "not applied: script.py:10 GF101 retain-grad: failed: after the rewrite it raises ZeroDivisionError" in done.stderr


def test_apply_verify_does_not_touch_what_it_can_not_judge(tmp_path):
    path = write(tmp_path, FOUNDING.replace("2.0", "float(__import__('time').time_ns() % 1000003)"))
    before = path.read_bytes()
    done = gradfix(tmp_path, "apply", "--verify", "script.py")
    assert path.read_bytes() == before and "inconclusive: two runs of the original differ" in done.stderr
    helper = write(tmp_path, "import torch\ndef f(a):\n    b = torch.tanh(a)\n    b.sum().backward()\n    return b.grad\n", "m.py")
    before = helper.read_bytes()
    done = gradfix(tmp_path, "apply", "--verify", "--unsafe-fixes", "m.py")
    assert helper.read_bytes() == before


HELPER = """\
    import torch

    def gradient():
        a = torch.tensor(2.0, requires_grad=True)
        b = a * 3
        (b ** 2).sum().backward()
        return a.grad, b.grad
"""
SUITE = """\
    from helper import gradient

    def test_leaf():
        assert gradient()[0] == 36

    def test_shape():
        assert gradient()[1] is None or gradient()[1].shape == ()
"""


def test_a_module_is_judged_through_the_script_that_runs_it(tmp_path):
    helper = write(tmp_path, HELPER, "helper.py")
    write(tmp_path, "import helper\nprint(helper.gradient())\n", "main.py")
    done = gradfix(tmp_path, "verify", "main.py")
    assert done.returncode == 0 and "main.py: gained: `b.grad` is gained (helper.py:7)" in done.stdout, done.stdout
    done = gradfix(tmp_path, "apply", "--verify", ".")
    assert done.returncode == 0 and "    b.retain_grad()\n" in helper.read_text(), done.stderr


BY_PATH = """\
    import importlib.util
    spec = importlib.util.spec_from_file_location("anything", "helper.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(module.gradient())
"""


@pytest.mark.parametrize("main", ["import runpy\nprint(runpy.run_path('helper.py')['gradient']())\n", BY_PATH])
def test_a_module_that_is_loaded_by_its_path_is_judged(tmp_path, main):
    write(tmp_path, HELPER, "helper.py")
    write(tmp_path, main, "main.py")
    done = gradfix(tmp_path, "verify", "main.py")
    assert "main.py: gained: `b.grad` is gained (helper.py:7)" in done.stdout, done.stdout


def test_a_command_judges(tmp_path):
    helper, suite = write(tmp_path, HELPER, "helper.py"), write(tmp_path, SUITE, "test_helper.py")
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider"
    before = sorted(os.listdir(tmp_path))
    done = gradfix(tmp_path, "verify", "helper.py", "--isolated", "--", *command.split())
    assert done.returncode == 0 and ": gained: `b.grad` is gained (helper.py:7)" in done.stdout, done.stdout + done.stderr
    assert sorted(os.listdir(tmp_path)) == before
    suite.write_text(suite.read_text().replace("is None or", "is None  #"))
    original = helper.read_bytes()
    done = gradfix(tmp_path, "apply", "helper.py", "--verify-command", command)
    assert done.returncode == 1 and helper.read_bytes() == original
    assert "failed: after the rewrite the command ends with 1, before with 0" in done.stderr
    suite.write_text(suite.read_text().replace("is None  #", "is None or"))
    done = gradfix(tmp_path, "apply", "helper.py", "--verify-command", command)
    assert done.returncode == 0 and helper.read_bytes() != original
    assert gradfix(tmp_path, "verify", "helper.py", "--").returncode == 2
    done = gradfix(tmp_path, "verify", ".", "--isolated", "--", "no-such-command")
    assert done.returncode == 0 or "no such file" in done.stderr


UNPARSABLE = """\
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    x = torch.ones(3, 2).to("cpu", async=True)
    net(x).sum().backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
"""


def test_a_file_that_does_not_parse_is_judged_against_itself_with_that_mended(tmp_path):
    path = write(tmp_path, UNPARSABLE)
    done = Rewriter([str(path)], settings(legacy=True), Runner(1)).make()
    right = done.after[str(path)]
    assert b"non_blocking=True" in right and prove(path, done).verdict is Verdict.GAINED
    for wrong in (right.replace(b"p -= 0.1", b"p += 0.1"), right.replace(b"p -= 0.1 * p.grad", b"pass")):
        assert prove(path, done, wrong).verdict in (Verdict.CHANGED, Verdict.FAILED)


@pytest.mark.parametrize("other, same", [("loss inf", True), ("loss -inf", False), ("loss 5.0", False), ("loss nan", False)])
def test_an_infinity_in_the_output_is_no_other_number(other, same):
    from gradfix.harness.align import same_output

    assert same_output("loss inf", other) is same
    assert same_output(other, "loss inf") is same

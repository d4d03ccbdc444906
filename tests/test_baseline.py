"""`check --baseline`: known findings are left out, whatever lines they move to; what is gone is said."""

import json
import os

import pytest
from shell_support import write

from gradfix.cli import run

MODEL = """\
import torch

w = torch.zeros(3, requires_grad=True)


def step(rate):
    h = w * 2
    h.sum().backward()
    print(h.grad)


def other(rate):
    h = w * 2
    h.sum().backward()
    print(h.grad)
"""


@pytest.fixture
def gradfix(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = run(["check", "--isolated", "-j1", "--output-format", "concise", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, [line.split(": ")[0] for line in out.splitlines() if ".py:" in line or ".ipynb:" in line], err

    return call


def entries(path="known.json"):
    with open(path, encoding="utf-8") as handle:
        return [(e["path"], e["code"], e["scope"], e["source"], e["count"]) for e in json.load(handle)["findings"]]


def test_known_findings_are_left_out_and_new_ones_are_not(gradfix, tmp_path):
    write(tmp_path / "a.py", MODEL)
    assert gradfix("--write-baseline", "known.json") == (0, [], "Wrote 2 findings to known.json.\n")
    assert entries() == [("a.py", "GF101", "other", "h.grad", 1), ("a.py", "GF101", "step", "h.grad", 1)]
    assert gradfix("--baseline", "known.json") == (0, [], "2 known findings left out.\n")
    # Lines move, a formatter was there, and one more of the same kind comes into a scope that has one.
    moved = "# é𝄞\n\n" + MODEL.replace("print(h.grad)", "print( h . grad )  # why?", 1)
    moved += "    k = w * 3\n    k.sum().backward()\n    print(k.grad)\n"
    write(tmp_path / "a.py", moved)
    assert gradfix("--baseline", "known.json") == (1, ["a.py:20:11"], "2 known findings left out.\n")


def test_equal_findings_are_counted(gradfix, tmp_path):
    line = "v = torch.tensor([1], requires_grad=True)\n"
    write(tmp_path / "a.py", "import torch\n\n" + line)
    gradfix("--write-baseline", "known.json")
    write(tmp_path / "a.py", "import torch\n\n" + line * 3)
    code, found, _ = gradfix("--baseline", "known.json")
    assert code == 1 and len(found) == 2
    gradfix("--write-baseline", "known.json")
    assert [e[-1] for e in entries()] == [3]
    write(tmp_path / "a.py", "import torch\n\n" + line)
    assert "requires_grad=True) (2 times)\n" in gradfix("--baseline", "known.json")[2]


def test_what_is_gone_is_said_until_it_is_taken_out(gradfix, tmp_path):
    write(tmp_path / "a.py", MODEL)
    write(tmp_path / "b.py", MODEL)
    gradfix("--write-baseline", "known.json")
    write(tmp_path / "a.py", MODEL.replace("    h = w * 2\n    h.sum", "    h = w * 2\n    h.retain_grad()\n    h.sum", 1))
    (tmp_path / "b.py").unlink()
    code, found, said = gradfix("--baseline", "known.json")
    assert (code, found) == (0, [])
    assert "No longer found, but still in known.json" in said
    assert said.splitlines()[-3:] == [
        f"  {x}: GF101 in {y}: h.grad" for x, y in (("a.py", "step"), ("b.py", "other"), ("b.py", "step"))
    ]
    assert gradfix("--baseline", "known.json", "--quiet")[2] == ""
    gradfix("--write-baseline", "known.json")
    assert entries() == [("a.py", "GF101", "other", "h.grad", 1)]
    assert gradfix("--baseline", "known.json")[2] == "1 known finding left out.\n"


def test_what_was_not_checked_is_not_gone(gradfix, tmp_path):
    write(tmp_path / "a.py", MODEL)
    write(tmp_path / "sub" / "b.py", MODEL)
    write(tmp_path / "c.py", MODEL)
    gradfix("--write-baseline", "known.json")
    write(tmp_path / "c.py", "x = (\n")
    for arguments in (["a.py"], ["a.py", "--select", "GF5"], ["sub"]):
        assert "No longer" not in gradfix("--baseline", "known.json", *arguments)[2]
    code, _, said = gradfix("--baseline", "known.json")
    assert code == 2 and "No longer" not in said
    write(tmp_path / "a.py", "")
    code, _, said = gradfix("--write-baseline", "known.json", "a.py")
    assert code == 0 and said.startswith("Wrote 0 findings to known.json and kept 4 of what was not checked.")
    assert [e[0] for e in entries()] == ["c.py", "c.py", "sub/b.py", "sub/b.py"]


def test_paths_start_at_the_file(gradfix, tmp_path, monkeypatch):
    write(tmp_path / "sub" / "a.py", MODEL)
    gradfix("--write-baseline", "known.json")
    assert entries()[0][0] == "sub/a.py"
    monkeypatch.chdir(tmp_path / "sub")
    assert gradfix("--baseline", "../known.json")[:2] == (0, [])


def test_cells_are_known_by_what_they_hold(gradfix, tmp_path):
    def notebook(*cells):
        made = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": c} for c in cells]
        write(tmp_path / "n.ipynb", json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))

    first = "import torch\nw = torch.zeros(3, requires_grad=True)\n"
    notebook(first, "h = w * 2\nh.sum().backward()\nh.grad")
    gradfix("--write-baseline", "known.json")
    assert entries() == [("n.ipynb", "GF101", "", "h.grad", 1)]
    notebook("1", first, "\n\nh = w * 2\nh.sum().backward()\nh.grad", "k = w * 3\nk.sum().backward()\nk.grad")
    assert gradfix("--baseline", "known.json")[1] == ["n.ipynb:cell 4:3:1"]


def test_half_a_pair_of_surrogates_can_be_written_and_read(gradfix, tmp_path):
    source = "import torch\nv = torch.tensor([1], requires_grad=True), '\\ud800'"
    cell = json.dumps({"cell_type": "code", "metadata": {}, "outputs": [], "source": source}).replace("\\\\ud800", "\\ud800")
    write(tmp_path / "n.ipynb", f'{{"cells": [{cell}], "metadata": {{}}, "nbformat": 4, "nbformat_minor": 5}}')
    first = gradfix("--write-baseline", "known.json")
    assert first[0] in (0, 2) and gradfix("--baseline", "known.json")[0] == first[0]


@pytest.mark.parametrize(
    "text, reason",
    [
        (None, "known.json: no such file"),
        ("[]", "known.json: is no baseline"),
        ("{", "known.json: is no baseline"),
        (b"\xff", "known.json: is no baseline"),
        ('{"version": 2, "findings": []}', "known.json: has version 2"),
    ],
)
def test_a_file_that_is_no_baseline(gradfix, tmp_path, text, reason):
    write(tmp_path / "a.py", MODEL)
    if text is not None:
        write(tmp_path / "known.json", text)
    code, found, said = gradfix("--baseline", "known.json")
    assert (code, found) == (2, []) and said.startswith(f"error: {reason}") and said.count("\n") == 1


def test_bad_usage(gradfix, tmp_path):
    write(tmp_path / "a.py", MODEL)
    assert gradfix("--baseline", "x", "--write-baseline", "y")[0] == 2
    code, _, said = gradfix("--write-baseline", "no/such/folder.json")
    assert code == 2 and said == "error: no/such/folder.json: no such file or directory\n"
    for path in (".", "/dev/zero"):
        for option in ("--baseline", "--write-baseline"):
            if os.path.exists(path):
                assert gradfix(option, path)[::2] == (2, f"error: {path}: is no file\n")


def test_other_formats_leave_known_findings_out_too(gradfix, tmp_path):
    write(tmp_path / "a.py", MODEL)
    gradfix("--write-baseline", "known.json")
    gradfix("--baseline", "known.json", "--output-format", "json", "-o", "out")
    assert json.loads((tmp_path / "out").read_text()) == []

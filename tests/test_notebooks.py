"""Notebooks under `check` and `apply`: one program, and not a byte changes but in repaired source lines."""

import difflib
import json

import nbformat
import pytest

from gradfix.cli import run

SETUP = "import torch\n'é𝄞 \"quoted\" \\\\ \\t'\nx = torch.randn(3, requires_grad=True)\n"
WORK = "h = x * 2\n# the sum\nh.sum().backward()\n"
SHOW = "print('𝄞', h.grad)"


def code(text: str, as_list: bool = True, **more) -> dict:
    source = text.splitlines(True) if as_list else text
    outputs = [{"output_type": "stream", "name": "stdout", "text": ["é\n", "x.grad = None  # \\u00e9\n"]}]
    return {"cell_type": "code", "execution_count": 3, "id": f"c{len(text)}", "metadata": {}, "outputs": outputs, "source": source} | more


def prose(text: str) -> dict:
    return {"cell_type": "markdown", "id": "m1", "metadata": {}, "source": text}


def book(*cells: dict, **layout) -> str:
    layout = {"indent": 1, "ensure_ascii": False} | layout
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {"z": 1, "a": [1.0, 1e3]}, "cells": list(cells)}, **layout)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def apply(folder, data: bytes, *more: str) -> bytes:
    path = folder / "n.ipynb"
    path.write_bytes(data)
    run(["apply", "--isolated", "-q", "-j1", *more, "n.ipynb"])
    return path.read_bytes()


def check(capsys, *more: str) -> tuple[list[tuple], str]:
    capsys.readouterr()
    run(["check", "--isolated", "-q", "-j1", "--output-format", "json", *more])
    out, err = capsys.readouterr()
    return [(f["code"], f["cell"], f["location"]["row"]) for f in json.loads(out)], err


def odd_spaces(text: str) -> str:
    """As a merge by hand leaves them."""
    return text.replace('"x = torch', ' \n\n  "x = torch').replace('"h.sum', '\t\n"h.sum')


LAYOUTS = {
    "as Jupyter writes it": lambda cells: book(*cells) + "\n",
    "no newline at the end": lambda cells: book(*cells),
    "no indentation": lambda cells: book(*cells, indent=None, separators=(",", ":")),
    "four spaces, sorted": lambda cells: book(*cells, indent=4, sort_keys=True) + "\n\n",
    "tabs": lambda cells: book(*cells, indent="\t"),
    "escapes": lambda cells: book(*cells, ensure_ascii=True) + "\n",
    "odd escapes": lambda cells: book(*cells, ensure_ascii=True).replace("/", "\\/").replace("\\u00e9", "\\u00E9"),
    "carriage returns": lambda cells: (book(*cells) + "\n").replace("\n", "\r\n"),
    "byte order mark": lambda cells: "\ufeff" + book(*cells) + "\n",
    "odd spaces": lambda cells: odd_spaces(book(*cells)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("as_list", [True, False], ids=["lists", "strings"])
def test_only_the_repaired_line_changes(here, layout, as_list):
    cells = [prose("# é\n"), *(code(text, as_list) for text in (SETUP, WORK, SHOW))]
    data = LAYOUTS[layout](cells).encode()
    done = apply(here, data)
    old, new = json.loads(data.decode("utf-8-sig")), json.loads(done.decode("utf-8-sig"))
    wanted = "h = x * 2\nh.retain_grad()\n# the sum\nh.sum().backward()\n"
    source = new["cells"][2].pop("source")
    assert (source if isinstance(source, str) else "".join(source)) == wanted
    assert isinstance(source, list) is as_list and (not as_list or source == wanted.splitlines(True))
    del old["cells"][2]["source"]
    assert json.dumps(new) == json.dumps(old)
    # What was put in is one piece of text, and nothing else moved.
    (piece,) = [op for op in difflib.SequenceMatcher(None, data, done, autojunk=False).get_opcodes() if op[0] != "equal"]
    assert piece[0] == "insert" and b"h.retain_grad()" in done[piece[3] - 1 : piece[4] + 20]
    nbformat.validate(nbformat.reads(done.decode("utf-8-sig"), 4))
    assert apply(here, done) == done


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_to_repair_is_nothing_written(here, layout):
    cells = [prose("# é\n"), code(SETUP), code(WORK, False), code("x.grad"), code(""), code("", False), code("%%bash\nls\n")]
    data = LAYOUTS[layout](cells).encode()
    assert apply(here, data) == data
    stamp = (here / "n.ipynb").stat().st_mtime_ns
    run(["apply", "--isolated", "-q", "n.ipynb"])
    assert (here / "n.ipynb").stat().st_mtime_ns == stamp


def test_a_line_at_the_end_of_a_cell(here):
    cells = [code(SETUP), code("h = x * 2"), code("h.sum().backward()"), code("for p in [x]:\n    p.grad.norm()\nh.grad")]
    done = apply(here, (book(*cells) + "\n").encode())
    assert json.loads(done)["cells"][2]["source"] == ["h.retain_grad()\n", "h.sum().backward()"]
    assert apply(here, done) == done


MAGICS = """\
%matplotlib inline
!pip install torch
files = !ls
now = %time 1 + 1
x?
%time h.sum().backward()
message = "epoch %d: %s" \\
    % (1, h.grad)
"""


def test_magics_are_let_be_and_a_percent_sign_is_an_operator(here, capsys):
    data = (book(code(SETUP + "h = x * 2\n"), code(MAGICS), code("%%bash\nfor p in h.grad; do\n"), code("h.grad\n")) + "\n").encode()
    (here / "n.ipynb").write_bytes(data)
    found, err = check(capsys, "n.ipynb")
    assert err == "" and [f for f in found if f[0] == "GF101"] == [("GF101", 2, 8)]
    done = json.loads(apply(here, data))
    old = json.loads(data)
    for magic in MAGICS.splitlines(True)[:5]:
        assert magic in done["cells"][1]["source"]
    assert done["cells"][2] == old["cells"][2] and done["cells"][3] == old["cells"][3]


def test_a_cell_that_does_not_parse_hides_no_other(here, capsys):
    (here / "n.ipynb").write_text(book(prose("x"), code(SETUP), code("h = (\n"), code(WORK), code(SHOW)))
    found, err = check(capsys, "n.ipynb")
    assert (None, 3, 1) in found and ("GF101", 5, 1) in found
    assert err.startswith("error: n.ipynb:cell 3:1:") and err.count("\n") == 1
    old = (here / "n.ipynb").read_bytes()
    assert b"h.retain_grad()" in apply(here, old)


def test_python_in_markdown(here, capsys):
    text = f"# Lesson\r\n\r\n```python\r\n{SETUP}{WORK}{SHOW}\n```\n\n```bash\nh.grad\n```\n~~~~py\nprint(h.grad)\n~~~~\n"
    (here / "a.md").write_bytes(text.encode())
    assert check(capsys, ".")[0] == []
    found, err = check(capsys, ".", "--include-markdown")
    assert [f[0] for f in found] == ["GF101"]
    run(["apply", "--isolated", "-q", "--include-markdown", "."])
    assert (here / "a.md").read_bytes().decode() == text.replace("# the sum", "h.retain_grad()\n# the sum")

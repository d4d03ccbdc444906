"""`gradfix suppress`: after it `check` finds nothing, nothing but comments has changed, and a second run changes nothing."""

import ast
import json
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from shell_support import write

from gradfix.cli import run

HEAD = "import torch\n\nw = torch.zeros(3, requires_grad=True)\nh = w * 2\nh.sum().backward()\n"
FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture
def gradfix(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(command, *arguments):
        code = run([command, "--isolated", "-j1", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def suppressed(gradfix, tmp_path):
    """What `suppress` makes of the text of a file, held to the promises above."""

    def make(text, name="a.py", encoding="utf-8"):
        path = write(tmp_path / name, text.encode(encoding))
        assert gradfix("check", "-q")[0] == 1
        code, out, said = gradfix("suppress")
        assert (code, out) == (0, "") and said.startswith("Suppressed ")
        data = path.read_bytes()
        assert gradfix("check", "-q", "--ignore", "GF001") == (0, "", "")
        assert gradfix("suppress") == (0, "", "No findings.\n")
        assert path.read_bytes() == data
        if name.endswith(".py"):
            assert ast.dump(ast.parse(data)) == ast.dump(ast.parse(text.encode(encoding)))
        return data.decode(encoding)

    return make


@pytest.mark.parametrize(
    "old, new",
    [
        ("print(h.grad)", "print(h.grad)  # gradfix: ignore[retain-grad]"),
        ("print(h.grad)   \t", "print(h.grad)  # gradfix: ignore[retain-grad]"),
        ("print(h.grad); x = 1", "print(h.grad); x = 1  # gradfix: ignore[retain-grad]"),
        ("if h.grad.sum() > 0:\n    pass", "if h.grad.sum() > 0:  # gradfix: ignore[retain-grad]\n    pass"),
        # In brackets a comment stands at the row of the finding.
        ("print(\n    1,\n    h.grad,\n    2,\n)", "print(\n    1,\n    h.grad,  # gradfix: ignore[retain-grad]\n    2,\n)"),
        # In a string and before a continuation none can stand.
        ("print(h.grad, '''\n#''')", "print(h.grad, '''\n#''')  # gradfix: ignore[retain-grad]"),
        ("print('''\n#''' + str(h.grad) + '''\n''',\n1)", "print('''\n#''' + str(h.grad) + '''\n''',  # gradfix: ignore[retain-grad]\n1)"),
        ("print(1 + \\\n  h.grad + \\\n  2)", "print(1 + \\\n  h.grad + \\\n  2)  # gradfix: ignore[retain-grad]"),
        ("print(\n1, (h.grad +\\\n'''\n''')\\\n)", "print(\n1, (h.grad +\\\n'''\n''')\\\n)  # gradfix: ignore[retain-grad]"),
        ("print(f'''\n{\nh.grad\n}\n''')", "print(f'''\n{\nh.grad\n}\n''')  # gradfix: ignore[retain-grad]"),
        # Comments that are there stay.
        ("print(h.grad)  # why", "print(h.grad)  # why  # gradfix: ignore[retain-grad]"),
        ("print(h.grad)  # noqa: E501", "print(h.grad)  # noqa: E501  # gradfix: ignore[retain-grad]"),
        ("print(h.grad)#type: ignore", "print(h.grad)#type: ignore  # gradfix: ignore[retain-grad]"),
        ("print(h.grad)  # gradfix: ignore[GF5]", "print(h.grad)  # gradfix: ignore[GF5, retain-grad]"),
        ("print(h.grad)  # gradfix: ignore[ GF5, ] x", "print(h.grad)  # gradfix: ignore[ GF5, retain-grad] x"),
        ("print(h.grad)  # gradfix:ignore[]# é", "print(h.grad)  # gradfix:ignore[retain-grad]# é"),
        ("print(\nh.grad,\n1  # gradfix: ignore[GF5]\n)", "print(\nh.grad,\n1  # gradfix: ignore[GF5, retain-grad]\n)"),
        ("print('# gradfix: ignore[GF5]', h.grad)  # gradfix: ignore[GF5]",
         "print('# gradfix: ignore[GF5]', h.grad)  # gradfix: ignore[GF5, retain-grad]"),
    ],
)  # fmt: skip
def test_where_the_comment_stands(suppressed, old, new):
    assert suppressed(HEAD + old + "\n") == HEAD + new + "\n"


def test_two_rules_in_one_statement_share_a_comment(suppressed):
    text = HEAD + "print(\n    h.grad,\n    torch.tensor([1], requires_grad=True),\n)\n"
    assert "    h.grad,  # gradfix: ignore[retain-grad, integer-requires-grad]\n" in suppressed(text)


def test_a_loop_of_many(suppressed):
    text = HEAD + "".join(f"v{i} = torch.tensor([{i}], requires_grad=True)\n" for i in range(30))
    assert suppressed(text).count("# gradfix: ignore[integer-requires-grad]") == 30


@pytest.mark.parametrize(
    "encoding, newline, head",
    [("utf-8-sig", "\r\n", ""), ("latin-1", "\n", "# coding: latin-1\n"), ("utf-8", "\r", ""), ("utf-8", "\r\n", "\f# 𝄞\n")],
)
def test_encoding_and_newlines_stay(suppressed, encoding, newline, head):
    text = (head + HEAD + "print('é', h.grad)").replace("\n", newline)
    assert suppressed(text, encoding=encoding) == text + "  # gradfix: ignore[retain-grad]"


def test_cells(suppressed, tmp_path):
    cells = [
        "%matplotlib inline\n" + HEAD,
        "%%bash\nls",
        "# é\n%time print(h.grad)\nk = w * 3\nk.sum().backward()\nk.grad;\n!ls",
    ]
    made = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": c.splitlines(True)}
        for c in cells
    ]
    text = json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}, indent=1)
    new = suppressed(text, "n.ipynb")
    book = nbformat.reads(new, 4)
    wanted = (
        cells[2]
        .replace("h.grad)", "h.grad)  # gradfix: ignore[retain-grad]")
        .replace("k.grad;", "k.grad;  # gradfix: ignore[retain-grad]")
    )
    assert [c.source for c in book.cells] == [*cells[:2], wanted]
    assert len([line for line in text.split("\n") if line not in new.split("\n")]) == 2


def test_markdown(gradfix, tmp_path):
    path = write(
        tmp_path / "a.md",
        "# é\n\n- x\n  ```python\n" + "".join(f"  {line}\n" for line in (HEAD + "h.grad").split("\n")) + "  ```\n",
    )
    before = path.read_text()
    assert gradfix("suppress", "--include-markdown")[0] == 0
    assert path.read_text() == before.replace("  h.grad\n", "  h.grad  # gradfix: ignore[retain-grad]\n")
    assert gradfix("check", "-q", "--include-markdown")[0] == 0


def test_all_fixtures(gradfix, tmp_path):
    shutil.copytree(FIXTURES, tmp_path / "fixtures")
    rules = ("--select", "ALL")
    assert gradfix("check", "-q", *rules)[0] in (1, 2)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.py")}
    code, _, said = gradfix("suppress", *rules)
    assert "no place" not in said and "left as it was" not in said
    code, out, _ = gradfix("check", "-q", "--output-format", "concise", *rules)
    assert [line for line in out.splitlines() if "GF001" not in line] == []
    changed = 0
    for path, data in before.items():
        changed += path.read_bytes() != data
        try:
            tree = ast.parse(data)
        except SyntaxError:
            continue
        assert ast.dump(ast.parse(path.read_bytes())) == ast.dump(tree)
    assert changed > 60
    assert gradfix("suppress", "--dry-run", *rules)[1] == ""


def test_dry_run_selection_and_stdin(gradfix, tmp_path, monkeypatch):
    path = write(tmp_path / "a.py", HEAD + "print(h.grad, torch.tensor([1], requires_grad=True))\n")
    before = path.read_bytes()
    code, out, said = gradfix("suppress", "--dry-run", "--select", "GF101")
    assert code == 1 and "+print(h.grad, torch.tensor([1], requires_grad=True))  # gradfix: ignore[retain-grad]\n" in out
    assert said == "Would suppress 1 finding in 1 file.\n" and path.read_bytes() == before
    import io
    import types

    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(before)))
    code, out, _ = gradfix("suppress", "-", "--ignore", "GF101")
    assert code == 0 and out.endswith("requires_grad=True))  # gradfix: ignore[integer-requires-grad]\n")
    assert path.read_bytes() == before


def test_nothing_to_do_and_bad_files(gradfix, tmp_path):
    write(tmp_path / "a.py", "x = 1\n")
    assert gradfix("suppress") == (0, "", "No findings.\n")
    write(tmp_path / "b.py", "x = (\n")
    code, _, said = gradfix("suppress")
    assert code == 2 and said.startswith("error: b.py:")
    assert gradfix("suppress", "-o", "x")[0] == 2

"""Legacy code before and after: forms that fixtures, with their comments on each line, can't show."""

import pytest
from fixture_support import apply

IMPORTS = "import torch\nfrom torch.autograd import Variable\n\n\n"
CASES = {
    "a block that only wrapped": (
        "def f(x):\n    with torch.no_grad():\n        x = Variable(x)\n    return x + 1\n",
        "def f(x):\n    return x + 1\n",
    ),
    "what comes before it in the block stays": (
        "def f(x):\n    with torch.no_grad():\n        print(x)\n        x = Variable(x)\n    return x\n",
        "def f(x):\n    with torch.no_grad():\n        print(x)\n    return x\n",
    ),
    "wrapped unless wrapped": (
        "def f(x):\n    if not isinstance(x, Variable):\n        x = Variable(x)\n    return x * 2\n",
        "def f(x):\n    return x * 2\n",
    ),
    "wrapped unless wrapped, of two": (
        "def f(g, x):\n    if isinstance(g, Variable) and not isinstance(x, Variable):\n        x = Variable(x, requires_grad=False)\n    return x\n",
        "def f(g, x):\n    return x\n",
    ),
    "wrapped or moved": (
        "def f(x, cuda):\n    if cuda:\n        x = Variable(x.cuda())\n    else:\n        x = Variable(x)\n    return x\n",
        "def f(x, cuda):\n    if cuda:\n        x = x.cuda()\n    return x\n",
    ),
    "a test that does something": (
        "def f(x, stack):\n    if stack.pop():\n        x = Variable(x)\n    return x\n",
        "def f(x, stack):\n    if stack.pop():\n        pass\n    return x\n",
    ),
    "at the top": (
        "x = torch.ones(2)\nx = Variable(x)\nprint(x)\n",
        "x = torch.ones(2)\nprint(x)\n",
    ),
    "nothing else in the function": (
        "def f(x):\n    x = Variable(x)\n\n\nf(torch.ones(1))\n",
        "def f(x):\n    pass\n\n\nf(torch.ones(1))\n",
    ),
    "a comment stays": (
        "def f(x):\n    with torch.no_grad():\n        x = Variable(x)  # to the card\n    return x\n",
        "def f(x):\n    with torch.no_grad():\n        pass  # to the card\n    return x\n",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name):
    before, after = CASES[name]
    got, applied = apply((IMPORTS + before).encode(), legacy=True)
    wanted = after if "torch." not in after else "import torch\n\n\n" + after
    assert got.decode().removeprefix("import torch\n").strip() == wanted.removeprefix("import torch\n").strip(), got.decode()
    assert not applied.result.problems


OTHERS = {
    "imports the name from it": ("from helpers import Variable\nx = Variable(1)\n", True),
    "imports everything from it": ("from helpers import *\nx = Variable(1)\n", True),
    "uses it as an attribute": ("import helpers\nx = helpers.Variable(1)\n", True),
    "has a Variable of its own": ("from torch.autograd import Variable\nfrom helpers import *\nimport helpers\nx = Variable(1)\n", False),
    "has no need of it": ("import helpers\n", False),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_import_that_another_file_takes_stays(name, tmp_path, monkeypatch):
    from fixture_support import settings

    from gradfix import engine
    from gradfix.runner import Runner

    other, kept = OTHERS[name]
    monkeypatch.chdir(tmp_path)
    files = {"helpers.py": IMPORTS + "x = Variable(torch.ones(2))\nprint(x)\n", "main.py": other}
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    done = engine.apply(sorted(files), settings(legacy=True), Runner(1))
    assert (b"import Variable" in done.after["helpers.py"]) == kept, done.after["helpers.py"].decode()


PYTHON_2 = {
    "both": ("x = x.cuda(async=True)\nprint 'a', x\n", "Python 2 code (a print statement) in row 2: convert it"),
    "only async": ("x = x.cuda(async=True)\nprint('a', x)\n", "`async` is a keyword since Python 3.7: `gradfix apply --select GF906`"),
    "async, and badly indented": ("x = 1\n    x = x.cuda(async=True)\n", None),
    "async, and broken": ("x = x.cuda(async=True)\nx = = 1\n", "`async` is a keyword since Python 3.7: `gradfix apply --select GF906`"),
}


@pytest.mark.parametrize("name", PYTHON_2)
def test_what_is_said_of_a_file_that_needs_more_than_async(name):
    import ast

    from gradfix.old_python import why

    text, start = PYTHON_2[name]
    with pytest.raises(SyntaxError) as raised:
        ast.parse(text)
    said = why(text, raised.value)
    assert said is start is None or said.startswith(start)

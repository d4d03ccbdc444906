"""Options of rules: tables of the config named after them."""

import contextlib
import io
import textwrap

import pytest
from typer.testing import CliRunner

from gradfix.cli import app
from gradfix.config import ConfigError

SCRIPT = """
    import torch

    torch.manual_seed(0)
    x = torch.randn(3, requires_grad=True)
    h = x * 2
    loss = (h**2).sum()
    loss.backward()
    for _ in range(2):
        print(h.grad, h.grad.norm())
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(folder, text, script=SCRIPT):
    (folder / "gradfix.toml").write_text(textwrap.dedent(text))
    (folder / "a.py").write_text(textwrap.dedent(script))


def repaired(folder, *options):
    CliRunner().invoke(app, ["apply", *options, "a.py"])
    return (folder / "a.py").read_text()


def printed(code):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "a.py", "exec"), {})
    return out.getvalue()


PREFER = """
    [retain-grad]
    prefer = "autograd-grad"
"""


def test_prefer_autograd_grad(folder):
    configured(folder, "")
    retained = repaired(folder)
    configured(folder, PREFER)
    assert repaired(folder) == textwrap.dedent(SCRIPT), "it is no safe fix"
    direct = repaired(folder, "--unsafe-fixes")
    assert "(h_grad,) = torch.autograd.grad(loss, h)" in direct and "backward" not in direct and ".grad." not in direct.replace("autograd.grad", "")
    assert printed(direct) == printed(retained)
    assert repaired(folder, "--unsafe-fixes") == direct


@pytest.mark.parametrize("more", ["print(x.grad)", "torch.optim.SGD([x], lr=0.1).step()", "(h * 3).sum().backward()"])
def test_another_use_of_the_backward_keeps_it(folder, more):
    configured(folder, PREFER, textwrap.dedent(SCRIPT) + more + "\n")
    assert "h.retain_grad()" in repaired(folder, "--unsafe-fixes")


def test_a_read_that_may_come_first_keeps_it(folder):
    script = """
        import torch

        x = torch.randn(3, requires_grad=True)
        for _ in range(2):
            h = x * 2
            loss = (h**2).sum()
            loss.backward()
        print(h.grad)
    """
    configured(folder, PREFER, script)
    assert "h.retain_grad()" in repaired(folder, "--unsafe-fixes")


@pytest.mark.parametrize(
    "config, message",
    [
        ('[retain-grad]\nprefer = "hooks"\n', "prefer = 'hooks' is none of 'retain-grad', 'autograd-grad'"),
        ("[retain-grad]\nprefer = 1\n", "prefer = 1 is none of"),
        ("[retain-grad]\nstyle = 1\n", "unknown option 'style' (options of this rule: prefer)"),
        ("[zero-grad-order]\nprefer = 1\n", "options of this rule: none"),
        ("[retian-grad]\nprefer = 1\n", "unknown key 'retian-grad'"),
        ("origin = 'x'\n", "unknown key 'origin'"),
    ],
)
def test_wrong_options_are_named(folder, config, message):
    configured(folder, config)
    with pytest.raises(ConfigError) as error:  # which `gradfix.__main__` turns into one line and exit code 2
        CliRunner().invoke(app, ["check", "a.py"], catch_exceptions=False)
    assert message in str(error.value) and "gradfix.toml" in str(error.value)


def test_in_pyproject(folder):
    configured(folder, "")
    (folder / "gradfix.toml").unlink()
    (folder / "pyproject.toml").write_text('[tool.gradfix.retain-grad]\nprefer = "autograd-grad"\n')
    assert "autograd.grad(loss, h)" in repaired(folder, "--unsafe-fixes")


def test_options_are_documented():
    from gradfix.codemod import load

    for rule in load():
        for name, values in rule.options.items():
            assert all(f'"{value}"' in rule.doc for value in values) and name in rule.doc

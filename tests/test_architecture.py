"""The floors of the package: who may import whom, and that the static commands never import torch."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Highest first.  A line holds siblings: `|` may not import each other, `:` may.
LAYERS = """\
    gradfix.cli
    gradfix.server | gradfix.migrate | gradfix.review
    gradfix.reports : gradfix.baseline : gradfix.harness
    gradfix.engine
    gradfix.preview : gradfix.fingerprints
    gradfix.runner : gradfix.suppressions
    codemods
    gradfix.codemod
    gradfix.rewriting
    gradfix.analysis
    gradfix.source : gradfix.cells : gradfix.notebook : gradfix.markdown : gradfix.old_python : gradfix.discovery : gradfix.config : gradfix.positions
    gradfix.findings
"""
CONTRACT = f"""\
[importlinter]
root_packages =
    gradfix
    codemods
include_external_packages = True

[importlinter:contract:floors]
name = An import points only downwards
type = layers
layers =
{LAYERS}
[importlinter:contract:analysis-knows-no-rule]
name = The analysis knows no rule and no LibCST
type = forbidden
source_modules = gradfix.analysis
forbidden_modules =
    codemods
    libcst

[importlinter:contract:no-torch]
name = Nothing that checks or rewrites imports torch
type = forbidden
source_modules =
    gradfix.analysis
    gradfix.rewriting
    gradfix.engine
    gradfix.runner
    gradfix.reports
    gradfix.server
    gradfix.migrate
    gradfix.review
    codemods
forbidden_modules = torch
"""


def test_floors(tmp_path):
    contract = tmp_path / ".importlinter"
    contract.write_text(CONTRACT)
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run([*command, "--config", str(contract), "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


WATCH = """\
import sys
from gradfix.cli import run
code = run(sys.argv[1:])
heavy = [m for m in ("torch", "numpy") if m in sys.modules]
print("imported:", *heavy, file=sys.stderr)
sys.exit(9 if heavy else 0)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--isolated", "--no-cache", "fixtures/showcase"],
        ["apply", "--isolated", "--no-cache", "--dry-run", "--unsafe-fixes", "fixtures/showcase"],
        ["rules"],
        ["rule", "GF101"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_static_commands_never_import_torch(arguments):
    done = subprocess.run([sys.executable, "-c", WATCH, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_plain_check_needs_no_libcst():
    code = "import sys; from gradfix.cli import run; run(['rules']); sys.exit('libcst' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 0

"""
What it does
------------
Reports functions that have another name today: `clip_grad_norm`, `init.xavier_uniform` and the other initialisers
without an underscore, `nn.functional.sigmoid`, `tanh` and `upsample`, `nn.NLLLoss2d`.

Why it is wrong
---------------
The old names warn or are gone.

Example
-------
```python
import torch
from torch.nn import init

net = torch.nn.Linear(3, 2)
init.xavier_uniform(net.weight)
net(torch.ones(1, 3)).sum().backward()
torch.nn.utils.clip_grad_norm(net.parameters(), 1.0)
```

Instead
-------
```python
import torch
from torch.nn import init

net = torch.nn.Linear(3, 2)
init.xavier_uniform_(net.weight)
net(torch.ones(1, 3)).sum().backward()
torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
```

Fix safety
----------
Safe: the new name is the same function. A function that was imported by its name is renamed in the import and at every
use; not where another file takes it from there, which is only flagged.

References
----------
- https://docs.pytorch.org/docs/stable/nn.init.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

import ast

from codemods import _legacy as legacy
from gradfix.codemod import Codemod
from gradfix.findings import DropUnusedImport, EnsureImport, Fix, RenameAttribute, RenameImport, ReplaceExpression, Severity, Verdict

codemod = Codemod(__name__, code="GF907", promises=(Verdict.PRESERVED, Verdict.GAINED), default_on=False, needs=("legacy",))


@codemod.check
def check(facts):
    by_name = {}
    for fact, _ in facts.bad("legacy-name"):
        if fact.info["by_name"]:
            node = facts.syntax(fact.path).find(fact.span, ast.Name)
            by_name.setdefault((fact.path, node.id), []).append(fact)
        else:
            yield report(fact, attribute_edits(facts, fact))
    for (path, name), group in by_name.items():
        edits = imported_edits(facts, path, name, group)
        for fact in group:
            yield report(fact, edits)


def moved(fact):
    """Is it in another module today (`torch.sigmoid`)?"""
    return fact.info["old"].rpartition(".")[0] != fact.info["new"].rpartition(".")[0]


def new_path(fact):
    torch = fact.info.get("torch")
    return (torch or "torch") + fact.info["new"].removeprefix("torch"), () if torch else (EnsureImport(fact.path, "torch"),)


def attribute_edits(facts, fact):
    if not moved(fact):
        return (RenameAttribute(fact.path, fact.span, fact.info["new"].rpartition(".")[2]),)
    code, imports = new_path(fact)
    node = facts.syntax(fact.path).find(fact.span, ast.Attribute)
    return (ReplaceExpression(fact.path, fact.span, code), *imports, *legacy.dropped_import(facts, fact.path, ast.unparse(node)))


def imported_edits(facts, path, name, group):
    fact = group[0]
    module, _, old = fact.info["old"].rpartition(".")
    new = fact.info["new"].rpartition(".")[2]
    if legacy.taken_elsewhere(facts, path, name):
        return None
    if moved(fact):
        code, imports = new_path(fact)
        return (*(ReplaceExpression(path, f.span, code) for f in group), *imports, DropUnusedImport(path, name))
    imported = RenameImport(path, module, old, new)
    if name != old:
        return (imported,)  # under an alias, which stays
    tree = facts.syntax(path).module.tree
    if any(isinstance(n, ast.Constant) and n.value == name for n in ast.walk(tree)):
        return None  # in `__all__`, or looked up by its name
    return (*(ReplaceExpression(path, f.span, new) for f in group), imported)


def report(fact, edits):
    old, new = fact.info["old"], fact.info["new"]
    return codemod.finding(
        path=fact.path, span=fact.span, message=f"`{old.removeprefix('torch.')}` is `{new}` today", severity=Severity.WARNING,
        fix=Fix(legacy.SAFE, f"Use `{new}`", edits) if edits else None, statement_rows=(fact.statement.row, fact.statement.end_row),
    )  # fmt: skip

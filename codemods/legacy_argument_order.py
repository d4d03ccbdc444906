"""
What it does
------------
Reports `t.add_(alpha, u)`, `addcmul_(value, a, b)`, `addcdiv_(value, a, b)` and the other calls with the number first.

Why it is wrong
---------------
These overloads are deprecated: they warn today, and `torch.compile` and type checkers refuse them.

Example
-------
```python
import torch

mean, square = torch.zeros(3), torch.zeros(3)
step = torch.ones(3)
mean.mul_(0.9).add_(0.1, step)
square.mul_(0.99).addcmul_(0.01, step, step)
```

Instead
-------
```python
import torch

mean, square = torch.zeros(3), torch.zeros(3)
step = torch.ones(3)
mean.mul_(0.9).add_(step, alpha=0.1)
square.mul_(0.99).addcmul_(step, step, value=0.01)
```

Fix safety
----------
Safe: the call is the same one. Unsafe where the number comes out of a call, which then runs after the other arguments.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.add.html
- https://docs.pytorch.org/docs/stable/generated/torch.addcmul.html
"""

import ast

from codemods import _legacy as legacy
from gradfix.codemod import Codemod
from gradfix.findings import Fix, NameArguments, Severity, Verdict

codemod = Codemod(__name__, code="GF905", promises=(Verdict.PRESERVED,), default_on=False, needs=("legacy",))


@codemod.check
def check(facts):
    for fact, all_facts in facts.bad("legacy-argument-order"):
        syntax = facts.syntax(fact.path)
        node = syntax.find(fact.span, ast.Call)
        if node is None or "other" in legacy.joined(all_facts, "tensor", "kinds"):
            continue
        if not fact.info["certain"] and not speaks_of_tensors(syntax, node, all_facts):
            continue
        names = tuple(tuple(n) for n in fact.info["names"])
        number = node.args[names[0][0]]
        if isinstance(number, ast.Attribute) and number.attr in ("data", "grad"):
            continue  # two tensors: some other `add`
        pure = not any(isinstance(n, ast.Call) and not ast.unparse(n.func).startswith(("math.", "float", "int", "len", "min", "max", "abs"))
                       for n in ast.walk(number))
        words = " and ".join(f"`{name}=`" for _, name in names)
        fix = Fix(legacy.SAFE if pure else legacy.UNSAFE, f"Pass it as {words}", (NameArguments(fact.path, fact.span, names),))
        yield codemod.finding(
            path=fact.path, span=fact.span, message=f"`{fact.info['method']}` with the number first is deprecated: it is {words} today",
            severity=Severity.WARNING, fix=fix, statement_rows=(fact.statement.row, fact.statement.end_row),
        )  # fmt: skip


def speaks_of_tensors(syntax, node, all_facts):
    """`add` and `sub` are methods of many things."""
    if legacy.is_tensor(all_facts, "owner"):
        return True
    if legacy.joined(all_facts, "owner", "kinds") - {None}:
        return False
    return any(isinstance(n, ast.Attribute) and n.attr in ("data", "grad") for part in (node.func.value, node.args[-1]) for n in ast.walk(part))

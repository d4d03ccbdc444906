"""
What it does
------------
Reports `Variable(…)` of PyTorch before 0.4, and tests for it (`type(x) == Variable`, `isinstance(x, Variable)`).

Why it is wrong
---------------
Tensors and variables are one since 0.4. `Variable(x)` of plain data does nothing. Of a tensor in the graph it detaches,
silently. `Variable(x, requires_grad=True)` makes a new leaf. No tensor's `type` is `Variable`.

Example
-------
```python
import torch
from torch.autograd import Variable

x = Variable(torch.randn(4, 3))
w = Variable(torch.randn(3), requires_grad=True)
(x @ w).sum().backward()
print(w.grad)
```

Instead
-------
```python
import torch

x = torch.randn(4, 3)
w = torch.randn(3).requires_grad_()
(x @ w).sum().backward()
print(w.grad)
```

Fix safety
----------
Safe where the value is plain data, and where the fix spells out what the wrapper does today (`.detach()`,
`.detach().requires_grad_()`). Unsafe where nothing is known of the value, where the wrapper cuts all that is trained
off (the fix connects it again), and for `type(x) == Variable`, which is never true today. A `Variable` that the project
defines itself is left alone. The import goes with its last use.

References
----------
- https://pytorch.org/blog/pytorch-0_4_0-migration-guide/
"""

import ast

from codemods import _legacy as legacy
from gradfix.codemod import Codemod
from gradfix.findings import Applicability, EnsureImport, Fix, Lift, ReplaceExpression, Severity, Verdict

codemod = Codemod(__name__, code="GF901", promises=(Verdict.PRESERVED, Verdict.GAINED), default_on=False, needs=("legacy",))


@codemod.check
def check(facts):
    calls = []
    for fact, all_facts, node in legacy.variable_calls(facts):
        if fact.info["form"] != "call":
            yield test_for_variable(facts, fact)
        elif not legacy.is_volatile(node):
            calls.append((fact, node, None if ambiguous(node) else legacy.unwrap(facts, fact, all_facts, node)))
    by_path = {}
    for fact, node, plan in calls:
        by_path.setdefault(fact.path, {}).setdefault(fact.statement, []).append((fact, node, plan))
    for path, by_statement in by_path.items():
        plans, edits = {}, {}
        for group in by_statement.values():
            planned = [(node, plan) for _, node, plan in group if plan is not None]
            plans.update(planned)
            edits.update(legacy.statement_edits(facts, path, planned) if planned else {})
        edits = legacy.without_empty_blocks(facts, path, plans, edits)
        for fact, node, plan in (entry for group in by_statement.values() for entry in group):
            yield report(facts, fact, node, plan, edits.get(node))


def ambiguous(node):
    """`Variable(x, True)`: once the flag `volatile`, today `requires_grad`."""
    return len(node.args) > 1 and not (isinstance(node.args[1], ast.Constant) and node.args[1].value is False
                                       or "grad" in ast.unparse(node.args[1]))


def report(facts, fact, node, plan, edits):
    syntax = facts.syntax(fact.path)
    if plan is not None:
        message = f"`Variable(…)` is a wrapper of PyTorch before 0.4: {plan.why}"
    elif ambiguous(node):
        message = "the second argument of `Variable` is `requires_grad` today: name it, or drop the wrapper"
    else:
        message = "`Variable(…)` is a wrapper of PyTorch before 0.4: tensors and variables are one"
    fix = None
    if edits is not None:
        edits = (*edits, *legacy.dropped_import(facts, fact.path, syntax.source(node.func)))
        fix = Fix(plan.applicability, "Drop `Variable`", edits)
    return codemod.finding(
        path=fact.path, span=fact.span, message=message, severity=Severity.WARNING, fix=fix,
        statement_rows=(fact.statement.row, fact.statement.end_row),
    )  # fmt: skip


def test_for_variable(facts, fact):
    syntax = facts.syntax(fact.path)
    torch = fact.info.get("torch")
    name = f"{torch or 'torch'}.Tensor"
    imports = () if torch else (EnsureImport(fact.path, "torch"),)
    drop = legacy.dropped_import(facts, fact.path, syntax.source(syntax.find(fact.info["callee"], ast.expr)))
    if fact.info["form"] == "type":
        test = f"not isinstance(__expr__, {name})" if fact.info["negative"] else f"isinstance(__expr__, {name})"
        edits = (Lift(fact.path, fact.span, fact.info["subject"], test), *imports, *drop)
        fix = Fix(Applicability.UNSAFE, f"Test for `{name}`", edits)
        message = "no tensor's `type` is `Variable` today, so this test never holds"
        severity = Severity.WARNING
    else:
        fix = Fix(Applicability.SAFE, f"Test for `{name}`", (ReplaceExpression(fact.path, fact.span, name), *imports, *drop))
        message = "every tensor is a `Variable` today"
        severity = Severity.INFO
        if asserts_plain(syntax, syntax.find(fact.span, ast.expr)):
            message += ", so no tensor passes"
            fix = None
    return codemod.finding(
        path=fact.path, span=fact.span, message=message, severity=severity, fix=fix,
        statement_rows=(fact.statement.row, fact.statement.end_row),
    )  # fmt: skip


def asserts_plain(syntax, node):
    """`assert not isinstance(x, Variable)`: a tensor was meant, and is refused."""
    around = [n for n in syntax.ancestors(node)]
    at = next((i for i, n in enumerate(around) if isinstance(n, ast.Assert)), None)
    return at is not None and any(isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not) for n in around[:at])

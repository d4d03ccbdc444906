"""
What it does
------------
Reports a leaf that is made and lost in one expression (`torch.randn(3, requires_grad=True) * 0.1`,
`nn.Parameter(t).to(device)`), or by a conversion right after it was told to require grad, where its gradient is
read or an optimizer is to move it.

Why it is wrong
---------------
The name holds the result of the operation, which is not a leaf: its `.grad` stays `None`, and an optimizer refuses it.

Example
-------
```python
import torch

w = torch.randn(3, requires_grad=True) * 0.1
w.sum().backward()
print(w.grad)
```

Instead
-------
```python
import torch

w = (torch.randn(3) * 0.1).requires_grad_()
w.sum().backward()
print(w.grad)
```

Fix safety
----------
Safe where one leaf is involved, grad mode is on and the result is floating point. Unsafe for `nn.Parameter`, whose
operands could themselves be differentiated.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.is_leaf.html
"""

import ast

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Fix, RemoveArgument, ReplaceExpression, Severity, Verdict

codemod = Codemod(__name__, code="GF102", promises=(Verdict.GAINED, Verdict.REPAIRED))


@codemod.check
def check(facts):
    for fact, _ in facts.bad("leaf-lost-at-creation"):
        info = fact.info
        yield codemod.finding(
            path=fact.path,
            span=fact.span,
            message="the leaf is lost here: the name holds the result of an operation on it, whose `.grad` stays `None`",
            severity=Severity.ERROR,
            fix=repair(facts, fact, info),
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )


def repair(facts, fact, info):
    path = fact.path
    if info["form"] == "factory":
        return Fix(
            Applicability.SAFE,
            "Let the result require grad",
            (RemoveArgument(path, info["leaf"], "requires_grad"), ReplaceExpression(path, info["outer"], "__expr__.requires_grad_()")),
        )
    if info["form"] == "method":
        return Fix(
            Applicability.SAFE,
            "Let the result require grad",
            (ReplaceExpression(path, info["leaf"], info["receiver"]), ReplaceExpression(path, info["outer"], "__expr__.requires_grad_()")),
        )
    if info["form"] == "parameter":
        syntax = facts.syntax(path)
        call = syntax.find(info["leaf"], ast.Call)
        outer = syntax.find(info["outer"], ast.expr)
        if call is None or outer is None or not call.args:
            return None
        inner = syntax.source(outer).replace(info["leaf_source"], f"({syntax.source(call.args[0])})"
                                             if not isinstance(call.args[0], (ast.Call, ast.Name, ast.Attribute)) else syntax.source(call.args[0]), 1)
        rest = "".join(", " + syntax.source(k) for k in [*call.args[1:], *call.keywords])
        return Fix(Applicability.UNSAFE, "Make the parameter last", (ReplaceExpression(path, info["outer"], f"{syntax.source(call.func)}({inner}{rest})"),))
    if info["form"] == "returned":
        return Fix(Applicability.UNSAFE, "Return a leaf", (ReplaceExpression(path, info["outer"], "(__expr__).detach().requires_grad_()"),))
    return Fix(Applicability.SAFE, "Let the converted tensor require grad", (ReplaceExpression(path, info["outer"], "__expr__.detach().requires_grad_()"),))

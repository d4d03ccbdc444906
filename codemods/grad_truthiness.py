"""
What it does
------------
Reports a gradient that is used as a condition (`if p.grad:`), and one that is compared with `None` by `==`.

Why it is wrong
---------------
A tensor of more than one element has no truth value, so `if p.grad:` raises; of one element it is the question whether the gradient
is zero. `== None` works, and is slower and less clear than `is None`.

Example
-------
```python
import torch

w = torch.ones(3, requires_grad=True)
w.sum().backward()
if w.grad:
    print(w.grad)
```

Instead
-------
```python
import torch

w = torch.ones(3, requires_grad=True)
w.sum().backward()
if w.grad is not None:
    print(w.grad)
```

Fix safety
----------
Safe for `== None` and `!= None`. Unsafe for a condition: of a tensor of one element it asks another question.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.grad.html
"""

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Fix, ReplaceExpression, Severity, Verdict

codemod = Codemod(__name__, code="GF304", promises=(Verdict.GAINED, Verdict.PRESERVED))


@codemod.check
def check(facts):
    for fact, _ in facts.bad("grad-truthiness"):
        read, form = fact.info["read"], fact.info["form"]
        if form == "truth":
            fix = Fix(Applicability.UNSAFE, "Compare with `None`", (ReplaceExpression(fact.path, fact.span, negated(facts, fact, read)),))
            message, severity = f"`{read}` is used as a condition, which raises for more than one element: write `{read} is not None`", Severity.WARNING
        else:
            fix = Fix(Applicability.SAFE, f"Write `{form} None`", (ReplaceExpression(fact.path, fact.span, f"{read} {form} None"),))
            message, severity = f"`{read}` is compared with `None` by value: write `{form} None`", Severity.INFO
        yield codemod.finding(path=fact.path, span=fact.span, message=message, severity=severity, fix=fix,
                              statement_rows=(fact.statement.row, fact.statement.end_row))


def negated(facts, fact, read):
    return f"({read} is not None)" if inside_expression(facts, fact) else f"{read} is not None"


def inside_expression(facts, fact):
    """Does the condition stand in a larger expression, where it needs parentheses?"""
    import ast

    syntax = facts.syntax(fact.path)
    node = syntax.find(fact.span, ast.Attribute)
    return isinstance(syntax.parents.get(node), (ast.UnaryOp, ast.Compare, ast.BinOp))

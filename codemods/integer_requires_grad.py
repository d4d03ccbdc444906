"""
What it does
------------
Reports an integer tensor that is told to require grad.

Why it is wrong
---------------
Only tensors of floating point and complex dtype can require gradients; the line raises a `RuntimeError`.

Example
-------
```python
import torch

x = torch.tensor([1, 2], requires_grad=True)
```

Instead
-------
```python
import torch

x = torch.tensor([1., 2.], requires_grad=True)
```

Fix safety
----------
Safe: the line never ran.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.requires_grad_.html
"""

import ast

from gradfix.codemod import Codemod
from gradfix.findings import AddArgument, Applicability, Fix, ReplaceExpression, Severity, Verdict

codemod = Codemod(__name__, code="GF202", promises=(Verdict.GAINED,))


@codemod.check
def check(facts):
    for fact, _ in facts.bad("integer-requires-grad"):
        yield codemod.finding(
            path=fact.path,
            span=fact.span,
            message="an integer tensor can't require grad: this line raises",
            severity=Severity.ERROR,
            fix=repair(facts, fact),
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )


def repair(facts, fact):
    syntax = facts.syntax(fact.path)
    call = syntax.find(fact.span, ast.Call)
    if call is None or fact.info["dtype_source"] not in ("literal", "dtype"):
        return None
    torch = fact.info.get("torch")
    if fact.info["dtype_source"] == "dtype":
        keyword = next(k for k in call.keywords if k.arg == "dtype")
        if torch is None:
            return None
        return Fix(Applicability.SAFE, "Use a floating dtype", (ReplaceExpression(fact.path, syntax.span(keyword.value), f"{torch}.float32"),))
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "tensor" and call.args:
        literals = [n for n in ast.walk(call.args[0]) if isinstance(n, ast.Constant) and type(n.value) is int]
        only_literals = all(isinstance(n, (ast.List, ast.Tuple, ast.Constant, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load)) for n in ast.walk(call.args[0]))
        if literals and only_literals:
            edits = tuple(ReplaceExpression(fact.path, syntax.span(n), syntax.source(n) + ".") for n in literals
                          if syntax.source(n).replace("_", "").isdigit())
            if len(edits) == len(literals):
                return Fix(Applicability.SAFE, "Write floating point numbers", edits)
    if name in ("tensor", "arange", "full") and torch is not None:
        return Fix(Applicability.SAFE, "Use a floating dtype", (AddArgument(fact.path, fact.span, f"dtype={torch}.float32"),))
    return None

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

x = torch.tensor([1.0, 2.0], requires_grad=True)
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
from gradfix.findings import (
    AddArgument,
    Applicability,
    Fix,
    RemoveArgument,
    RenameAttribute,
    ReplaceExpression,
    Severity,
    Verdict,
)

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
    """Make the tensor floating where it is made."""
    if (created := fact.info.get("created")) is None:
        return None
    path, span, _ = created
    syntax = facts.syntax(path)
    call = syntax.find(span, ast.Call)
    torch = facts.project.module(path).torch_name()
    if call is None:
        return None
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    dtype = next((k for k in call.keywords if k.arg == "dtype"), None)
    if dtype is not None:
        return torch and Fix(Applicability.SAFE, "Use a floating dtype", (ReplaceExpression(path, syntax.span(dtype.value), f"{torch}.float32"),))
    if name in ("long", "int", "short", "bool", "char", "byte"):
        return Fix(Applicability.SAFE, "Convert it to floating point", (ReplaceExpression(path, span, "__expr__.float()"),))
    if name in ("LongTensor", "IntTensor") and isinstance(call.func, ast.Attribute):
        return Fix(Applicability.SAFE, "Make a floating tensor", (RenameAttribute(path, syntax.span(call.func), "FloatTensor"),))
    if name in ("tensor", "full") and call.args and (edits := floating_literals(syntax, path, call.args[-1 if name == "full" else 0])):
        return Fix(Applicability.SAFE, "Write floating point numbers", edits)
    if name in ("tensor", "arange", "full") and torch:
        return Fix(Applicability.SAFE, "Use a floating dtype", (AddArgument(path, span, f"dtype={torch}.float32"),))
    if name in ("randint", "randperm") and span == fact.span:
        return Fix(Applicability.SAFE, "Convert it first", (RemoveArgument(path, span, "requires_grad"),
                                                           ReplaceExpression(path, span, "__expr__.float().requires_grad_()")))
    return None


def floating_literals(syntax, path, node):
    """Edits that turn the integers of a literal into floats; none where the argument is no literal."""
    if not all(isinstance(n, (ast.List, ast.Tuple, ast.Constant, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load)) for n in ast.walk(node)):
        return ()
    numbers = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is int]
    if not all(syntax.source(n).replace("_", "").isdigit() for n in numbers):
        return ()
    return tuple(ReplaceExpression(path, syntax.span(n), syntax.source(n) + ".0") for n in numbers)

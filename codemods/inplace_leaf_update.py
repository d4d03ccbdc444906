"""
What it does
------------
Reports an in-place change of a leaf that requires grad (or of a view of it) while grad mode is on.

Why it is wrong
---------------
Autograd can't record it and raises: "a leaf Variable that requires grad is being used in an in-place operation".

Example
-------
```python
import torch

w = torch.randn(3, requires_grad=True)
w.pow(2).sum().backward()
w -= 0.1 * w.grad
```

Instead
-------
```python
import torch

w = torch.randn(3, requires_grad=True)
w.pow(2).sum().backward()
with torch.no_grad():
    w -= 0.1 * w.grad
```

Fix safety
----------
Safe where the tensor is certainly a leaf and the right side reaches no trained tensor except by `.grad`. Unsafe else.

References
----------
- https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
"""

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, EnsureImport, Fix, Severity, Verdict, Wrap

codemod = Codemod(__name__, code="GF502", promises=(Verdict.GAINED,))


@codemod.check
def check(facts):
    for fact, _ in facts.bad("inplace-leaf-update"):
        info = fact.info
        safe = info["certain"] and not info["reaches"]
        torch = info.get("torch") or "torch"
        edits = [Wrap(fact.path, fact.statement, fact.statement, f"with {torch}.no_grad():")]
        if info.get("torch") is None:
            edits.append(EnsureImport(fact.path, "torch"))
        yield codemod.finding(
            path=fact.path,
            span=fact.span,
            message="a leaf that requires grad is changed in place while grad mode is on: this line raises",
            severity=Severity.ERROR,
            fix=Fix(Applicability.SAFE if safe else Applicability.UNSAFE, "Update under `torch.no_grad()`", tuple(edits)),
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )

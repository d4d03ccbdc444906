"""
What it does
------------
Reports `x.require_grad = True` and other misspellings of `requires_grad` on tensors and parameters.

Why it is wrong
---------------
Python creates a new attribute without a word; the tensor's `requires_grad` stays what it was.

Example
-------
```python
import torch

x = torch.randn(3)
x.require_grad = True
```

Instead
-------
```python
import torch

x = torch.randn(3)
x.requires_grad = True
```

Fix safety
----------
Unsafe: what the line was meant to do now happens, so gradients and updates change.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.requires_grad.html
"""

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Fix, RenameAttribute, RenameKeyword, Severity, Verdict

codemod = Codemod(__name__, code="GF203", promises=(Verdict.GAINED, Verdict.REPAIRED))


@codemod.check
def check(facts):
    for fact, _ in facts.bad("requires-grad-typo"):
        word = fact.info.get("attribute") or fact.info["keyword"]
        edit = (
            RenameAttribute(fact.path, fact.span, "requires_grad")
            if "attribute" in fact.info
            else RenameKeyword(fact.path, fact.span, word, "requires_grad")
        )
        yield codemod.finding(
            path=fact.path,
            span=fact.span,
            message=f"`{word}` is {'a method' if word == 'requires_grad_' else 'no attribute'} of a tensor: `requires_grad` is meant",
            severity=Severity.ERROR,
            fix=Fix(Applicability.UNSAFE, "Correct the name", (edit,)),
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )

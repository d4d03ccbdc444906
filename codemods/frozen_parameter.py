"""
What it does
------------
Reports the line that freezes a tensor whose gradient is read afterwards, that all of a loss depends on, or that an optimizer trained
before and still steps.

Why it is wrong
---------------
A frozen tensor gets no gradient: `.grad` stays `None`, and a loss of frozen tensors only has no `grad_fn`, so backward raises.

Example
-------
```python
import torch

model = torch.nn.Linear(3, 1)
model.weight.requires_grad = False
model(torch.randn(2, 3)).sum().backward()
print(model.weight.grad.norm())
```

Instead
-------
```python
import torch

model = torch.nn.Linear(3, 1)
model(torch.randn(2, 3)).sum().backward()
print(model.weight.grad.norm())
```

Fix safety
----------
No fix: what is to be frozen is for a person to say.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.requires_grad_.html
"""

from gradfix.codemod import Codemod
from gradfix.findings import Related, Severity

codemod = Codemod(__name__, code="GF204", promises=(), fixable=False)
HARM = {"read": "`{0}.grad` is `None`: the tensor is frozen here", "step": "what is frozen here is never trained again, though an optimizer holds and steps it",
        "loss": "all that this loss was computed from is frozen, at the latest here: backward raises"}
PLACE = {"read": "the gradient is read here", "step": "the optimizer is stepped here", "loss": "backward runs on this loss"}


@codemod.check
def check(facts):
    for fact, _ in facts.bad("frozen-parameter"):
        use, (path, span) = fact.info["use"], fact.info["at"]
        yield codemod.finding(
            path=fact.path, span=fact.span, message=HARM[use].format(fact.info["holder"]),
            severity=Severity.WARNING if use == "step" else Severity.ERROR, related=[Related(path, span, PLACE[use])],
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )

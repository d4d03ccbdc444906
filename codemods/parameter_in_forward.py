"""
What it does
------------
Reports a layer or an `nn.Parameter` that a `forward` makes anew: a layer that is made and called there, or a parameter made of
computed values on the only way from what is trained to the loss.

Why it is wrong
---------------
Each call makes new random weights, which no optimizer knows: nothing of them is ever trained. A parameter made of a computed
tensor is a new leaf, and backward ends there.

Example
-------
```python
import torch


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 4)

    def forward(self, x):
        return torch.nn.Linear(4, 1)(self.inner(x))


Head()(torch.randn(2, 3)).sum().backward()
```

Instead
-------
```python
import torch


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 4)
        self.outer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.outer(self.inner(x))


Head()(torch.randn(2, 3)).sum().backward()
```

Fix safety
----------
No fix: the layer gets another place, a name, and entries in every saved `state_dict`.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from gradfix.codemod import Codemod
from gradfix.findings import Severity

codemod = Codemod(__name__, code="GF103", promises=(), fixable=False)


@codemod.check
def check(facts):
    for fact, _ in facts.bad("parameter-in-forward"):
        if fact.info.get("cut"):
            yield codemod.cut_finding(fact, "a new leaf is made of computed values here", "use the tensor itself")
            continue
        layer = fact.info["layer"]
        yield codemod.finding(
            path=fact.path, span=fact.span, severity=Severity.WARNING,
            message=f"`{layer}` makes new parameters in every `forward`, which no optimizer trains: make the layer in `__init__`",
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )

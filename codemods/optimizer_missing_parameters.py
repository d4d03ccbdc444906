"""
What it does
------------
Reports an optimizer that was given several layers of a model, while a layer that the loss trains as well was given to none.

Why it is wrong
---------------
The layer gets gradients in every backward and never moves.

Example
-------
```python
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 4)
        self.neck = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.neck(self.body(x)))


net = Net()
optimizer = torch.optim.SGD([{"params": net.body.parameters(), "lr": 0.01}, {"params": net.neck.parameters()}], lr=0.1)
net(torch.randn(2, 3)).sum().backward()
optimizer.step()
```

Instead
-------
```python
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 4)
        self.neck = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.neck(self.body(x)))


net = Net()
optimizer = torch.optim.SGD([{"params": net.body.parameters(), "lr": 0.01}, {"params": net.neck.parameters()}, {"params": net.head.parameters()}], lr=0.1)
net(torch.randn(2, 3)).sum().backward()
optimizer.step()
```

Fix safety
----------
No fix: a layer can be left out on purpose; freeze it then (`requires_grad_(False)`).

References
----------
- https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options
"""

from gradfix.codemod import Codemod
from gradfix.findings import Severity

codemod = Codemod(__name__, code="GF504", promises=(), fixable=False)


@codemod.check
def check(facts):
    for fact, _ in facts.bad("optimizer-missing-parameters"):
        names = ", ".join(f"`{n}`" if n != "…" else "more" for n in fact.info["layers"] or fact.info["lost"])
        yield codemod.finding(
            path=fact.path, span=fact.span, severity=Severity.WARNING,
            message=f"{names} is trained by the loss and held by no optimizer, although its siblings are: add it, or freeze it",
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )

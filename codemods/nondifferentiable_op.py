"""
What it does
------------
Reports an operation without a useful derivative (argmax, comparison, integer cast, round, sign, floor, `//`) where a term of the
loss depends on what is trained through it only, or where it is the only way from a trained tensor to any loss.

Why it is wrong
---------------
Three things can happen, and they call for different repairs. The result of argmax, of a comparison or of an integer cast has no
history: the gradient is `None`, autograd never got there. Round, sign and floor are recorded, and their derivative is zero
everywhere: autograd got there, and the gradient is zero. `//` and heaviside have no derivative at all: backward raises.

Example
-------
```python
import torch

net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
target = torch.randn(4)
picked = net(torch.randn(4, 3)).argmax(dim=1).float()
loss = (picked - target).abs().mean()
loss.backward()
optimizer.step()
```

Instead
-------
```python
import torch

net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
target = torch.randint(0, 2, (4,))
loss = torch.nn.functional.cross_entropy(net(torch.randn(4, 3)), target)
loss.backward()
optimizer.step()
```

Fix safety
----------
No fix: a differentiable stand-in (softmax, sigmoid, a straight-through estimator) is a choice of the model.

References
----------
- https://docs.pytorch.org/docs/stable/notes/autograd.html#gradients-for-non-differentiable-functions
"""

from gradfix.analysis import operations
from gradfix.codemod import Codemod
from gradfix.findings import Severity

codemod = Codemod(__name__, code="GF406", promises=(), fixable=False)
INSTEAD = {"argmax": "take the loss of the scores, or a softmax over them", "argmin": "take the loss of the scores, or a softmax over them",
           "round": "add the difference detached: `x + (x.round() - x).detach()`", "floor_divide": "use `/`",
           "normal": "write `mean + std * torch.randn_like(std)`",
           "bernoulli": "add the difference detached (straight-through), or let the loss hold the `log_prob` of what was drawn",
           "sample": "draw with `rsample()`, or let the loss hold the `log_prob` of what was drawn"}


@codemod.check
def check(facts):
    for fact, _ in facts.bad("nondifferentiable-op"):
        op = fact.info["op"]
        instead = INSTEAD.get(op, "use a smooth stand-in such as a sigmoid, or a straight-through estimator")
        if fact.info.get("raises"):
            yield codemod.cut_finding(fact, f"`{op}` has no derivative: backward raises here", instead, severity=Severity.ERROR)
            continue
        table = operations.lookup(op)
        zero = table is not None and table.zero_gradient
        cause = f"the derivative of `{op}` is zero everywhere, so the gradient is zero (not `None`)" if zero else (
            "the result has no history, so the gradient is `None`")
        yield codemod.cut_finding(fact, cause, instead)

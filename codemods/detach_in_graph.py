"""
What it does
------------
Reports `.detach()` and `.data` where a term of the loss depends on what is trained through them only, or where a trained
tensor, or one whose gradient is read, is reached by no loss but through them.

Why it is wrong
---------------
A detached tensor is a constant for autograd: the term has a value and no effect, whatever its coefficient. Targets, baselines,
masks, frozen networks and straight-through estimators are detached on purpose and are not reported.

Example
-------
```python
import torch

student = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
out = student(torch.randn(4, 3))
penalty = out.pow(2).mean().detach()
loss = out.mean() + 0.1 * penalty
loss.backward()
optimizer.step()
```

Instead
-------
```python
import torch

student = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
out = student(torch.randn(4, 3))
penalty = out.pow(2).mean()
loss = out.mean() + 0.1 * penalty
loss.backward()
optimizer.step()
```

Fix safety
----------
No fix: whether the term is to train is for a person to say.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
"""

from gradfix.codemod import Codemod

codemod = Codemod(__name__, code="GF404", promises=(), fixable=False)


@codemod.check
def check(facts):
    for fact, _ in facts.bad("detach-in-graph"):
        word = {"data": "`.data`", "state_dict": "`state_dict()`"}.get(fact.info["cut"], "`.detach()`")
        instead = "take the parameters themselves" if fact.info["cut"] == "state_dict" else f"drop {word}"
        yield codemod.cut_finding(fact, f"{word} takes the value out of the graph here", instead)

"""
What it does
------------
Reports a computation with grad mode off whose result a loss needs: a term of it, or the only way from a trained tensor to it.

Why it is wrong
---------------
With grad mode off nothing is recorded, so backward never gets behind it: the term has no effect, or backward raises that
the loss does not require grad.

Example
-------
```python
import torch

policy = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
out = policy(torch.randn(4, 3))
with torch.no_grad():
    entropy = out.softmax(1).log().mean()
loss = out.pow(2).mean() - 0.1 * entropy
loss.backward()
optimizer.step()
```

Instead
-------
```python
import torch

policy = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
out = policy(torch.randn(4, 3))
entropy = out.softmax(1).log().mean()
loss = out.pow(2).mean() - 0.1 * entropy
loss.backward()
optimizer.step()
```

Fix safety
----------
No fix: what belongs under `no_grad` is for a person to say.

References
----------
- https://docs.pytorch.org/docs/stable/notes/autograd.html#grad-modes
"""

from gradfix.codemod import Codemod

codemod = Codemod(__name__, code="GF405", promises=(), fixable=False)


@codemod.check
def check(facts):
    for fact, _ in facts.bad("no-grad-forward"):
        yield codemod.cut_finding(fact, "this is computed with grad mode off", "compute what the loss needs with grad mode on")

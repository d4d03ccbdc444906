"""
What it does
------------
Reports a re-entrant `torch.utils.checkpoint.checkpoint` (also where `use_reentrant` is not given) none of whose inputs requires
grad, around a block that is to be trained.

Why it is wrong
---------------
The re-entrant form runs the block with grad mode off and records it only through its inputs: where none of them requires grad,
the result does not either, and the block gets no gradient.

Example
-------
```python
import torch
from torch.utils.checkpoint import checkpoint

block = torch.nn.Linear(3, 3)
head = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)
hidden = checkpoint(block, torch.randn(2, 3), use_reentrant=True)
head(hidden).sum().backward()
optimizer.step()
```

Instead
-------
```python
import torch
from torch.utils.checkpoint import checkpoint

block = torch.nn.Linear(3, 3)
head = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)
hidden = checkpoint(block, torch.randn(2, 3), use_reentrant=False)
head(hidden).sum().backward()
optimizer.step()
```

Fix safety
----------
No fix: `use_reentrant=False` changes what hooks and nested checkpoints see.

References
----------
- https://docs.pytorch.org/docs/stable/checkpoint.html
"""

from gradfix.codemod import Codemod

codemod = Codemod(__name__, code="GF407", promises=(), fixable=False)


@codemod.check
def check(facts):
    for fact, _ in facts.bad("checkpoint-no-grad-input"):
        yield codemod.cut_finding(fact, "no input of this re-entrant checkpoint requires grad", "pass `use_reentrant=False`, or make an input require grad")

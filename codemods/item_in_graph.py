"""
What it does
------------
Reports `.item()`, `.tolist()`, `float()`, `int()` and `math.*` of a tensor that trains, where the number reaches a loss
as a term of its own or is the only way from a trained tensor to any loss.

Why it is wrong
---------------
A Python number has no history: the term changes the loss's value and no gradient.

Example
-------
```python
import torch

model = torch.nn.Linear(3, 1)
out = model(torch.randn(2, 3))
loss = out.mean() + out.pow(2).mean().item()
loss.backward()
```

Instead
-------
```python
import torch

model = torch.nn.Linear(3, 1)
out = model(torch.randn(2, 3))
loss = out.mean() + out.pow(2).mean()
loss.backward()
```

Fix safety
----------
Unsafe, and offered only where it is a matter of notation: the tensor takes the number's place in sums and products, and
`math.exp` becomes `torch.exp`. Whether the term is to train is for a person, or the harness, to say.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.item.html
"""

from codemods._connect import connected
from gradfix.codemod import Codemod
from gradfix.findings import Verdict

codemod = Codemod(__name__, code="GF401", promises=(Verdict.REPAIRED, Verdict.GAINED))
WRITE = {"item": "drop `.item()`", "tolist": "stay with the tensor", "float": "drop `float()`", "int": "stay with the tensor",
         "math": "use torch's function of the same name"}


@codemod.check
def check(facts):
    for fact, contexts in facts.bad("item-in-graph"):
        kind, op = fact.info["cut"], fact.info["op"]
        instead = f"write `torch.{op}`" if kind == "math" and op else WRITE.get(kind, "stay with the tensor")
        yield codemod.cut_finding(fact, "the value leaves the graph here as a plain number", instead, connected(facts, fact, contexts))

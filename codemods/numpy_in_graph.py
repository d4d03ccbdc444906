"""
What it does
------------
Reports `.numpy()` and `np.*` of a tensor that trains, where the array reaches a loss as a term of its own or is the only way
from a trained tensor to any loss.

Why it is wrong
---------------
NumPy knows no gradients: what is computed from the array is a constant for autograd, also after `torch.from_numpy`.

Example
-------
```python
import numpy as np
import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
out = model(torch.randn(2, 3))
loss = out.mean() + torch.tensor(np.abs(out.detach().numpy()).mean())
loss.backward()
optimizer.step()
```

Instead
-------
```python
import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
out = model(torch.randn(2, 3))
loss = out.mean() + out.abs().mean()
loss.backward()
optimizer.step()
```

Fix safety
----------
Unsafe, and offered only where torch has a function for each of NumPy's in the expression (`np.clip` is `torch.clamp`, `np.var`
is `torch.var` with `correction=0`). Whether the term is to train is for a person, or the harness, to say.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.numpy.html
"""

from codemods._connect import connected
from gradfix.codemod import Codemod
from gradfix.findings import Verdict

codemod = Codemod(__name__, code="GF402", promises=(Verdict.REPAIRED, Verdict.GAINED))
# torch's name for a function of NumPy, where it is another one.
TORCH = {"clip": "clamp", "power": "pow", "absolute": "abs", "concatenate": "cat", "arctan2": "atan2", "arcsin": "asin", "arccos": "acos",
         "arctan": "atan", "log1p": "log1p", "maximum": "maximum", "minimum": "minimum", "array": "stack", "mean": "mean", "sqrt": "sqrt",
         "exp": "exp", "log": "log", "sum": "sum", "abs": "abs", "where": "where", "dot": "dot", "square": "square", "tanh": "tanh",
         "sin": "sin", "cos": "cos", "var": "var", "std": "std", "prod": "prod", "cumsum": "cumsum", "matmul": "matmul", "norm": "linalg.norm"}


@codemod.check
def check(facts):
    for fact, contexts in facts.bad("numpy-in-graph"):
        name = TORCH.get(fact.info["op"])
        instead = f"write `torch.{name}`" if name else "stay with tensors and torch's functions"
        yield codemod.cut_finding(fact, "the value leaves the graph here as a NumPy array", instead, connected(facts, fact, contexts))

"""
What it does
------------
Reports an optimizer that was built before a parameter was made, replaced, copied or unfrozen which the program then trains.

Why it is wrong
---------------
An optimizer moves the tensors that it was given. A layer that is replaced or added later gets gradients and never moves, and the
optimizer goes on stepping what was there before.

Example
-------
```python
import torch

model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.append(torch.nn.Linear(2, 1))
model(torch.randn(2, 3)).sum().backward()
optimizer.step()
```

Instead
-------
```python
import torch

model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
model.append(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 3)).sum().backward()
optimizer.step()
```

Fix safety
----------
No fix: build the optimizer later, or call `add_param_group`.

References
----------
- https://docs.pytorch.org/docs/stable/optim.html#constructing-it
"""

from gradfix.codemod import Codemod
from gradfix.findings import Related, Severity

codemod = Codemod(__name__, code="GF503", promises=(), fixable=False)
WHY = {"new": "made after the optimizer was built", "thawed": "frozen and left out when the optimizer was built, and trained later",
       "copied": "a copy, while the optimizer still holds the original"}


@codemod.check
def check(facts):
    for fact, _ in facts.bad("stale-optimizer"):
        lost = ", ".join(f"`{n}`" if n != "…" else "more" for n in fact.info["lost"]) or "parameters that backward reaches"
        verb = "is" if len(fact.info["lost"]) == 1 else "are"
        why = WHY[fact.info["why"]]
        made = fact.info["made"]
        yield codemod.finding(
            path=fact.path, span=fact.span, severity=Severity.WARNING,
            message=f"{lost} {verb} {why}: no optimizer moves {'it' if verb == 'is' else 'them'}; build the optimizer afterwards or call `add_param_group`",
            related=[Related(*made, "made here")] if made and fact.info["why"] != "thawed" else [],
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )

"""
What it does
------------
Reports an assignment to `requires_grad` of a module.

Why it is wrong
---------------
Modules have no such attribute: the assignment makes one, and every parameter stays as it was.

Example
-------
```python
import torch

model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
model[0].requires_grad = False
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 3)).sum().backward()
optimizer.step()
```

Instead
-------
```python
import torch

model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
model[0].requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 3)).sum().backward()
optimizer.step()
```

Fix safety
----------
Unsafe: it changes what is trained, which is the point.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.requires_grad_
"""

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Fix, ReplaceStatement, Severity, Verdict

codemod = Codemod(__name__, code="GF206", promises=(Verdict.REPAIRED, Verdict.GAINED, Verdict.PRESERVED))


@codemod.check
def check(facts):
    for fact, _ in facts.bad("requires-grad-on-module"):
        target, value = fact.info["target"], fact.info["value"]
        fix = Fix(Applicability.UNSAFE, "Call `requires_grad_`", (ReplaceStatement(fact.path, fact.statement, f"{target}.requires_grad_({value})"),))
        yield codemod.finding(
            path=fact.path, span=fact.span, severity=Severity.ERROR, fix=fix if value is not None else None,
            message=f"`{target}` is a module: this only sets an attribute, and its parameters stay as they are; call `{target}.requires_grad_({value or '…'})`",
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )

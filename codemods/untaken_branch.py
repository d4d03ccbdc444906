"""
What it does
------------
Reports an unguarded use of the gradient of a leaf that only some branch, or a method that nobody called, would have used; and
`torch.autograd.grad` for one.

Why it is wrong
---------------
Backward fills `.grad` of what was used in this forward. The other branch's parameters keep `None`, and the use raises;
`torch.autograd.grad` raises without `allow_unused=True`.

Example
-------
```python
import torch


class Towers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.image = torch.nn.Linear(3, 2)
        self.text = torch.nn.Linear(5, 2)

    def embed_image(self, x):
        return self.image(x)

    def embed_text(self, x):
        return self.text(x)


towers = Towers()
towers.embed_image(torch.randn(2, 3)).sum().backward()
for p in towers.parameters():
    print(p.grad.norm())
```

Instead
-------
```python
import torch


class Towers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.image = torch.nn.Linear(3, 2)
        self.text = torch.nn.Linear(5, 2)

    def embed_image(self, x):
        return self.image(x)

    def embed_text(self, x):
        return self.text(x)


towers = Towers()
towers.embed_image(torch.randn(2, 3)).sum().backward()
for p in towers.parameters():
    if p.grad is not None:
        print(p.grad.norm())
```

Fix safety
----------
As for GF301: safe for a statement whose results nothing later needs. `allow_unused=True` is unsafe: what follows must take `None`.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html
"""

from codemods.none_guarded_grad import repair
from gradfix.codemod import Codemod
from gradfix.findings import AddArgument, Applicability, Fix, Related, Severity, Verdict

codemod = Codemod(__name__, code="GF303", promises=(Verdict.GAINED,))


@codemod.check
def check(facts):
    seen = set()
    for fact, _ in facts.bad("untaken-branch"):
        if (fact.path, fact.statement) in seen:
            continue
        seen.add((fact.path, fact.statement))
        path, span = fact.info["branch"]
        name = (fact.info["names"] or ["a parameter"])[0]
        holder = fact.info["holder"]
        what = f"`{holder}.grad` is `None` for `{name}`" if holder else f"`{name}` is not in this graph, so this raises without `allow_unused=True`"
        yield codemod.finding(
            path=fact.path, span=fact.span, severity=Severity.ERROR, message=f"{what}: the code that uses it did not run in this forward",
            fix=repair(facts, fact) if holder else allow_unused(fact), related=[Related(path, span, "it is used here, which did not run")],
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )


def allow_unused(fact):
    return Fix(Applicability.UNSAFE, "Allow unused inputs", (AddArgument(fact.path, fact.span, "allow_unused=True"),))

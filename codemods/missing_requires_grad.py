"""
What it does
------------
Reports a read of `x.grad` after backward where `x` is a leaf that nobody told to require grad, and the workaround
`loss.requires_grad = True` that hides it.

Why it is wrong
---------------
Autograd computes gradients only for leaves that require grad; `x.grad` stays `None`.

Example
-------
```python
import torch

model = torch.nn.Linear(3, 1)
x = torch.randn(2, 3)
model(x).sum().backward()
print(x.grad)
```

Instead
-------
```python
import torch

model = torch.nn.Linear(3, 1)
x = torch.randn(2, 3, requires_grad=True)
model(x).sum().backward()
print(x.grad)
```

Fix safety
----------
Unsafe: a tensor that requires grad may no longer be changed in place or turned into an array.

References
----------
- https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad
"""

from gradfix.codemod import Codemod
from gradfix.findings import AddArgument, Applicability, Fix, InsertAfter, Related, Severity, Verdict

codemod = Codemod(__name__, code="GF201", promises=(Verdict.GAINED, Verdict.REPAIRED))


@codemod.check
def check(facts):
    seen = set()
    for fact, contexts in facts.bad("missing-requires-grad"):
        info = fact.info
        if any(not f.bad for f in contexts):
            continue  # a helper that collects whatever gradients there are
        key = info.get("created") or (fact.path, info["holder"])
        if key in seen:
            continue
        seen.add(key)
        related = ()
        if created := info.get("created"):
            related = (Related(created[0], created[1], "made here without `requires_grad=True`"),)
        yield codemod.finding(
            path=fact.path,
            span=fact.span,
            message=info.get("message") or f"`{info['holder']}.grad` is `None`: `{info['holder']}` does not require grad",
            severity=Severity.ERROR,
            fix=repair(info),
            related=related,
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )


def repair(info):
    if edits := info.get("edits"):
        return Fix(Applicability.UNSAFE, "Let it require grad", tuple(edits))
    created = info.get("created")
    if created and info.get("factory") and info.get("float"):
        return Fix(Applicability.UNSAFE, "Make it with `requires_grad=True`", (AddArgument(created[0], created[1], "requires_grad=True"),))
    if created and info.get("created_name"):
        return Fix(Applicability.UNSAFE, "Let it require grad", (InsertAfter(created[0], created[2], f"{info['created_name']}.requires_grad_()"),))
    return None

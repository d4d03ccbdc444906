"""
What it does
------------
Reports a read of `t.grad` after `backward()` where `t` is a tensor that was computed (a non-leaf) and nothing asked
autograd to keep its gradient.

Why it is wrong
---------------
Autograd fills `.grad` only on leaves that require grad. On a computed tensor it stays `None`, with a warning at most.

Example
-------
```python
import torch

x = torch.randn(3, requires_grad=True)
h = x * 2
h.sum().backward()
print(h.grad)
```

Instead
-------
```python
import torch

x = torch.randn(3, requires_grad=True)
h = x * 2
h.retain_grad()
h.sum().backward()
print(h.grad)
```

Fix safety
----------
Safe where the tensor certainly requires grad and has a name where backward runs: keeping one more gradient changes no
other. Unsafe where that is not proven; there the inserted call is guarded by `requires_grad`. Retained gradients
accumulate and `zero_grad()` does not clear them.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.retain_grad.html
"""

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Fix, InsertAfter, InsertBefore, Related, Severity, Verdict

codemod = Codemod(__name__, code="GF101", promises=(Verdict.GAINED,))


@codemod.check
def check(facts):
    seen = set()
    for fact, contexts in facts.bad("retain-grad"):
        holder, (path, span, statement) = fact.info["holder"], fact.info["backward"]
        caller = fact.info.get("caller")
        if caller is not None and any(not f.bad for f in contexts):
            # The helper is right for other callers: the argument is what is wrong.
            for other in (f for f in contexts if f.bad and f.info.get("caller")):
                cpath, cspan, cstatement = other.info["caller"]
                key = (cpath, cspan)
                if key not in seen:
                    seen.add(key)
                    yield report(other, cpath, cspan, cstatement, [Related(fact.path, fact.span, "read here")])
            continue
        key = (fact.path, holder, span)
        if key in seen:
            continue
        seen.add(key)
        yield report(fact, fact.path, fact.span, fact.statement, [])


def report(fact, where, at, statement, related):
    holder, (path, span, backward) = fact.info["holder"], fact.info["backward"]
    related = [*related, Related(path, span, "backward runs here")]
    if created := fact.info.get("created"):
        related.append(Related(created[0], created[1], "the tensor is computed here, so it is no leaf"))
    return codemod.finding(
        path=where,
        span=at,
        message=f"`{holder}.grad` is `None`: `{holder}` is not a leaf, and autograd keeps no gradient of it without `retain_grad()`",
        severity=Severity.ERROR if fact.info["certain"] else Severity.WARNING,
        fix=repair(fact, path, backward),
        related=related,
        statement_rows=(statement.row, statement.end_row),
    )


def repair(fact, path, backward):
    certain = fact.info["certain"]
    applicability = Applicability.SAFE if certain else Applicability.UNSAFE
    place = fact.info["place"]
    if place is None:
        created = fact.info.get("created")
        name = fact.info.get("created_name")
        if not created or not name:
            return None
        code = f"{name}.retain_grad()" if certain else f"if {name}.requires_grad:\n    {name}.retain_grad()"
        return Fix(applicability, f"Insert `{name}.retain_grad()` where the tensor is made", (InsertAfter(created[0], created[2], code),))
    if place[0] == "name":
        name = place[1]
        code = f"{name}.retain_grad()" if certain else f"if {name}.requires_grad:\n    {name}.retain_grad()"
    else:
        _, collection, attribute = place
        element = "_t" + (f".{attribute}" if attribute else "")
        code = f"for _t in {collection}:\n    if {element}.requires_grad:\n        {element}.retain_grad()"
        name = f"for each of `{collection}`: {element}"
    return Fix(applicability, f"Insert `{name}.retain_grad()` before backward", (InsertBefore(path, backward, code),))

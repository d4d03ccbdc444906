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

With `prefer = "autograd-grad"` in `[tool.gradfix.retain-grad]` (the default is `"retain-grad"`), a backward of which only this
one gradient is used becomes `torch.autograd.grad(loss, t)`. That is unsafe: no other tensor gets a gradient then.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.retain_grad.html
- https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html
"""

import ast

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Fix, InsertAfter, InsertBefore, Related, ReplaceExpression, ReplaceStatement, Severity, Verdict

codemod = Codemod(__name__, code="GF101", promises=(Verdict.GAINED,), options={"prefer": ("retain-grad", "autograd-grad")})


@codemod.check
def check(facts):
    seen = set()
    for fact, contexts in facts.bad("retain-grad"):
        holder, (_, span, _) = fact.info["holder"], fact.info["backward"]
        caller = fact.info.get("caller")
        if caller is not None and any(not f.bad for f in contexts):
            # The helper is right for other callers: the argument is what is wrong.
            for other in (f for f in contexts if f.bad and f.info.get("caller")):
                cpath, cspan, cstatement = other.info["caller"]
                key = (cpath, cspan)
                if key not in seen:
                    seen.add(key)
                    yield report(facts, other, cpath, cspan, cstatement, [Related(fact.path, fact.span, "read here")])
            continue
        key = (fact.path, holder, span)
        if key in seen:
            continue
        seen.add(key)
        yield report(facts, fact, fact.path, fact.span, fact.statement, [])


def report(facts, fact, where, at, statement, related):
    holder, (path, span, backward) = fact.info["holder"], fact.info["backward"]
    related = [*related, Related(path, span, "backward runs here")]
    if created := fact.info.get("created"):
        related.append(Related(created[0], created[1], "the tensor is computed here, so it is no leaf"))
    return codemod.finding(
        path=where,
        span=at,
        message=f"`{holder}.grad` is `None`: `{holder}` is not a leaf, and autograd keeps no gradient of it without `retain_grad()`",
        severity=Severity.ERROR if fact.info["certain"] else Severity.WARNING,
        fix=codemod.option(facts, "prefer") == "autograd-grad" and direct(facts, fact, path, backward) or repair(facts, fact, path, backward),
        related=related,
        statement_rows=(statement.row, statement.end_row),
    )


def repair(facts, fact, path, backward):
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
    edits = (InsertBefore(path, backward, code),)
    if fact.info["together"]:  # `net(x).sum().backward()` makes the tensor, too: there is nothing to retain before it
        edits = split(facts.syntax(path), path, backward, code)
    return Fix(applicability, f"Insert `{name}.retain_grad()` before backward", edits) if edits else None


def split(syntax, path, backward, code):
    """Compute the loss in a statement of its own, so that `code` runs between it and backward."""
    stmt = syntax.find(backward, ast.Expr)
    call = stmt.value if stmt is not None else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    parts = [p for p in (call.func.value, *call.args[:1]) if any(isinstance(n, ast.Call) for n in ast.walk(p))]
    scope = next(n for n in syntax.ancestors(stmt) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)))
    taken = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name)}
    fresh = next((name for name in ("loss", "objective", "_loss") if name not in taken), None)
    if len(parts) != 1 or fresh is None:
        return None
    loss = syntax.source(parts[0])
    loss = f"({loss})" if "\n" in loss else loss
    return (InsertBefore(path, backward, f"{fresh} = {loss}\n{code}"), ReplaceExpression(path, syntax.span(parts[0]), fresh))


def direct(facts, fact, path, backward):
    """`(h_grad,) = torch.autograd.grad(loss, h)` in place of `loss.backward()`, where nothing but `h.grad` is used of it."""
    if path != fact.path or fact.info["place"] is None or fact.info["place"][0] != "name":
        return None
    syntax, torch = facts.syntax(path), facts.project.module(path).torch_name()
    name, stmt = fact.info["place"][1], syntax.find(backward, ast.Expr)
    scope = next((n for n in syntax.ancestors(stmt) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module))), None) if stmt is not None else None
    call = stmt.value if stmt is not None else None
    if torch is None or not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward" and not call.args and not call.keywords):
        return None
    nodes = list(ast.walk(scope))
    reads = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == "grad"]
    fresh = name.replace(".", "_") + "_grad"
    if (
        not name.replace(".", "").isidentifier()
        or sum(isinstance(n, ast.Attribute) and n.attr == "backward" for n in nodes) != 1
        or any(isinstance(n, ast.Attribute) and n.attr in ("step", "unscale_", "zero_grad", "retain_grad") for n in nodes)
        or any(isinstance(n, ast.Name) and n.id == fresh for n in nodes)
        or any(not isinstance(n.ctx, ast.Load) or syntax.source(n.value) != name or n.lineno <= stmt.end_lineno for n in reads)
        or any(not set(map(id, syntax.suite(stmt))) & set(map(id, [syntax.statement(n), *syntax.ancestors(n)])) for n in reads)
    ):
        return None
    loss = syntax.source(call.func.value)
    edits = [ReplaceStatement(path, backward, f"({fresh},) = {torch}.autograd.grad({loss}, {name})")]
    edits += [ReplaceExpression(path, syntax.span(n), fresh) for n in reads]
    return Fix(Applicability.UNSAFE, f"Ask `{torch}.autograd.grad` for this gradient alone", tuple(edits))

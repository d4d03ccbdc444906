"""
What it does
------------
Reports updates of a trained tensor through `.data` (`w.data -= lr * w.grad.data`) and changes of a gradient through it
(`w.grad.data.zero_()`). Reading `.data`, and initialising through it, is not reported.

Why it is wrong
---------------
Autograd does not see a change that goes through `.data`. A backward that still needs the old values runs on with the new
ones: its gradients are wrong, and nothing says so. Under `torch.no_grad()` it raises.

Example
-------
```python
import torch

w = torch.ones(3, requires_grad=True)
for step in range(2):
    loss = (w * w).sum()
    loss.backward()
    w.data -= 0.1 * w.grad.data
    w.grad.data.zero_()
```

Instead
-------
```python
import torch

w = torch.ones(3, requires_grad=True)
for step in range(2):
    loss = (w * w).sum()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    w.grad.zero_()
```

Fix safety
----------
Safe where the tensor is known and no graph from before the update is used after it. Unsafe where nothing is known of
that, where the file keeps graphs (`retain_graph`, `create_graph`), and for `w.data = w.data - …`. No fix where a
backward after the update still uses the old graph: the new form raises there.

References
----------
- https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
"""

import ast

from codemods import _legacy as legacy
from gradfix.codemod import Codemod
from gradfix.findings import Fix, Lift, ReplaceStatement, Severity, Verdict, Wrap

codemod = Codemod(__name__, code="GF903", promises=(Verdict.PRESERVED,), default_on=False, needs=("legacy",))
IN_PLACE = {ast.Add: "add_", ast.Sub: "sub_", ast.Mult: "mul_", ast.Div: "div_"}


@codemod.check
def check(facts):
    for fact, all_facts in facts.bad("legacy-data"):
        syntax = facts.syntax(fact.path)
        stmt = syntax.find(fact.statement, ast.stmt)
        owner = syntax.find(fact.info["owner"]["span"], ast.expr)
        if stmt is None or owner is None or not is_trained(syntax, stmt, owner, fact, all_facts):
            continue
        gradient = fact.info["gradient"]
        if gradient and fact.info["form"] == "assigned":
            continue
        again = any(f.info.get("again") for f in all_facts)
        edits = None if again else edits_of(facts, fact, all_facts, syntax, stmt, owner)
        message = "a gradient is changed through `.data`" if gradient else "a trained tensor is changed through `.data`, which autograd does not see"
        if again:
            message += ": a later backward still uses the values from before, so its gradient is wrong"
        fix = None
        if edits is not None:
            text = facts.text(fact.path)
            kept = "create_graph" in text or not gradient and ("retain_graph" in text or "retain_variables" in text)
            known = legacy.is_tensor(all_facts, "owner") or gradient
            safe = known and not kept and fact.info["form"] != "assigned"
            fix = Fix(legacy.SAFE if safe else legacy.UNSAFE, "Drop `.data`" if gradient else "Update under `torch.no_grad()`", edits)
        yield codemod.finding(
            path=fact.path, span=fact.span, message=message, severity=Severity.WARNING, fix=fix,
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )  # fmt: skip


def is_trained(syntax, stmt, owner, fact, all_facts):
    """Is what stands before `.data` a tensor that may require grad?"""
    kinds = legacy.joined(all_facts, "owner", "kinds")
    if fact.info["gradient"] or kinds and kinds <= {"parameter", "gradient"}:
        return True
    if kinds and kinds <= legacy.TENSORS:
        return legacy.state(all_facts, "owner") != "plain"
    if "other" in kinds:
        return False
    name = ast.unparse(owner)
    around = next((a for a in syntax.ancestors(stmt) if isinstance(a, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module))), syntax.module.tree)
    reads = any(isinstance(n, ast.Attribute) and n.attr == "grad" and ast.unparse(n.value) == name for n in ast.walk(around))
    return reads or isinstance(owner, ast.Attribute) and owner.attr in ("weight", "bias")


def edits_of(facts, fact, all_facts, syntax, stmt, owner):
    path, form, gradient = fact.path, fact.info["form"], fact.info["gradient"]
    reads = []
    for number, (span, inner) in enumerate(fact.info["reads"]):
        node = syntax.find(inner, ast.expr)
        if gradient and legacy.state(all_facts, f"read{number}") not in ("plain", "data"):
            continue  # of a weight, say: with grad mode on, the gradient would get a history
        if legacy.is_tensor(all_facts, f"read{number}") or isinstance(node, ast.Attribute) and node.attr == "grad" or (
                node is not None and ast.unparse(node) == ast.unparse(owner)):
            reads.append((span, inner))
    data = syntax.parents[owner]
    dropped = [Lift(path, span, inner) for span, inner in reads]
    if gradient:
        return (Lift(path, syntax.span(data), syntax.span(owner)), *dropped)
    header, imports = legacy.no_grad(facts, path, fact.info.get("torch"))
    inside = legacy.joined(all_facts, "owner", "modes") == {False}
    around = () if inside else (Wrap(path, fact.statement, fact.statement, header), *imports)
    whole = form == "augmented" and stmt.target is data or form == "assigned"
    rebinds = whole and (not fact.info["local"] or not isinstance(owner, ast.Name) and not is_attribute_of_self(owner))
    if form == "assigned":
        return assigned(facts, fact, all_facts, syntax, stmt, owner, reads, rebinds, around)
    if not rebinds:
        return (Lift(path, syntax.span(data), syntax.span(owner)), *dropped, *around)
    method = IN_PLACE.get(type(stmt.op))
    value = without(syntax, stmt.value, reads)
    if method is None or value is None:
        return None
    return (ReplaceStatement(path, fact.statement, f"{syntax.source(owner)}.{method}({value})"), *around)


def is_attribute_of_self(owner):
    """`self.w -= …` stores the same object again, which any plain attribute and any parameter of a module takes."""
    return isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "self"


def assigned(facts, fact, all_facts, syntax, stmt, owner, reads, rebinds, around):
    """`w.data = w.data - g`: the memory was a new one; of a parameter, which is known by its object, that makes no difference."""
    if legacy.joined(all_facts, "owner", "kinds") != {"parameter"}:
        return None
    name, value = syntax.source(owner), stmt.value
    if isinstance(value, ast.BinOp) and type(value.op) in (ast.Add, ast.Sub) and ast.unparse(value.left) == ast.unparse(stmt.targets[0]):
        rest = without(syntax, value.right, reads)
        if rest is None:
            return None
        sign = "+" if isinstance(value.op, ast.Add) else "-"
        code = f"{name}.{IN_PLACE[type(value.op)]}({rest})" if rebinds else f"{name} {sign}= {rest}"
    else:
        rest = without(syntax, value, reads)
        if rest is None:
            return None
        code = f"{name}.copy_({rest})"
    return (ReplaceStatement(fact.path, fact.statement, code), *around)


def without(syntax, node, reads):
    """The source of an expression on one line, without the `.data` of `reads`."""
    text, start = syntax.source(node), syntax.span(node)
    if "\n" in text or "#" in text:
        return None
    for span, inner in sorted(reads, reverse=True):
        if start.contains(span):
            text = text[: inner.end_col - start.col] + text[span.end_col - start.col :]
    return text

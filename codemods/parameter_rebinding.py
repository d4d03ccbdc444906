"""
What it does
------------
Reports `w = w - lr * w.grad` and its like: the name of a leaf is bound to a new tensor computed from it.

Why it is wrong
---------------
The new tensor is no leaf (or, under `no_grad`, does not require grad): its `.grad` is `None` in the next turn, an
optimizer and a module still hold the old one, and a loop variable changes nothing at all.

Example
-------
```python
import torch

w = torch.randn(3, requires_grad=True)
for _ in range(2):
    w.pow(2).sum().backward()
    w = w - 0.1 * w.grad
```

Instead
-------
```python
import torch

w = torch.randn(3, requires_grad=True)
for _ in range(2):
    w.pow(2).sum().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    w.grad = None
```

Fix safety
----------
Unsafe: every later gradient changes, and an alias of the old value would see the update.

References
----------
- https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
"""

import ast

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, EnsureImport, Fix, InsertAfter, ReplaceExpression, ReplaceStatement, Severity, Verdict, Wrap

codemod = Codemod(__name__, code="GF501", promises=(Verdict.REPAIRED, Verdict.GAINED))
OPERATORS = {ast.Add: "+=", ast.Sub: "-=", ast.Mult: "*=", ast.Div: "/="}


@codemod.check
def check(facts):
    for fact, _ in facts.bad("parameter-rebinding"):
        target = fact.info["target"]
        yield codemod.finding(
            path=fact.path,
            span=fact.span,
            message=f"`{target}` is bound to a new tensor, which is not the leaf that was trained: update it in place under `torch.no_grad()`",
            severity=Severity.ERROR,
            fix=repair(facts, fact),
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )


def repair(facts, fact):
    syntax, path = facts.syntax(fact.path), fact.path
    stmt = syntax.find(fact.statement, ast.Assign)
    if stmt is None or len(stmt.targets) != 1:
        return None
    updates = in_place(syntax, stmt, fact.info.get("clear")) if not (fact.info.get("last") or fact.info.get("replaced")) else None
    if updates is not None:
        code, clear = updates
        return no_grad(fact, path, code, clear)
    if isinstance(stmt.targets[0], (ast.Tuple, ast.List)) or fact.info.get("container"):
        return None
    target, value = syntax.source(stmt.targets[0]), stmt.value
    if last := fact.info.get("last"):
        # Several rebindings in a row, as of an adversarial example: the last one makes the new leaf.
        return Fix(Applicability.UNSAFE, "Make the result a new leaf", (ReplaceExpression(path, last, "__expr__.detach().requires_grad_()"),))
    if fact.info.get("replaced"):
        value = value.args[0]
    return no_grad(fact, path, f"{target}.copy_({syntax.source(value)})", f"{target}.grad = None" if fact.info.get("clear") else "")


def no_grad(fact, path, code, clear):
    edits = [ReplaceStatement(path, fact.statement, code)]
    if fact.info["mode"] is not False:
        torch = fact.info.get("torch") or "torch"
        edits.append(Wrap(path, fact.statement, fact.statement, f"with {torch}.no_grad():"))
        if fact.info.get("torch") is None:
            edits.append(EnsureImport(path, "torch"))
    if clear:
        edits.append(InsertAfter(path, fact.statement, clear))
    return Fix(Applicability.UNSAFE, "Update in place under `torch.no_grad()`", tuple(edits))


def in_place(syntax, stmt, clear):
    """(the statements `X op= Y` that a rebinding `X = X op Y` stands for, those that clear), or None for other shapes."""
    target, value = stmt.targets[0], stmt.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = list(zip(target.elts, value.elts))
        names = [ast.unparse(t) for t in target.elts]
        for i, (_, v) in enumerate(pairs):  # a later expression must not need what an earlier one has changed
            inner = {ast.unparse(n) for n in ast.walk(v) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))}
            if inner & set(names[:i]):
                return None
    elif isinstance(value, (ast.ListComp, ast.DictComp)):
        leaf = leaf_of(target, value)
        if leaf is None:
            return None
        loop, new = value.generators[0], value.elt if isinstance(value, ast.ListComp) else value.value
        update = augmented(syntax, leaf, new) or f"{leaf}.copy_({syntax.source(new)})"
        tail = f"\n    {leaf}.grad = None" if clear else ""
        return f"for {syntax.source(loop.target)} in {syntax.source(loop.iter)}:\n    {update}{tail}", ""
    else:
        pairs = [(target, value)]
    updates = [augmented(syntax, syntax.source(t), v) for t, v in pairs]
    if None in updates:
        return None
    return "\n".join(updates), "\n".join(f"{syntax.source(t)}.grad = None" for t, _ in pairs) if clear else ""


def leaf_of(target, comprehension):
    """What stands for the old leaf in a comprehension over the container that its result takes the place of, or None."""
    if len(comprehension.generators) != 1 or comprehension.generators[0].ifs:
        return None
    loop, whole = comprehension.generators[0], ast.unparse(target)
    over = loop.iter.func if isinstance(loop.iter, ast.Call) and not loop.iter.keywords else None
    names = [n.id if isinstance(n, ast.Name) else None for n in (loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target])]
    if isinstance(comprehension, ast.DictComp):
        if not isinstance(comprehension.key, ast.Name) or comprehension.key.id != names[0]:
            return None
        if isinstance(over, ast.Attribute) and over.attr == "items" and ast.unparse(over.value) == whole and len(names) == 2:
            return names[1]
        keys = over.value if isinstance(over, ast.Attribute) and over.attr == "keys" else loop.iter
        return f"{whole}[{names[0]}]" if ast.unparse(keys) == whole and len(names) == 1 else None
    if ast.unparse(loop.iter) == whole and len(names) == 1:
        return names[0]
    if isinstance(over, ast.Name) and over.id in ("zip", "enumerate"):
        columns = ([None] if over.id == "enumerate" else []) + [ast.unparse(a) for a in loop.iter.args]
        if len(columns) == len(names) and whole in columns:
            return names[columns.index(whole)]
    return None


def augmented(syntax, target, value):
    """`X op= Y` for `X op Y`, where X is `target`, or None."""
    if isinstance(value, ast.BinOp) and type(value.op) in OPERATORS and ast.unparse(value.left) == ast.unparse(ast.parse(target, mode="eval").body):
        return f"{target} {OPERATORS[type(value.op)]} {syntax.source(value.right)}"
    return None

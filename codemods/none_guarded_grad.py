"""
What it does
------------
Reports a use of `X.grad` that may be `None`: of parameters in a loop, before the first backward, after a clearing.

Why it is wrong
---------------
A parameter that is frozen, or that this forward did not use, has no gradient; the line raises an `AttributeError` or
`TypeError` on the first of them.

Example
-------
```python
import torch

model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 1), "idle": torch.nn.Linear(3, 1)})
model["used"](torch.randn(2, 3)).sum().backward()
for p in model.parameters():
    p.grad.clamp_(-1, 1)
```

Instead
-------
```python
import torch

model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 1), "idle": torch.nn.Linear(3, 1)})
model["used"](torch.randn(2, 3)).sum().backward()
for p in model.parameters():
    if p.grad is not None:
        p.grad.clamp_(-1, 1)
```

Fix safety
----------
Safe for a statement whose results nothing later needs and for a generator inside `sum`. Unsafe for lists that may be
matched with the parameters later, and where a gradient is accumulated into `None`.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.grad.html
"""

import ast

from gradfix.analysis.syntax import assigned, is_pure, root_name, used
from gradfix.codemod import Codemod
from gradfix.findings import AddFilter, Applicability, Fix, InsertInBody, ReplaceExpression, ReplaceStatement, Severity, Verdict, Wrap

codemod = Codemod(__name__, code="GF301", promises=(Verdict.GAINED,))


@codemod.check
def check(facts):
    # Where the function that would have used it never ran, GF303 says all there is to say.
    seen = {(fact.path, fact.statement) for fact, _ in facts.bad("untaken-branch") if not fact.info.get("called", True)}
    for fact, contexts in facts.bad("none-guarded-grad"):
        holder = fact.info["holder"]
        key = (fact.path, holder, fact.info.get("loop") or fact.statement)
        if key in seen or (fact.path, fact.statement) in seen:
            continue
        seen |= {key, (fact.path, fact.statement)}
        certain = all(f.bad and f.info["certain"] for f in contexts)
        yield codemod.finding(
            path=fact.path,
            span=fact.span,
            message=f"`{holder}.grad` is `None` here" if certain and not fact.info["param"]
            else f"`{holder}.grad` may be `None`: a parameter that is frozen or unused in this forward has no gradient",
            severity=Severity.ERROR if certain and not fact.info["param"] else Severity.WARNING,
            fix=repair(facts, fact),
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )


def repair(facts, fact):
    syntax = facts.syntax(fact.path)
    read = syntax.find(fact.span, ast.Attribute)
    if read is None or read.attr != "grad" or not is_pure(read):
        return None
    holder, path = fact.info["holder"], fact.path
    guard = f"{holder}.grad is not None"
    root = root_name(read)
    previous = read
    for node in syntax.ancestors(read):
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            if any(root in {n.id for n in ast.walk(g.target) if isinstance(n, ast.Name)} for g in node.generators):
                parent = syntax.parents.get(node)
                summed = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "sum"
                return Fix(Applicability.SAFE if summed else Applicability.UNSAFE, "Skip parameters without a gradient",
                           (AddFilter(path, syntax.span(node), guard),))
        if isinstance(node, ast.Lambda) and root in {a.arg for a in node.args.args}:
            return guard_mapped(syntax, node, root, guard, path)
        if isinstance(node, ast.If) and previous is node.test or isinstance(node, ast.While) and previous is node.test:
            return Fix(Applicability.UNSAFE, "Test for `None` first", (ReplaceExpression(path, syntax.span(node.test), f"{guard} and __expr__"),))
        if isinstance(node, ast.stmt):
            return guard_statement(syntax, node, read, root, guard, path, holder)
        previous = node
    return None


def guard_mapped(syntax, function, root, guard, path):
    """`map(lambda p: p.grad.norm(), parameters)`: only what the lambda is given can be tested, and only where that is in sight."""
    call = syntax.parents.get(function)
    mapped = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "map" and len(call.args) == 2 and call.args[0] is function
    if not mapped or isinstance(call.args[1], ast.Starred):
        return None
    around = syntax.parents.get(call)
    reduced = isinstance(around, ast.Call) and isinstance(around.func, ast.Name) and around.func.id in ("sum", "max", "min")
    return Fix(Applicability.SAFE if reduced else Applicability.UNSAFE, "Skip parameters without a gradient",
               (ReplaceExpression(path, syntax.span(call.args[1]), f"({root} for {root} in __expr__ if {guard})"),))


def guard_statement(syntax, stmt, read, root, guard, path, holder):
    targets = stmt.targets if isinstance(stmt, ast.Assign) else [stmt.target] if isinstance(stmt, ast.AugAssign) else []
    if isinstance(stmt, ast.AugAssign) and stmt.target is read and isinstance(stmt.op, (ast.Add, ast.Sub)):
        value, sign = syntax.source(stmt.value), "+" if isinstance(stmt.op, ast.Add) else "-"
        wrapped = f"({value})" if isinstance(stmt.value, (ast.BinOp, ast.IfExp)) and sign == "-" else value
        first = value if sign == "+" else f"-({value})"
        return Fix(Applicability.UNSAFE, "Start from the first gradient", (
            ReplaceStatement(path, syntax.span(stmt), f"{holder}.grad = {first} if {holder}.grad is None else {holder}.grad {sign} {wrapped}"),))
    if any(read in ast.walk(t) for t in targets) and isinstance(stmt, ast.Assign):
        return None  # the None is on the target: a guard would skip the copy
    if syntax.displayed(stmt):
        shown = stmt.value.elts if isinstance(stmt.value, ast.Tuple) else [stmt.value]
        shown = next(part for part in shown if read in ast.walk(part))
        return Fix(Applicability.SAFE, "Show it where there is a gradient", (
            ReplaceExpression(path, syntax.span(shown), f"__expr__ if {guard} else None"),))
    suite = syntax.cell(syntax.suite(stmt), stmt)
    at = suite.index(stmt)
    loop = next((a for a in syntax.ancestors(stmt) if not isinstance(a, ast.If)), None)
    in_loop = isinstance(loop, (ast.For, ast.AsyncFor)) and root in {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    last, needs = at, assigned(stmt) - ({n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)} if isinstance(stmt, ast.AugAssign) else set())
    for i in range(at + 1, len(suite)):
        if used(suite[i]) & needs or in_loop and any(isinstance(n, ast.Attribute) and n.attr == "grad" and root_name(n) == root for n in ast.walk(suite[i])):
            last = i
            needs |= assigned(suite[i]) if not isinstance(suite[i], ast.AugAssign) else set()
    first = at
    if in_loop and appends(stmt):  # `names.append(n)` and `norms.append(p.grad.norm())` go in step: both or none
        while first > 0 and appends(suite[first - 1]):
            first -= 1
        while last + 1 < len(suite) and appends(suite[last + 1]):
            last += 1
    if in_loop and last == len(suite) - 1 and last > first and len(suite) > 1:
        if first == 0 and suite is loop.body:
            return Fix(Applicability.SAFE, "Skip parameters without a gradient", (InsertInBody(path, syntax.span(loop), f"if {holder}.grad is None:\n    continue"),))
    if needs and any(used(later) & needs for later in outside(syntax, stmt, suite, last)):
        if isinstance(stmt, ast.Assign) and isinstance(stmt.value, ast.expr) and not in_loop:
            return None
        if not in_loop:
            return None
        return Fix(Applicability.UNSAFE, "Skip where there is no gradient", (Wrap(path, syntax.span(suite[first]), syntax.span(suite[last]), f"if {guard}:"),))
    shown = any(syntax.displayed(s) for s in suite[first : last + 1])
    return Fix(Applicability.UNSAFE if shown else Applicability.SAFE, "Skip where there is no gradient",
               (Wrap(path, syntax.span(suite[first]), syntax.span(suite[last]), f"if {guard}:"),))


def appends(stmt):
    call = stmt.value if isinstance(stmt, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append"


def outside(syntax, stmt, suite, last):
    """Statements of the same function that are not among those that would be guarded."""
    scope = next((a for a in syntax.ancestors(stmt) if isinstance(a, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module))), None)
    guarded = {id(n) for s in suite[suite.index(stmt) : last + 1] for n in ast.walk(s)}
    for node in ast.walk(scope):
        if isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)) and id(node) not in guarded and node.lineno > stmt.lineno:
            yield node

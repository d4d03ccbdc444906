"""
What it does
------------
Reports `Variable(x, volatile=True)`.

Why it is wrong
---------------
The flag is ignored today, with a warning: evaluation records a graph, and pays for it in memory. A second argument
without a name is `requires_grad` today: labels then raise, and inputs collect gradients.

Example
-------
```python
import torch
from torch.autograd import Variable

net = torch.nn.Linear(3, 2)
for batch in [torch.randn(4, 3), torch.randn(4, 3)]:
    scores = net(Variable(batch, volatile=True))
    print(scores.max(1)[1])
```

Instead
-------
```python
import torch

net = torch.nn.Linear(3, 2)
for batch in [torch.randn(4, 3), torch.randn(4, 3)]:
    with torch.no_grad():
        scores = net(batch)
    print(scores.max(1)[1])
```

Fix safety
----------
The statements that compute something of the value go under `torch.no_grad()`. Safe where all of them stand in the
function that holds the flag; unsafe where results are handed on or kept. No fix where the flag is a variable, where the
value leaves the function unchanged (returned, or stored in an object for later), or where backward runs on what was
computed of it.

References
----------
- https://pytorch.org/blog/pytorch-0_4_0-migration-guide/
"""

import ast

from codemods import _legacy as legacy
from gradfix.codemod import Codemod
from gradfix.findings import Fix, Severity, Verdict

codemod = Codemod(__name__, code="GF902", promises=(Verdict.PRESERVED, Verdict.GAINED), default_on=False, needs=("legacy",))


@codemod.check
def check(facts):
    by_function = {}
    for fact, all_facts, node in legacy.variable_calls(facts):
        if fact.info["form"] != "call" or not legacy.is_volatile(node):
            continue
        syntax = facts.syntax(fact.path)
        owner = next((a for a in syntax.ancestors(node) if isinstance(a, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module))))
        by_function.setdefault((fact.path, owner), []).append((fact, all_facts, node))
    for (path, owner), group in by_function.items():
        fixes = plan(facts, path, owner, group)
        for fact, _, node in group:
            yield report(fact, node, fixes.get(node))


def flag(node):
    """The value of `volatile`: True, False, or None where it is no constant."""
    given = next((k.value for k in node.keywords if k.arg == "volatile"), None)
    return bool(given.value) if isinstance(given, ast.Constant) else None


def plan(facts, path, owner, group):
    syntax = facts.syntax(path)
    seeds, plans = [], {}
    for fact, all_facts, node in group:
        if len(node.args) > 1 or flag(node) is None and not never_volatile(facts, path, owner, node):
            continue
        found = legacy.unwrap(facts, fact, all_facts, node, ignore_flag=flag(node) is True)
        if found is None:
            continue
        plans[node] = found
        if flag(node) and legacy.joined(all_facts, "result", "modes") != {False}:
            seeds.append(node)
    if not plans:
        return {}
    around, safe, more = (), True, ()
    if seeds:
        if isinstance(owner, ast.Lambda):
            return {}
        for node in [n for n in seeds if kept_for_later(syntax, owner, n)]:
            seeds.remove(node)
            plans.pop(node)
    if seeds:
        try:
            region = legacy.Region(syntax, seeds, owner.body)
        except legacy.NotLocal:
            plans = {node: p for node, p in plans.items() if node not in seeds}
        else:
            header, more = legacy.no_grad(facts, path, group[0][0].info.get("torch"))
            around = legacy.wraps(path, region, header)
            safe = not region.escapes
            more = more if around else ()
    edits = {}
    by_statement = {}
    for node, p in plans.items():
        by_statement.setdefault(syntax.statement(node), []).append((node, p))
    for calls in by_statement.values():
        edits.update(legacy.statement_edits(facts, path, everything_in(facts, path, calls)))
    # What hangs together in the function goes together: the values and the blocks.
    together = [e for node in plans if node in seeds for e in edits[node]]
    out = {}
    for node, p in plans.items():
        imports = legacy.dropped_import(facts, path, syntax.source(node.func))
        mine = (*dict.fromkeys(together), *around, *more) if node in seeds else edits[node]
        applicability = p.applicability if node not in seeds or not safe else legacy.SAFE
        if node in seeds and not safe or flag(node) is None:
            applicability = legacy.UNSAFE
        out[node] = Fix(applicability, "Use `torch.no_grad()`" if node in seeds else "Drop `volatile`", (*mine, *imports))
    return out


def kept_for_later(syntax, owner, node):
    """Is it stored in an object, and used elsewhere?  Without the flag nothing would say that no graph was wanted there."""
    stmt = syntax.statement(node)
    targets = [t for target in getattr(stmt, "targets", ()) for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
    if not any(isinstance(t, (ast.Attribute, ast.Subscript)) for t in targets):
        return False
    try:
        return not legacy.Region(syntax, [node], owner.body).runs
    except legacy.NotLocal:
        return True


def everything_in(facts, path, calls):
    """The calls of one statement, with those that GF901 reports: a statement that only renames itself goes as a whole."""
    syntax = facts.syntax(path)
    stmt = syntax.statement(calls[0][0])
    known = dict(calls)
    for fact, all_facts, node in legacy.variable_calls(facts):
        if fact.path == path and fact.info["form"] == "call" and node not in known and syntax.statement(node) is stmt and not legacy.is_volatile(node):
            found = legacy.unwrap(facts, fact, all_facts, node)
            if found is not None:
                known[node] = found
    whole = legacy.statement_edits(facts, path, list(known.items()))
    return list(known.items()) if len(known) > len(calls) and len(set(whole.values())) == 1 else calls


def never_volatile(facts, path, owner, node):
    """`Variable(x, volatile=volatile)` in a helper that nothing in the file calls with the flag."""
    given = next((k.value for k in node.keywords if k.arg == "volatile"), None)
    if not isinstance(given, ast.Name) or not isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    a = owner.args
    names = [p.arg for p in a.posonlyargs + a.args]
    defaults = dict(zip(reversed(names), reversed(a.defaults)))
    default = defaults.get(given.id)
    if not (isinstance(default, ast.Constant) and not default.value):
        return False
    place = names.index(given.id) - (1 if names and names[0] == "self" else 0)
    files = [p for p in facts.project.files if p == path or path in facts.project.imports(p)]
    for p in files:
        module = facts.project.module(p)
        for n in ast.walk(module.tree) if module is not None else ():
            if isinstance(n, ast.Call) and getattr(n.func, "attr", getattr(n.func, "id", "")) == owner.name:
                if len(n.args) > place or any(k.arg in (given.id, None) for k in n.keywords) or any(isinstance(x, ast.Starred) for x in n.args):
                    return False
    return True


def report(fact, node, fix):
    if len(node.args) > 1:
        message = "a second argument without a name is `requires_grad` today, not `volatile`: call under `torch.no_grad()` instead"
    elif flag(node) is False:
        message = "`volatile` has no effect today"
    elif flag(node) is None:
        message = "`volatile` has no effect today: drop it, and call under `torch.no_grad()` where it was meant"
    else:
        message = "`volatile=True` has no effect today, so a graph is recorded: use `torch.no_grad()`"
    return codemod.finding(
        path=fact.path, span=fact.span, message=message, severity=Severity.WARNING, fix=fix,
        statement_rows=(fact.statement.row, fact.statement.end_row),
    )  # fmt: skip

"""
What it does
------------
Reports layers that a module keeps in a plain list or dict, and plain tensors that require grad (or parameters that were moved)
as attributes of a module, where no optimizer is given them in another way.

Why it is wrong
---------------
`parameters()` finds modules and `nn.Parameter`s that are attributes, or that `nn.ModuleList`, `nn.ModuleDict` and their like hold.
Everything else is not trained, not moved by `.to()`, and not saved.

Example
-------
```python
import torch


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 1)
        self.layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = Stack()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 3)).sum().backward()
optimizer.step()
```

Instead
-------
```python
import torch


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 1)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = Stack()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 3)).sum().backward()
optimizer.step()
```

Fix safety
----------
Unsafe: the keys of `state_dict` and the order of the parameters change, and a list can hide a teacher on purpose.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html
"""

import ast

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Fix, ReplaceExpression, ReplaceStatement, Severity, Verdict

codemod = Codemod(__name__, code="GF205", promises=(Verdict.REPAIRED, Verdict.GAINED))
HOLDERS = {("layers", "list"): "ModuleList", ("layers", "dict"): "ModuleDict", ("layers", "tuple"): "ModuleList",
           ("parameters", "list"): "ParameterList", ("parameters", "dict"): "ParameterDict", ("parameters", "tuple"): "ParameterList"}
DICT_METHODS = {"keys", "values", "items", "get", "pop", "update", "clear", "type", "forward", "train", "eval", "training"}


@codemod.check
def check(facts):
    for fact, _ in facts.bad("unregistered-parameter"):
        form, target = fact.info["form"], fact.info["target"]
        holder = HOLDERS.get((form, fact.info["container"]))
        instead = {"tensor": "make it an `nn.Parameter`", "moved": "move the tensor first and make that an `nn.Parameter`"}.get(form) or f"use `nn.{holder}`"
        what = "the layers in it are" if form == "layers" else "the tensors in it are" if form == "parameters" else "it is"
        yield codemod.finding(
            path=fact.path, span=fact.span, severity=Severity.WARNING, fix=repair(facts, fact, form, holder),
            message=f"`{target}` is not registered: {what} no part of `parameters()`, so no optimizer trains {'it' if what == 'it is' else 'them'}; {instead}",
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )


def repair(facts, fact, form, holder):
    syntax, path = facts.syntax(fact.path), fact.path
    stmt = syntax.find(fact.statement, (ast.Assign, ast.AnnAssign))
    if stmt is None or stmt.value is None:
        return None
    nn, value = nn_name(syntax, fact), stmt.value
    if nn is None:
        return None
    if form in ("layers", "parameters"):
        keys = fact.info["keys"]
        if form == "parameters" or fact.info["container"] == "dict" and not all(
                isinstance(k, str) and "." not in k and k and not k.startswith("*") and k not in DICT_METHODS for k in keys):
            return None
        empty = isinstance(value, (ast.List, ast.Dict)) and not (value.elts if isinstance(value, ast.List) else value.keys)
        code = f"{nn}.{holder}()" if empty or isinstance(value, ast.Call) and not value.args and not value.keywords else f"{nn}.{holder}(__expr__)"
        return Fix(Applicability.UNSAFE, f"Hold them in an `nn.{holder}`", (ReplaceExpression(path, syntax.span(value), code),))
    if form == "moved":
        return moved_parameter(syntax, path, value)
    edits = []
    if isinstance(value, ast.Call) and any(k.arg == "requires_grad" for k in value.keywords):
        inner = ", ".join([*(syntax.source(a) for a in value.args), *(syntax.source(k) for k in value.keywords if k.arg != "requires_grad")])
        code = f"{nn}.Parameter({syntax.source(value.func)}({inner}))"
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "requires_grad_" and not value.keywords:
        code = f"{nn}.Parameter({syntax.source(value.func.value)})"
    else:
        code = f"{nn}.Parameter({syntax.source(value)})"
        edits += [ReplaceStatement(path, syntax.span(s), "") for s in syntax.suite(stmt) if sets_flag(syntax, s, fact.info["target"])]
    edits.insert(0, ReplaceExpression(path, syntax.span(value), code))
    return Fix(Applicability.UNSAFE, "Make it an `nn.Parameter`", tuple(edits))


def sets_flag(syntax, stmt, target):
    """`self.w.requires_grad = True`, `self.w.requires_grad_()`"""
    if isinstance(stmt, ast.Assign) and isinstance(stmt.targets[0], ast.Attribute) and stmt.targets[0].attr == "requires_grad":
        return syntax.source(stmt.targets[0].value) == target
    return isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call) and isinstance(stmt.value.func, ast.Attribute) and (
        stmt.value.func.attr == "requires_grad_" and syntax.source(stmt.value.func.value) == target)


def moved_parameter(syntax, path, value):
    """`nn.Parameter(t, …).to(d)` as `nn.Parameter(t.to(d), …)`: the conversions move inside."""
    calls, inner = [], value
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and not is_parameter(inner):
        calls.insert(0, inner)
        inner = inner.func.value
    if not (isinstance(inner, ast.Call) and is_parameter(inner) and inner.args and calls):
        return None
    tail = "".join(f".{c.func.attr}({', '.join([*(syntax.source(a) for a in c.args), *(syntax.source(k) for k in c.keywords)])})" for c in calls)
    rest = "".join(f", {syntax.source(a)}" for a in [*inner.args[1:], *inner.keywords])
    first = syntax.source(inner.args[0])
    first = first if isinstance(inner.args[0], (ast.Call, ast.Name, ast.Attribute, ast.Subscript)) else f"({first})"
    code = f"{syntax.source(inner.func)}({first}{tail}{rest})"
    return Fix(Applicability.UNSAFE, "Move the tensor, then make it a parameter", (ReplaceExpression(path, syntax.span(value), code),))


def is_parameter(call):
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name == "Parameter"


def nn_name(syntax, fact):
    """How the file names `torch.nn`."""
    for stmt in syntax.module.tree.body:
        if isinstance(stmt, ast.ImportFrom) and stmt.module == "torch":
            for alias in stmt.names:
                if alias.name == "nn":
                    return alias.asname or "nn"
        if isinstance(stmt, ast.Import):
            for alias in stmt.names:
                if alias.name == "torch.nn" and alias.asname:
                    return alias.asname
    return f"{fact.info['torch']}.nn" if fact.info.get("torch") else None

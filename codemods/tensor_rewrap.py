"""
What it does
------------
Reports `torch.tensor(…)`, `torch.Tensor([…])`, `Variable(…)` and the like of tensors that train, where the copy reaches a loss as a
term of its own or is the only way from a trained tensor to any loss.

Why it is wrong
---------------
The factories copy values: the result is a new leaf without history, also with `requires_grad=True`. `Variable(t)` detaches today.

Example
-------
```python
import torch

angle = torch.tensor(0.5, requires_grad=True)
optimizer = torch.optim.SGD([angle], lr=0.1)
row = torch.tensor([torch.cos(angle), torch.sin(angle)])
loss = (row - 1).pow(2).sum()
loss.backward()
optimizer.step()
```

Instead
-------
```python
import torch

angle = torch.tensor(0.5, requires_grad=True)
optimizer = torch.optim.SGD([angle], lr=0.1)
row = torch.stack([torch.cos(angle), torch.sin(angle)])
loss = (row - 1).pow(2).sum()
loss.backward()
optimizer.step()
```

Fix safety
----------
Unsafe: it connects what was cut, which is the point, and changes what is trained.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.stack.html
- https://docs.pytorch.org/docs/stable/generated/torch.as_tensor.html
"""

import ast

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, EnsureImport, Fix, ReplaceExpression, Verdict

codemod = Codemod(__name__, code="GF403", promises=(Verdict.REPAIRED, Verdict.GAINED))
# Types that the old constructors give their results.
DTYPES = {"FloatTensor": "float32", "DoubleTensor": "float64"}


@codemod.check
def check(facts):
    for fact, _ in facts.bad("tensor-rewrap"):
        call = facts.syntax(fact.path).find(fact.span, ast.Call)
        code = connected(facts, fact, call) if call is not None and call.args else None
        edits = [] if code is None else [ReplaceExpression(fact.path, fact.span, code)]
        if code is not None and fact.info["torch"] is None and "torch." in code:
            edits.append(EnsureImport(fact.path, "torch"))
        fix = Fix(Applicability.UNSAFE, "Keep the history", tuple(edits)) if edits else None
        yield codemod.cut_finding(fact, "the values are copied here without their history", f"write `{code}`" if code and len(code) < 80 else "use the tensors themselves", fix)


def connected(facts, fact, call):
    """The same value, still in the graph; None where the form is not known."""
    syntax, torch = facts.syntax(fact.path), fact.info["torch"] or "torch"
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
    value = call.args[0]
    if fact.info["cut"] == "variable":
        while isinstance(value, ast.Attribute) and value.attr == "data" or isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "detach":
            value = value.value if isinstance(value, ast.Attribute) else value.func.value
        return syntax.source(value)
    kept = [syntax.source(k) for k in call.keywords if k.arg in ("dtype", "device")]
    if name in DTYPES and not kept and fact.info["op"][0] != "list":
        kept = [f"dtype={torch}.{DTYPES[name]}"]
    options = "".join(f", {k}" for k in kept)
    kind, flags = fact.info["op"] if isinstance(fact.info["op"], tuple) else ("tensor", ())
    if kind == "tensor":
        return f"{torch}.as_tensor({syntax.source(value)}{options})"
    if isinstance(value, (ast.List, ast.Tuple)):
        return stacked(syntax, value, torch, options)
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)) and all(flags):
        return f"{torch}.stack({syntax.source(value) if isinstance(value, ast.ListComp) else '[' + syntax.source(value).strip('()') + ']'})" + moved(options)
    if all(flags) and not options:
        return f"{torch}.stack(list({syntax.source(value)}))" if not isinstance(value, ast.Name) else f"{torch}.stack({syntax.source(value)})"
    return f"{torch}.stack([{torch}.as_tensor(v{options}) for v in {syntax.source(value)}])"


def stacked(syntax, value, torch, options):
    """`[[a, b], [c, 0.5]]` as nested stacks; plain numbers become tensors."""
    parts = []
    for element in value.elts:
        if isinstance(element, ast.Starred):
            return None
        if isinstance(element, (ast.List, ast.Tuple)):
            inner = stacked(syntax, element, torch, options)
            if inner is None:
                return None
            parts.append(inner)
        elif options or isinstance(element, ast.Constant) or isinstance(element, ast.UnaryOp) and isinstance(element.operand, ast.Constant):
            text = syntax.source(element)
            parts.append(f"{torch}.as_tensor({text}{options})" if options or "." in text or "e" in text else f"{torch}.as_tensor({text}.0)")
        else:
            parts.append(syntax.source(element))
    return f"{torch}.stack([{', '.join(parts)}])"


def moved(options):
    return f".to({options[2:]})" if options else ""

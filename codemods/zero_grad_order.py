"""
What it does
------------
Reports a `zero_grad()` that clears gradients between the backward that fills them and the step or read that needs them.

Why it is wrong
---------------
The step moves nothing, or the read finds `None`: since torch 2.0 `zero_grad()` sets gradients to `None`.

Example
-------
```python
import torch

w = torch.randn(3, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.1)
w.pow(2).sum().backward()
opt.zero_grad()
opt.step()
```

Instead
-------
```python
import torch

w = torch.randn(3, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.1)
opt.zero_grad()
w.pow(2).sum().backward()
opt.step()
```

Fix safety
----------
Safe for a read that stands behind `zero_grad()` in the same block. Unsafe for a step: the parameters move now.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
"""

import ast

from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Fix, Move, Related, Severity, Verdict

codemod = Codemod(__name__, code="GF302", promises=(Verdict.GAINED, Verdict.REPAIRED))


@codemod.check
def check(facts):
    for fact, _ in facts.bad("zero-grad-order"):
        info = fact.info
        what = {"step": "before the optimizer's step uses them", "read": f"before `{info.get('read')}` is read",
                "accumulation": "in every turn, though the step comes only every few turns"}[info["use"]]
        related = [Related(info["use_path"], info["use_span"], "used here")]
        if info.get("backward"):
            related.append(Related(*info["backward"], "filled here"))
        yield codemod.finding(
            path=fact.path,
            span=fact.span,
            message=f"the gradients are cleared {what}",
            severity=Severity.ERROR,
            fix=repair(facts, fact),
            related=related,
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )


def repair(facts, fact):
    info = fact.info
    if info["use_path"] != fact.path or not info.get("at_once", True):
        return None
    syntax = facts.syntax(fact.path)
    clear, use = syntax.find(fact.statement, ast.stmt), syntax.find(info["use_span"], ast.stmt)
    if clear is None or use is None:
        return None
    suite = syntax.suite(clear)
    if info["use"] == "accumulation":
        inner = syntax.suite(use)
        return Fix(Applicability.UNSAFE, "Clear after the step", (Move(fact.path, fact.statement, syntax.span(inner[-1])),))
    shown = syntax.displayed(syntax.statement(use))
    where = info.get("backward") or info.get("filled")
    # What clears by hand may need the gradients to be there.
    if (info["use"] == "step" or shown) and where and where[0] == fact.path and not info.get("by_hand"):
        filled = syntax.statement(syntax.find(where[1]))
        before = suite[: suite.index(clear)]
        # The usual order, which leaves the gradients readable; it would take from what another backward added.
        if filled in before and not any("backward" in syntax.source(s) for s in before if s is not filled):
            applicability = Applicability.SAFE if shown else Applicability.UNSAFE
            return Fix(applicability, "Clear before backward", (Move(fact.path, fact.statement, syntax.span(filled), before=True),))
    use = next((n for n in [use, *syntax.ancestors(use)] if n in suite), None)
    if use is None or shown or suite.index(use) < suite.index(clear):
        return None
    return Fix(Applicability.SAFE if info["use"] == "read" else Applicability.UNSAFE, "Clear after the use",
               (Move(fact.path, fact.statement, syntax.span(use)),))

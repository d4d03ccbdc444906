"""
What it does
------------
Reports `loss.data[0]` of a tensor without dimensions.

Why it is wrong
---------------
A loss had one element in one dimension before 0.4. It has no dimension today, so the index raises "invalid index of a
0-dim tensor".

Example
-------
```python
import torch

w = torch.ones(3, requires_grad=True)
loss = (w * w).sum()
loss.backward()
print(loss.data[0])
```

Instead
-------
```python
import torch

w = torch.ones(3, requires_grad=True)
loss = (w * w).sum()
loss.backward()
print(loss.item())
```

Fix safety
----------
Safe where the tensor certainly has no dimension (a loss, a sum, a mean, or what `backward()` is called on): the line
raises today. Unsafe where only its origin speaks for it (`criterion(…)`). Only flagged where its name alone does. The
first row of a tensor, the first image of a batch and the like are left alone.

References
----------
- https://pytorch.org/blog/pytorch-0_4_0-migration-guide/
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.item.html
"""

import re

from codemods import _legacy as legacy
from gradfix.analysis.legacy import LOSS_NAME
from gradfix.codemod import Codemod
from gradfix.findings import Fix, Lift, Severity, Verdict

SETTINGS = re.compile(r"(?:self\.)?(?:args?|opts?|options|cfg|config|conf|params|hparams|flags)\b", re.I)

codemod = Codemod(__name__, code="GF904", promises=(Verdict.GAINED,), default_on=False, needs=("legacy",))


@codemod.check
def check(facts):
    for fact, all_facts in facts.bad("legacy-scalar-index"):
        syntax = facts.syntax(fact.path)
        ranks = legacy.joined(all_facts, "owner", "ranks") or {None}
        kinds = legacy.joined(all_facts, "owner", "kinds")
        if ranks - {0, None} or kinds == {"other"}:
            continue  # some row of it is read, or it is no tensor
        name = syntax.source(syntax.find(fact.info["owner"]["span"]))
        certain = all(f.info["owner"]["scalar"] for f in all_facts)
        likely = certain or ranks == {0} or 0 in ranks or all(f.info["owner"]["likely"] for f in all_facts)
        if not likely and (not LOSS_NAME.search(name) or SETTINGS.match(name)):
            continue
        source = syntax.source(syntax.find(fact.span))
        certain = certain or ranks == {0}
        message = f"`{source}` indexes a tensor without dimensions: this raises" if certain else f"`{source}` raises where the tensor has no dimension"
        fix = None
        dropped = syntax.source(syntax.find(fact.info["outer"])).replace(syntax.source(syntax.find(fact.info["inner"])), "", 1)
        if likely and "#" not in dropped:
            edit = Lift(fact.path, fact.info["outer"], fact.info["inner"], fact.info["code"])
            fix = Fix(legacy.SAFE if certain else legacy.UNSAFE, "Use `.item()`", (edit,))
        yield codemod.finding(
            path=fact.path, span=fact.span, message=message, severity=Severity.ERROR if certain else Severity.WARNING, fix=fix,
            statement_rows=(fact.statement.row, fact.statement.end_row),
        )  # fmt: skip

"""
What it does
------------
Reports `.cuda(async=True)` and the same argument of `.to()`, `.copy_()` and `.type()`.

Why it is wrong
---------------
`async` is a keyword since Python 3.7: the file does not parse. The argument is called `non_blocking` since PyTorch 0.4.

Example
-------
```python
import torch

x = torch.zeros(3)
if torch.cuda.is_available():
    x = x.cuda(async=True)
```

Instead
-------
```python
import torch

x = torch.zeros(3)
if torch.cuda.is_available():
    x = x.cuda(non_blocking=True)
```

Fix safety
----------
Safe: the file does not run today. All of them in a file are renamed at once; other fixes of the file follow in the next
round, when it parses.

References
----------
- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.cuda.html
"""

from codemods import _legacy as legacy
from gradfix.codemod import Codemod
from gradfix.findings import Fix, ReplaceToken, Severity, Span, Verdict

codemod = Codemod(__name__, code="GF906", promises=(Verdict.GAINED,), default_on=False, needs=("legacy", "async-argument"))


@codemod.check
def check(facts):
    by_path = {}
    for fact, _ in facts.bad("legacy-async"):
        by_path.setdefault(fact.path, []).append(fact)
    for path, found in by_path.items():
        words = [Span(f.span.row, f.span.col, f.span.row, f.span.col + len("async")) for f in found]
        fix = Fix(legacy.SAFE, "Use `non_blocking`", tuple(ReplaceToken(path, word, "non_blocking") for word in words))
        for fact, word in zip(found, words):
            yield codemod.finding(
                path=path, span=word, message="`async` is a keyword since Python 3.7: the argument is `non_blocking` today",
                severity=Severity.ERROR, fix=fix, statement_rows=(fact.statement.row, fact.statement.end_row),
            )  # fmt: skip

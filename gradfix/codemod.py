"""What a rule is, and where rules come from.

A rule is a module with an attribute `codemod`, in a package that an entry point of the group
`gradfix.codemods` names:

    '''# retain-grad … (the rule's documentation)'''
    codemod = Codemod(__name__, code="GF101", promises=(Verdict.GAINED,))

    @codemod.check
    def check(facts):
        yield codemod.finding(path=…, span=…, message=…, severity=…, fix=…)
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable

from gradfix.findings import Finding, Fix, Related, Severity, Span, Verdict

GROUP = "gradfix.codemods"


class RegistryError(Exception):
    pass


class Codemod:
    def __init__(
        self,
        module_name: str,
        code: str,
        promises: Iterable[Verdict] = (Verdict.GAINED,),
        default_on: bool = True,
        fixable: bool = True,
        url: str | None = None,
        needs: Iterable[str] = (),
        options: dict[str, tuple[str, ...]] | None = None,
    ):
        if not re.fullmatch(r"[A-Z]+[0-9]+", code):
            raise RegistryError(f"{module_name}: {code!r} is no rule code (letters, then digits)")
        self.module_name = module_name
        self.code = code
        self.name = module_name.rpartition(".")[2].replace("_", "-")
        self.promises = tuple(promises)
        self.default_on = default_on
        self.fixable = fixable
        self.url = url  # a page about the rule, where there is one
        self.needs = frozenset(needs)  # what of the analysis the rule needs that a plain run does without
        self.options = dict(options or {})  # name -> the values it may have in the config, the default first
        self._check: Callable[..., Iterable[Finding]] | None = None

    @property
    def doc(self) -> str:
        import inspect

        module = sys.modules.get(self.module_name)
        return inspect.cleandoc(module.__doc__ or "") if module is not None else ""

    @property
    def summary(self) -> str:
        """The first sentence of the documentation that is not a heading."""
        for paragraph in re.split(r"\n\s*\n", self.doc):
            lines = [line for line in paragraph.splitlines() if not re.match(r"#|[=\-~]{3,}$", line.strip())]
            text = " ".join(" ".join(lines).split())
            if text and text.rstrip(":").lower() != "what it does":
                return text.removeprefix("What it does ")
        return ""

    def check(self, function):
        self._check = function
        return function

    def run(self, facts) -> Iterable[Finding]:
        if self._check is None:
            raise RegistryError(f"rule {self.name} has no check")
        return self._check(facts) or ()

    def option(self, facts, name: str) -> str:
        """What the config says of an option of this rule, else its default."""
        return facts.options.get(self.name, {}).get(name, self.options[name][0])

    def finding(
        self,
        *,
        path: str,
        span: Span,
        message: str,
        severity: Severity,
        fix: Fix | None = None,
        related: Iterable[Related] = (),
        statement_rows: tuple[int, int] = (0, 0),
    ) -> Finding:
        return Finding(self.code, self.name, path, span, message, severity, fix, tuple(related), statement_rows)

    def cut_finding(self, fact, cause: str, instead: str, fix: Fix | None = None, severity: Severity = Severity.WARNING) -> Finding:
        """A cut that matters: its place, what gets no gradient through it, the loss, and what to write instead."""
        lost = fact.info["lost"]
        names = ", ".join(f"`{n}`" if n != "…" else "more" for n in lost)
        who = f"{names} {'learns' if len(lost) == 1 else 'learn'} nothing through it" if lost else "nothing behind it is trained through it"
        hidden = "; `requires_grad=True` on the result only hides that" if fact.info["hidden"] else ""
        path, span = fact.info["loss"]
        return self.finding(
            path=fact.path, span=fact.span, message=f"{cause}, and {who}{hidden}: {instead}", severity=severity, fix=fix,
            related=[Related(path, span, "backward runs on this loss")], statement_rows=(fact.statement.row, fact.statement.end_row),
        )

    def __repr__(self):
        return f"<Codemod {self.code} {self.name}>"


UNUSED_SUPPRESSION = Codemod("gradfix.suppressions.unused_suppression", code="GF001", promises=(), fixable=False)
UNUSED_SUPPRESSION.check(lambda facts: ())


def _packages() -> list[str]:
    points = importlib.metadata.entry_points(group=GROUP)
    names = {point.value.partition(":")[0] for point in points}
    if "codemods" not in names:  # run from a checkout that is not installed
        import os

        if os.path.isfile(os.path.join(os.path.dirname(os.path.dirname(__file__)), "codemods", "__init__.py")):
            names.add("codemods")
    return sorted(names)


def load(packages: Iterable[str] | None = None) -> list[Codemod]:
    """Every rule, in order of code.  A code or a name that is used twice is an error."""
    rules: dict[str, Codemod] = {UNUSED_SUPPRESSION.code: UNUSED_SUPPRESSION}
    names: dict[str, Codemod] = {UNUSED_SUPPRESSION.name: UNUSED_SUPPRESSION}
    for package_name in _packages() if packages is None else packages:
        try:
            package = importlib.import_module(package_name)
            modules = [package]
            for info in pkgutil.iter_modules(getattr(package, "__path__", [])):
                if not info.name.startswith("_"):
                    modules.append(importlib.import_module(f"{package_name}.{info.name}"))
        except RegistryError:
            raise
        except Exception as error:
            raise RegistryError(f"rules of {package_name} can't be loaded: {type(error).__name__}: {error}") from error
        for module in modules:
            rule = getattr(module, "codemod", None)
            if not isinstance(rule, Codemod):
                continue
            for key, table, what in ((rule.code, rules, "code"), (rule.name, names, "name")):
                if (other := table.get(key)) is not None and other is not rule:
                    raise RegistryError(f"the {what} {key} is used by both {other.module_name} and {rule.module_name}")
                table[key] = rule
    return [rules[code] for code in sorted(rules)]

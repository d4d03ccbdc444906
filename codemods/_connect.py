"""Expressions that leave the graph for numbers or arrays, written with torch instead.

`0.1 * kl.item()` is `0.1 * kl`; `torch.tensor(np.clip(out.detach().numpy(), 0, 1).mean())` is
`torch.clamp(out, 0, 1).mean()`.  Whatever isn't known to mean the same for tensors makes the whole thing not
mechanical: then there is no fix.
"""

from __future__ import annotations

import ast

from gradfix.findings import Applicability, DropUnusedImport, EnsureImport, Fix, Lift, ReplaceExpression

LEAVING = {"item", "numpy"}  # a call of these is what the tensor itself would be
BESIDE = {"detach", "cpu"}  # what people write before them
WRAPPERS = {"tensor", "as_tensor", "from_numpy", "FloatTensor", "Tensor"}
# Functions of `math` and NumPy of one argument, elementwise, and torch's name.
ELEMENTWISE = {name: name for name in (
    "exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "erf", "erfc", "lgamma", "exp2",
    "asin", "acos", "atan", "asinh", "acosh", "atanh", "abs", "square", "sign", "negative", "reciprocal",
)} | {"fabs": "abs", "absolute": "abs", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh"}
# Of several arguments: the others are numbers.
WITH_NUMBERS = {"pow": "pow", "power": "pow", "clip": "clamp"}
# NumPy's reductions, and what has to be said to torch to get the same.
REDUCTIONS = {"mean": ("mean", ""), "sum": ("sum", ""), "prod": ("prod", ""), "var": ("var", "correction=0"), "std": ("std", "correction=0"),
              "max": ("amax", ""), "amax": ("amax", ""), "min": ("amin", ""), "amin": ("amin", "")}
METHODS = {"mean", "sum", "prod", "reshape"}  # mean the same for arrays and tensors
RENAMED = {"axis": "dim", "keepdims": "keepdim"}


class NotMechanical(Exception):
    pass


def connected(facts, fact, contexts) -> Fix | None:
    """An unsafe fix that keeps the value of a cut in the graph, where that is a matter of notation."""
    syntax = facts.syntax(fact.path)
    node = syntax.find(fact.span, ast.Call)
    if node is None:
        return None
    best = None
    for expression in [node, *syntax.ancestors(node)]:
        if not isinstance(expression, ast.expr):
            break
        if isinstance(expression, ast.Attribute):
            continue  # `.mean` of what is called next
        writing = Writing(facts, fact)
        try:
            writing.tensor(expression)
        except NotMechanical:
            break
        if writing.edits:
            best = writing
    kept = {place for f in contexts for place in f.info["bent"]}
    if best is None or not kept <= best.written:
        return None
    return Fix(Applicability.UNSAFE, "Keep the value in the graph", tuple(best.edits))


class Writing:
    """The edits that make an expression a tensor in the graph, and the places that they take care of."""

    def __init__(self, facts, fact):
        self.path, self.syntax, self.torch = fact.path, facts.syntax(fact.path), fact.info["torch"]
        self.edits: list = []
        self.written: set = set()

    def lift(self, node, inner):
        self.edits.append(Lift(self.path, self.syntax.span(node), self.syntax.span(inner)))

    def tensor(self, node):
        """A number or an array of a tensor becomes that tensor."""
        self.written.add((self.path, self.syntax.span(node)))
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)):
            sides = [s for s in (node.left, node.right) if not is_number(s)]
            if isinstance(node.op, ast.Pow) and is_number(node.left):
                raise NotMechanical
            for side in sides:
                self.tensor(side)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            self.tensor(node.operand)
        elif not isinstance(node, ast.Call):
            raise NotMechanical
        elif isinstance(node.func, ast.Attribute) and node.func.attr in LEAVING and not node.args and not node.keywords:
            self.lift(node, self.graph(node.func.value))
        elif isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and not self.package(node.func):
            self.renamed(node.keywords)
            self.tensor(node.func.value)
        else:
            self.function(node)

    def graph(self, node):
        """`x` of `x.detach().cpu()`."""
        while True:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BESIDE and not node.args:
                inner = node.func.value
            elif isinstance(node, ast.Attribute) and node.attr == "data":
                inner = node.value
            else:
                return node
            self.written.add((self.path, self.syntax.span(node)))
            node = inner

    def function(self, call):
        func, name = call.func, called(call.func)
        package = self.package(func)
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            raise NotMechanical
        if package is None and isinstance(func, ast.Name) and name == "float" and len(call.args) == 1:
            self.lift(call, self.operand(call.args[0]))
        elif package == "torch" and name in WRAPPERS and len(call.args) == 1 and {k.arg for k in call.keywords} <= {"requires_grad"}:
            self.lift(call, call.args[0])
            self.tensor(call.args[0])
        elif package in ("math", "numpy") and name in ELEMENTWISE and len(call.args) == 1 and not call.keywords:
            self.call(call, ELEMENTWISE[name])
        elif package in ("math", "numpy") and name in WITH_NUMBERS and len(call.args) > 1 and all(map(is_number, call.args[1:])) and not call.keywords:
            self.call(call, WITH_NUMBERS[name])
        elif package == "numpy" and name in REDUCTIONS and len(call.args) == 1:
            self.renamed(call.keywords)
            self.call(call, *REDUCTIONS[name])
        else:
            raise NotMechanical

    def call(self, call, name, more=""):
        func = f"{self.torch or 'torch'}.{name}"
        if not more:
            self.edits.append(ReplaceExpression(self.path, self.syntax.span(call.func), func))
        elif call.keywords:
            raise NotMechanical
        else:
            self.edits.append(Lift(self.path, self.syntax.span(call), self.syntax.span(call.args[0]), f"{func}(__expr__, {more})"))
        if self.torch is None:
            self.edits.append(EnsureImport(self.path, "torch"))
        self.edits.append(DropUnusedImport(self.path, root(call.func)))
        first = call.args[0]
        if (inner := self.operand(first)) is not first:
            self.lift(first, inner)

    def operand(self, node):
        """What is given to a function: a number or an array that was made of a tensor, or else the tensor, less its `.detach()`."""
        edits, written = len(self.edits), set(self.written)
        try:
            self.tensor(node)
            return node
        except NotMechanical:
            del self.edits[edits:]
            self.written = written | {(self.path, self.syntax.span(node))}
            if not is_tensor(node):
                raise
            return self.graph(node)

    def renamed(self, keywords):
        from gradfix.findings import RenameKeyword

        for k in keywords:
            if k.arg not in RENAMED:
                raise NotMechanical
            call = self.syntax.parents[k]
            self.edits.append(RenameKeyword(self.path, self.syntax.span(call), k.arg, RENAMED[k.arg]))

    def package(self, func):
        """`numpy` of `np.linalg.norm`; None for a method."""
        module = self.syntax.module
        name = root(func)
        if isinstance(func, ast.Attribute) and not isinstance(func.value, ast.Name) or name is None:
            return None
        for stmt in module.tree.body:
            if isinstance(stmt, ast.Import) and isinstance(func, ast.Attribute):
                for alias in stmt.names:
                    if (alias.asname or alias.name) == name:
                        return alias.name
            elif isinstance(stmt, ast.ImportFrom) and isinstance(func, ast.Name):
                for alias in stmt.names:
                    if (alias.asname or alias.name) == name == alias.name:
                        return stmt.module
        return None


def called(func):
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def root(func):
    while isinstance(func, ast.Attribute):
        func = func.value
    return func.id if isinstance(func, ast.Name) else None


def is_number(node):
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)


def is_tensor(node):
    """May the expression be a tensor itself: `v`, `self.scale`, `x[0]`, `loss.mean()`?"""
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp))

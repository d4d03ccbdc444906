"""Where an expression stands: parents, statements, loops, and which names a statement needs."""

from __future__ import annotations

import ast
from bisect import bisect_left


class Syntax:
    """The parsed module with parent links, found again by span."""

    def __init__(self, module):
        self.module = module
        self.parents: dict[ast.AST, ast.AST] = {}
        self._by_span: dict = {}
        for node in ast.walk(module.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if hasattr(node, "lineno"):
                self._by_span.setdefault((node.lineno, node.end_lineno), []).append(node)

    def find(self, span, kind=ast.AST):
        """The node of that span and kind."""
        for node in self._by_span.get((span.row, span.end_row), ()):
            if isinstance(node, kind) and self.module.span(node) == span:
                return node
        return None

    def ancestors(self, node):
        while (node := self.parents.get(node)) is not None:
            yield node

    def statement(self, node):
        while node is not None and not isinstance(node, ast.stmt):
            node = self.parents.get(node)
        return node

    def suite(self, stmt):
        """The list of statements that holds `stmt`."""
        parent = self.parents.get(stmt)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if isinstance(block, list) and stmt in block:
                return block
        return [stmt]

    def cell(self, suite, stmt):
        """The statements of a suite that stand in the same cell as `stmt`."""
        cells = self.module.cells
        if not cells or suite is not self.module.tree.body:
            return suite
        here = bisect_left(cells, stmt.lineno)
        return [s for s in suite if bisect_left(cells, s.lineno) == here and s.lineno not in cells]

    def displayed(self, stmt) -> bool:
        """Does a notebook show the value of the statement: an expression at the end of a cell?"""
        body = self.module.tree.body
        if not self.module.path.endswith(".ipynb") or not isinstance(stmt, ast.Expr) or stmt not in body:
            return False
        if isinstance(stmt.value, ast.Call) and isinstance(stmt.value.func, ast.Name) and stmt.value.func.id == "print":
            return False  # its value is `None`
        line = self.module.lines[stmt.end_lineno - 1].encode("utf-8")
        return self.cell(body, stmt)[-1] is stmt and not line[stmt.end_col_offset :].lstrip().startswith(b";")

    def span(self, node):
        return self.module.span(node)

    def source(self, node):
        return self.module.source(node)


def assigned(stmt) -> set[str]:
    """Names that a statement binds."""
    return {n.id for n in ast.walk(stmt) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def used(node) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def root_name(node) -> str | None:
    """`p` of `p.grad`, `layer` of `layer.weight.grad`; None where the root is no plain name."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def is_pure(node) -> bool:
    """May the expression be evaluated twice?  Names, attributes, constant and name subscripts."""
    if isinstance(node, (ast.Name, ast.Constant)):
        return True
    if isinstance(node, ast.Attribute):
        return is_pure(node.value)
    if isinstance(node, ast.Subscript):
        return is_pure(node.value) and is_pure(node.slice)
    if isinstance(node, ast.UnaryOp):
        return is_pure(node.operand)
    if isinstance(node, ast.BinOp):
        return is_pure(node.left) and is_pure(node.right)
    return False

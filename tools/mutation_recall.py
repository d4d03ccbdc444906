"""How many mistakes does `check` see?  Real training code, broken mechanically one site at a time.

    python tools/mutation_recall.py SRC_DIR... [--limit 12] [--rules GF301,GF501] [--verbose] [--json FILE]

Each operator below knows one kind of mistake.  It looks for code that does the thing right (a guard, an update under
`no_grad`, a `retain_grad()` whose gradient is read), breaks that one site in the text, and says on which rows the rule
must then report (DESIGN 6, "Where"; one row of slack).  The broken file stays in memory (the overlay of `Project`), the
other files of SRC_DIR are there for the imports, and the file's importers are analysed too.  Sites whose break would be
no mistake are left out, each with a reason that is counted (`no_mistake(...)`).
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import re
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from gradfix.analysis import Facts, Project, observe
from gradfix.codemod import load
from gradfix.source import decode

TRAINS = re.compile(rb"\.grad\b|backward\(|requires_grad|zero_grad|no_grad")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Module)
BACKWARDS = {"backward", "manual_backward"}
IN_PLACE = {
    "add_", "sub_", "mul_", "div_", "addcdiv_", "addcmul_", "copy_", "clamp_", "lerp_", "zero_", "fill_", "data", "clip_",
}  # fmt: skip
TENSOR_OPS = {
    "add", "sub", "mul", "div", "norm", "sum", "mean", "abs", "sign", "clone", "pow", "sqrt", "stack", "cat", "square", "view", "reshape",
    "dot", "matmul", "mm", "clamp", "max", "min", "exp", "log", "flatten", "all", "any", "isnan", "isfinite", "isinf", "allclose", "equal",
    "lerp", "where", "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "full_like", "vector_norm", "all_reduce", "outer",
    "einsum", "bmm", "addcmul", "addcdiv", "maximum", "minimum", "count_nonzero", "sgn", "logical_and", "float", "len",
}  # fmt: skip


# ------------------------------------------------------------------------------------------------ text and tree


@dataclass
class Break:
    rule: str
    form: str
    path: str
    edits: list[tuple[int, int, str]]  # offsets in the text, replacement
    expect: list[tuple]  # ("old", offset) or ("new", edit index, offset in the replacement)
    holder: str = ""
    scope: ast.AST | None = None
    site: ast.AST | None = None
    or_rule: str = ""  # another rule that says the same


class File:
    def __init__(self, path: str, text: str):
        self.path, self.text = path, text
        self.tree = ast.parse(text)
        self.starts = [0]
        for match in re.finditer("\r\n|\r|\n", text):
            self.starts.append(match.end())
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scope_of: dict[ast.AST, ast.AST] = {}
        self._link(self.tree, self.tree)
        self.skipped: collections.Counter = collections.Counter()

    def _link(self, node, scope):
        stack = [(node, scope)]
        while stack:
            node, scope = stack.pop()
            self.scope_of[node] = scope
            inner = node if isinstance(node, SCOPES) else scope
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                stack.append((child, inner))

    def no_mistake(self, rule: str, reason: str):
        self.skipped[rule, reason] += 1

    def line(self, row: int) -> str:
        end = self.starts[row] if row < len(self.starts) else len(self.text)
        return self.text[self.starts[row - 1] : end]

    def _at(self, row, byte_col):
        line = self.line(row)
        return self.starts[row - 1] + (byte_col if line.isascii() else len(line.encode()[:byte_col].decode("utf-8", "replace")))

    def start(self, node) -> int:
        return self._at(node.lineno, node.col_offset)

    def end(self, node) -> int:
        return self._at(node.end_lineno, node.end_col_offset)

    def source(self, node) -> str:
        return self.text[self.start(node) : self.end(node)]

    def indent(self, node) -> str:
        return re.match(r"[ \t\f]*", self.line(node.lineno)).group()

    def alone(self, stmt) -> bool:
        """Does the statement have its rows to itself?"""
        before = self.text[self.starts[stmt.lineno - 1] : self.start(stmt)]
        tail = self.text[self.end(stmt) : self.starts[stmt.end_lineno] if stmt.end_lineno < len(self.starts) else len(self.text)]
        return not before.strip() and (not tail.strip() or tail.strip().startswith("#"))

    def rows(self, first: int, last: int) -> tuple[int, int]:
        """The offsets of whole rows."""
        return self.starts[first - 1], self.starts[last] if last < len(self.starts) else len(self.text)

    def suite(self, stmt) -> list | None:
        parent = self.parents.get(stmt)
        for name in ("body", "orelse", "finalbody", "handlers"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and stmt in block:
                return block
        return None

    def remove(self, stmt) -> list[tuple[int, int, str]] | None:
        """Edits that take a statement out."""
        suite = self.suite(stmt)
        if suite is None or not self.alone(stmt):
            return None
        if len(suite) == 1:
            return [(self.start(stmt), self.end(stmt), "pass")]
        return [(*self.rows(stmt.lineno, stmt.end_lineno), "")]

    def unwrap(self, stmt) -> list[tuple[int, int, str]] | None:
        """Edits that put the body of a compound statement in its place."""
        body = stmt.body
        if not self.alone_head(stmt):
            return None
        if body[0].lineno == stmt.lineno:  # if x: y
            return [(self.start(stmt), self.start(body[0]), "")] if body[-1].end_lineno == stmt.lineno else None
        outer, inner = self.indent(stmt), self.indent(body[0])
        if not inner.startswith(outer):
            return None
        cut = inner[len(outer) :]
        inside = set()  # rows that begin inside a string
        for node in ast.walk(stmt):
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno > node.lineno and not isinstance(getattr(node, "value", ""), (int, float)):
                inside.update(range(node.lineno + 1, node.end_lineno + 1))
        head_end = self._head_end(stmt)
        edits = [(*self.rows(stmt.lineno, head_end), "")]
        for row in range(head_end + 1, body[-1].end_lineno + 1):
            line = self.line(row)
            if row not in inside and line.startswith(inner):
                edits.append((self.starts[row - 1] + len(outer), self.starts[row - 1] + len(outer) + len(cut), ""))
        return edits

    def _head_end(self, stmt) -> int:
        """The last row of `if …:` / `with …:`."""
        row = stmt.lineno
        last = stmt.test.end_lineno if isinstance(stmt, ast.If) else max(i.context_expr.end_lineno for i in stmt.items)
        row = last
        while not re.search(r":\s*(#.*)?$", self.line(row).rstrip("\r\n")) and row < stmt.body[0].lineno - 1:
            row += 1
        return row

    def alone_head(self, stmt) -> bool:
        return not self.text[self.starts[stmt.lineno - 1] : self.start(stmt)].strip()

    def ancestors(self, node):
        while (node := self.parents.get(node)) is not None:
            yield node

    def nodes(self, scope):
        """What stands in a scope, nested functions left out, in text order."""
        out, stack = [], list(ast.iter_child_nodes(scope))
        while stack:
            node = stack.pop()
            out.append(node)
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                stack.extend(ast.iter_child_nodes(node))
        return sorted((n for n in out if hasattr(n, "lineno")), key=lambda n: (n.lineno, n.col_offset))

    def statement(self, node):
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node


def same(a, b) -> bool:
    return dump(a) == dump(b)


def dump(node) -> str:
    return re.sub(r"ctx=\w+\(\)", "", ast.dump(node))


def root_name(node) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def last_name(func) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def is_grad(node) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "grad"


def is_backward(node) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BACKWARDS


def true(node) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def none_test(node):
    """(holder, is it `is not None`) of a test of `holder.grad`."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and is_grad(node.left):
        right = node.comparators[0]
        if isinstance(right, ast.Constant) and right.value is None:
            if isinstance(node.ops[0], (ast.Is, ast.Eq)):
                return node.left.value, False
            if isinstance(node.ops[0], (ast.IsNot, ast.NotEq)):
                return node.left.value, True
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and (inner := none_test(node.operand)):
        return inner[0], not inner[1]
    return None


def is_no_grad(node) -> bool:
    text = ast.unparse(node)
    return re.fullmatch(r"(?:\w+\.)*(?:no_grad(?:\(\))?|set_grad_enabled\(False\))", text) is not None


def guards_of(file: File, node, skip=()):
    """Holders (dumped) proven non-None at a node by what encloses it or leaves early before it."""
    out = set()
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp)) and parent not in skip:
            in_body = child in parent.body if isinstance(parent.body, list) else child is parent.body
            for test in conjuncts(parent.test, ast.And):
                if (t := none_test(test)) and t[1] == in_body:
                    out.add(dump(t[0]))
        if isinstance(child, ast.stmt) and (suite := file.suite(child)):
            for earlier in suite[: suite.index(child)]:
                if isinstance(earlier, ast.If) and earlier not in skip and isinstance(earlier.body[-1], (ast.Continue, ast.Return, ast.Raise, ast.Break)):
                    for test in conjuncts(earlier.test, ast.Or):
                        if (t := none_test(test)) and not t[1]:
                            out.add(dump(t[0]))
                if isinstance(earlier, ast.Assert):
                    for test in conjuncts(earlier.test, ast.And):
                        if (t := none_test(test)) and t[1]:
                            out.add(dump(t[0]))
        child = parent
    return out


def conjuncts(test, op):
    return list(test.values) if isinstance(test, ast.BoolOp) and isinstance(test.op, op) else [test]


# ------------------------------------------------------------------------------------------------ what a use of None does


def raises_on_none(file: File, node) -> bool:
    """Does the expression that holds `node` raise when node is None?"""
    parent = file.parents.get(node)
    if isinstance(parent, (ast.Attribute, ast.Subscript)):
        return parent.value is node
    if isinstance(parent, (ast.BinOp, ast.UnaryOp, ast.AugAssign)):
        return not (isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not))
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, (ast.Lt, ast.Gt, ast.LtE, ast.GtE)) for op in parent.ops)
    if isinstance(parent, ast.Call) and node in parent.args:
        name = last_name(parent.func)
        owner = root_name(parent.func)
        return name in IN_PLACE or (name in TENSOR_OPS and owner in {"torch", "F", "np", "math", "dist"} and name != "float")
    return False


def body_nodes(stmts):
    out = []
    for stmt in stmts:
        for node in ast.walk(stmt):
            if hasattr(node, "lineno"):
                out.append(node)
    return sorted(out, key=lambda n: (n.lineno, n.col_offset))


# ------------------------------------------------------------------------------------------------ operators


def strip_guard(file: File):
    """GF301: take a `None` guard of a gradient away."""
    for node in ast.walk(file.tree):
        scope = file.scope_of.get(node)
        if isinstance(node, ast.If):
            for test in conjuncts(node.test, ast.And if not isinstance(node.body[-1], (ast.Continue, ast.Return)) else ast.Or):
                if not (found := none_test(test)):
                    continue
                holder, positive = found
                alone = test is node.test
                if positive and (not node.orelse or not alone):
                    nodes = body_nodes(node.body)
                    form = "if not None"
                    edits = file.unwrap(node) if alone else drop_operand(file, node.test, test)
                elif not positive and not node.orelse and isinstance(node.body[-1], ast.Continue):
                    suite = file.suite(node)
                    if suite is None:
                        continue
                    nodes = body_nodes(suite[suite.index(node) + 1 :])
                    form = "continue"
                    edits = file.remove(node) if alone else drop_operand(file, node.test, test)
                else:
                    continue
                if edits is None:
                    continue
                if not alone:
                    form += " (one of several tests)"
                yield from guard_break(file, node, holder, nodes, edits, form, scope)
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
            for generator in node.generators:
                for test in generator.ifs:
                    for part in conjuncts(test, ast.And):
                        if (found := none_test(part)) and found[1]:
                            if part is test:
                                at = file.text.rfind("if", 0, file.start(test))
                                edits = [(at, file.end(test), "")]
                                while file.text[edits[0][0] - 1] in " \t":
                                    edits = [(edits[0][0] - 1, edits[0][1], "")]
                                if file.text[edits[0][1] - 1] == ")" or file.text[edits[0][1]] == ")" and file.text[at:edits[0][1]].count("(") > file.text[at:edits[0][1]].count(")"):
                                    continue
                            else:
                                edits = drop_operand(file, test, part)
                            head = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                            nodes = sorted((n for e in head for n in ast.walk(e) if hasattr(n, "lineno")), key=lambda n: (n.lineno, n.col_offset))
                            yield from guard_break(file, node, found[0], nodes, edits, "comprehension", scope)
        elif isinstance(node, ast.IfExp) and (found := none_test(node.test)):
            keep = node.body if found[1] else node.orelse
            nodes = sorted((n for n in ast.walk(keep) if hasattr(n, "lineno")), key=lambda n: (n.lineno, n.col_offset))
            edits = [(file.start(node), file.start(keep), ""), (file.end(keep), file.end(node), "")]
            yield from guard_break(file, node, found[0], nodes, edits, "conditional expression", scope)


def drop_operand(file: File, whole, operand):
    index = whole.values.index(operand)
    if index:
        return [(file.end(whole.values[index - 1]), file.end(operand), "")]
    return [(file.start(operand), file.start(whole.values[1]), "")]


def guard_break(file: File, site, holder, nodes, edits, form, scope):
    skip = (site,)
    if dump(holder) in guards_of(file, site, skip):
        return file.no_mistake("GF301", "a second guard stays")
    uses = first_uses(file, nodes, holder, site)
    if not uses:
        return file.no_mistake("GF301", "nothing that the guard protected raises on None")
    name = root_name(holder)
    loops = loop_vars(file, site)
    if filtered(file, scope, site, name):
        return file.no_mistake("GF301", "the parameters were filtered before")
    if name not in loops and not isinstance(scope, ast.Lambda):
        if proven_by_backward(file, site, holder, scope):
            return file.no_mistake("GF301", "a leaf on the path of a backward that ran just before: its gradient is there")
    yield Break("GF301", form, file.path, edits, [("old", o) for o in uses], ast.unparse(holder), scope, site)


def first_uses(file: File, nodes, holder, site):
    """Offsets at which the missing guard shows: reads of `holder.grad` up to the first that raises (through one alias)."""
    places, aliases = [], {}
    for node in nodes:
        if is_grad(node) and same(node.value, holder):
            stmt = file.statement(node)
            if dump(holder) in guards_of(file, node, (site,)):
                continue
            if isinstance(node.ctx, ast.Store) and not isinstance(stmt, ast.AugAssign):
                if isinstance(stmt, ast.Assign) and any(is_grad(n) and same(n.value, holder) and isinstance(n.ctx, ast.Load) for n in ast.walk(stmt.value)):
                    continue
                return places if places and aliases else None
            if none_test(file.parents.get(node)):
                continue
            if raises_on_none(file, node):
                return [*places, file.start(node)]
            if isinstance(stmt, ast.Assign) and stmt.value is node and isinstance(stmt.targets[0], ast.Name):
                places.append(file.start(node))
                aliases[stmt.targets[0].id] = stmt
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in aliases and raises_on_none(file, node):
            return [*places, file.start(node)]
    return None


def loop_vars(file: File, node) -> set[str]:
    out = set()
    if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
        for g in node.generators:
            out |= {n.id for n in ast.walk(g.target) if isinstance(n, ast.Name)}
    for parent in file.ancestors(node):
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            out |= {n.id for n in ast.walk(parent.target) if isinstance(n, ast.Name)}
        elif isinstance(parent, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
            for g in parent.generators:
                out |= {n.id for n in ast.walk(g.target) if isinstance(n, ast.Name)}
    return out


def filtered(file: File, scope, site, name) -> bool:
    """Does the loop run over a list that was already filtered by `.grad is not None`?"""
    for parent in [site, *file.ancestors(site)]:
        if isinstance(parent, ast.For) and name in {n.id for n in ast.walk(parent.target) if isinstance(n, ast.Name)}:
            names = {n.id for n in ast.walk(parent.iter) if isinstance(n, ast.Name)}
            for node in file.nodes(scope):
                if isinstance(node, ast.Assign) and {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)} & names:
                    if any(none_test(n) for n in ast.walk(node.value)):
                        return True
    return False


def proven_by_backward(file: File, site, holder, scope) -> bool:
    for node in file.nodes(scope):
        if (node.lineno, node.col_offset) >= (site.lineno, site.col_offset):
            break
        if is_backward(node):
            stmt = file.statement(node)
            if file.suite(stmt) is not None and (file.parents[stmt] in [*file.ancestors(site)]):
                return True
    return False


def drop_retain_grad(file: File):
    """GF101: drop `retain_grad()` of a tensor whose `.grad` is read."""
    for node in ast.walk(file.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "retain_grad"):
            continue
        stmt = file.parents.get(node)
        holder, scope = node.func.value, file.scope_of[node]
        if not isinstance(stmt, ast.Expr):
            continue
        reads = [n for n in file.nodes(scope) if is_grad(n) and isinstance(n.ctx, ast.Load) and same(n.value, holder) and n.lineno > node.lineno]
        if not reads and isinstance(holder, ast.Attribute):
            reads = [n for n in ast.walk(file.tree) if is_grad(n) and isinstance(n.ctx, ast.Load) and isinstance(n.value, ast.Attribute) and n.value.attr == holder.attr]
        if not reads and (name := root_name(holder)) in loop_vars(file, node):
            reads = [n for n in ast.walk(file.tree) if is_grad(n) and isinstance(n.ctx, ast.Load) and n.lineno > node.lineno and file.scope_of[n] is scope]
        if not reads:
            file.no_mistake("GF101", "no read of that gradient in sight")
            continue
        if isinstance(holder, ast.Name) and leaf_made(file, scope, holder, node):
            file.no_mistake("GF101", "retain_grad() of a leaf does nothing")
            continue
        if any(
            isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in {"retain_grad", "requires_grad_"} and n is not node
            and same(n.func.value, holder) for n in file.nodes(scope)
        ):
            file.no_mistake("GF101", "a second retain_grad() stays")
            continue
        if (edits := file.remove(stmt)) is not None:
            yield Break("GF101", "drop retain_grad()", file.path, edits, [("old", file.start(n)) for n in reads], ast.unparse(holder), scope, node)


def leaf_made(file: File, scope, holder, before) -> bool:
    made = None
    for node in file.nodes(scope):
        if node.lineno >= before.lineno:
            break
        if isinstance(node, ast.Assign) and any(same(t, holder) for t in node.targets):
            made = "requires_grad" in ast.unparse(node.value) and not isinstance(node.value, ast.BinOp)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) and t.attr == "requires_grad" and same(t.value, holder) for t in node.targets):
            made = True
    return bool(made)


def leafish(file: File, scope) -> dict[str, str]:
    """Access paths (dumped) that stand for leaves that require grad, and why."""
    out = {}
    for node in file.nodes(scope):
        if is_grad(node):
            out.setdefault(dump(node.value), "its .grad is used")
        if isinstance(node, (ast.For, ast.comprehension)) and re.search(r"parameters\(\)|\[[\"']params[\"']\]", ast.unparse(node.iter)):
            if "named_parameters" in ast.unparse(node.iter):
                if isinstance(node.target, ast.Tuple):
                    out.setdefault(dump(node.target.elts[-1]), "parameter")
            elif isinstance(node.target, ast.Name):
                out.setdefault(dump(node.target), "parameter")
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and re.search(r"requires_grad(=True|_\(\))|nn\.Parameter\(", ast.unparse(node.value)):
            out.setdefault(dump(node.targets[0]), "made to require grad")
    return out


def grad_names(file: File, scope) -> set[str]:
    out = set()
    for node in file.nodes(scope):
        if isinstance(node, ast.Assign) and any(is_grad(n) for n in ast.walk(node.value)):
            out |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return out


def updated(stmt):
    """(target without `.data`, had it `.data`, value or call) of an in-place update statement."""
    if isinstance(stmt, ast.AugAssign):
        target = stmt.target
    elif isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call) and isinstance(stmt.value.func, ast.Attribute) and stmt.value.func.attr in IN_PLACE:
        target = stmt.value.func.value
        while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute) and target.func.attr in IN_PLACE:
            target = target.func.value  # p.mul_(a).add_(b)
    elif isinstance(stmt, ast.Assign) and len(stmt.targets) == 1 and isinstance(stmt.targets[0], ast.Subscript):
        target = stmt.targets[0].value
    elif isinstance(stmt, ast.Assign) and len(stmt.targets) == 1 and isinstance(stmt.targets[0], ast.Attribute) and stmt.targets[0].attr == "data":
        target = stmt.targets[0]
    else:
        return None
    if isinstance(target, ast.Attribute) and target.attr == "data":
        return target.value, True
    return target, False


def no_grad_around(file: File, node):
    for parent in file.ancestors(node):
        if isinstance(parent, (ast.With, ast.AsyncWith)) and any(is_no_grad(i.context_expr) for i in parent.items):
            return parent
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in parent.decorator_list:
                if is_no_grad(decorator):
                    return decorator
            return None
    return None


def leaf_updates(file: File, within):
    for node in body_nodes(within):
        if isinstance(node, ast.stmt) and (found := updated(node)):
            scope = file.scope_of[node]
            if isinstance(scope, ast.ClassDef):
                continue
            why = file.__dict__.setdefault("_leafish", {}).setdefault(scope, None) or file._leafish.__setitem__(scope, leafish(file, scope)) or file._leafish[scope]
            if dump(found[0]) in why:
                yield node, *found, why[dump(found[0])]


def out_of_no_grad(file: File):
    """GF502: take an update of a leaf out of `no_grad`, or its `.data` away."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.With) and len(node.items) == 1 and is_no_grad(node.items[0].context_expr):
            if no_grad_around(file, node) is not None:
                file.no_mistake("GF502", "a second no_grad stays around it")
                continue
            hits = [u for u in leaf_updates(file, node.body) if not u[2] and not isinstance(u[0], ast.FunctionDef)]
            hits = [u for u in hits if no_grad_around(file, u[0]) is node]
            if not hits:
                continue
            if (edits := file.unwrap(node)) is not None:
                yield Break("GF502", "with no_grad unwrapped", file.path, edits, update_rows(file, node, hits), ast.unparse(hits[0][1]), file.scope_of[node], hits[0][0])
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(is_no_grad(d) for d in node.decorator_list):
            decorator = next(d for d in node.decorator_list if is_no_grad(d))
            hits = [u for u in leaf_updates(file, node.body) if not u[2] and file.scope_of[u[0]] is node]
            if not hits or not file.line(decorator.lineno).strip().startswith("@"):
                continue
            if not calls_update(file, node):
                file.no_mistake("GF502", "a helper that others may call under no_grad")
                continue
            yield Break("GF502", "@no_grad removed", file.path, [(*file.rows(decorator.lineno, decorator.end_lineno), "")], update_rows(file, node, hits), ast.unparse(hits[0][1]), node, hits[0][0])
    for scope in [n for n in ast.walk(file.tree) if isinstance(n, (ast.Module, ast.FunctionDef))]:
        grads = grad_names(file, scope)
        for node, target, data, why in list(leaf_updates(file, scope.body)):
            if not data or file.scope_of[node] is not scope or isinstance(node, ast.Assign) or no_grad_around(file, node) is not None:
                continue
            attribute = next((n for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr == "data" and same(n.value, target)), None)
            if attribute is None or why != "its .grad is used" and not uses_gradient(node, target, grads):
                continue
            if not isinstance(scope, ast.Module) and not calls_update(file, scope):
                file.no_mistake("GF502", "a helper that others may call under no_grad")
                continue
            yield Break("GF502", ".data dropped", file.path, [(file.end(attribute.value), file.end(attribute), "")], [("old", file.start(node))], ast.unparse(target), scope, node)


def update_rows(file: File, block, hits):
    """The first update of the leaf; and updates of a name that may stand for it (`p_fp32 = p`)."""
    target = hits[0][1]
    aliases = set()
    for node in ast.walk(block):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            if any(same(v, target) for v in values):
                aliases.add(node.targets[0].id)
    rows = [("old", file.start(hits[0][0]))]
    for node in ast.walk(block):
        if isinstance(node, ast.stmt) and (found := updated(node)) and isinstance(found[0], ast.Name) and found[0].id in aliases:
            rows.append(("old", file.start(node)))
    return rows


def calls_update(file: File, function) -> bool:
    """Is the function one that runs with grad mode on: an optimizer's `step`, or one that calls backward itself, or that someone
    in the file calls outside `no_grad`?"""
    if function.name in {"step", "first_step", "second_step", "__call__", "main", "train", "forward"}:
        return True
    if any(is_backward(n) for n in ast.walk(function)):
        return True
    calls = [n for n in ast.walk(file.tree) if isinstance(n, ast.Call) and last_name(n.func) == function.name]
    return bool(calls) and not any(no_grad_around(file, c) is not None for c in calls)


def uses_gradient(stmt, target, names) -> bool:
    for node in ast.walk(stmt):
        if is_grad(node) or isinstance(node, ast.Name) and node.id in names:
            return True
    return False


def rebinding(file: File):
    """GF501: an in-place update becomes a rebinding."""
    for scope in [n for n in ast.walk(file.tree) if isinstance(n, (ast.Module, ast.FunctionDef))]:
        grads = grad_names(file, scope)
        for node, target, data, why in list(leaf_updates(file, scope.body)):
            if file.scope_of[node] is not scope or not isinstance(target, (ast.Name, ast.Attribute)):
                continue
            under = no_grad_around(file, node)
            if under is None and not data:
                continue
            if not uses_gradient(node, target, grads) and why != "its .grad is used":
                continue
            name = file.source(target)
            loops = [a for a in file.ancestors(node) if isinstance(a, (ast.For, ast.While))]
            after = [n for n in file.nodes(scope) if n.lineno > node.end_lineno or loops and loops[-1].lineno <= n.lineno < node.lineno]
            releaf = [
                n for n in after
                if isinstance(n, ast.Assign) and any(isinstance(t, ast.Attribute) and t.attr == "requires_grad" and same(t.value, target) for t in n.targets)
                or isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "requires_grad_" and root_name(n.func) == root_name(target)
                or isinstance(n, ast.Assign) and any(same(t, target) for t in n.targets) and "requires_grad" in ast.unparse(n.value)
            ]
            if releaf and not (isinstance(target, ast.Name) and target.id in for_targets(loops[:1])):
                file.no_mistake("GF501", "the name is made a leaf again before it is used")
                continue
            if isinstance(target, ast.Name) and target.id not in for_targets(loops) and not loops and not any(isinstance(n, ast.Name) and n.id == target.id for n in after):
                file.no_mistake("GF501", "the name is not used again")
                continue
            if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
                op = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(node.op)]
                value = file.source(node.value)
                if isinstance(node.value, (ast.BinOp, ast.IfExp)) and op != "+":
                    value = f"({value})"
                edits, form = [(file.start(node), file.start(node.value), f"{name} = {name} {op} "), (file.start(node.value), file.end(node.value), value)], "augmented"
            elif isinstance(node, ast.Expr):
                call = node.value
                if call.func.attr in {"copy_", "zero_", "fill_"} or not isinstance(call.func.value, (ast.Name, ast.Attribute)):
                    continue
                edits = [(file.start(node), file.end(call.func), f"{name} = {name}.{call.func.attr.rstrip('_')}")]
                form = "method"
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                edits, form = [(file.start(node), file.end(node.targets[0]), name)], "X.data = …"
                old = [n for n in ast.walk(node.value) if same(n, target) or same(n, node.targets[0])]
                if not old or not any(isinstance(n, ast.BinOp) for n in ast.walk(node.value)):
                    file.no_mistake("GF501", "a new value, not an update of the old one")
                    continue
            else:
                continue
            yield Break("GF501", form + ("" if under is not None else " (.data, grad mode on)"), file.path, edits, [("old", file.start(node))], name, scope, node)


def for_targets(loops) -> set[str]:
    return {n.id for loop in loops if isinstance(loop, ast.For) for n in ast.walk(loop.target) if isinstance(n, ast.Name)}


def flag_sites(file: File):
    """(holder, statement, edits that drop the flag, node of the flag, its creation or None)"""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.keyword) and node.arg == "requires_grad" and true(node.value):
            call = file.parents[node]
            stmt = file.statement(call)
            if not (isinstance(stmt, ast.Assign) and len(stmt.targets) == 1 and isinstance(call, ast.Call)):
                continue
            value = stmt.value
            if not on_spine(value, call):
                continue
            args = [*call.args, *call.keywords]
            index = args.index(node)
            start = file.start(node)
            if index:
                start = file.end(args[index - 1])
                end = file.end(node)
            else:
                end = file.start(args[1]) if len(args) > 1 else file.end(node)
            yield stmt.targets[0], stmt, [(start, end, "")], call, call
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_" and (not node.args or true(node.args[0])):
            stmt = file.statement(node)
            if isinstance(stmt, ast.Expr) and stmt.value is node:
                edits = file.remove(stmt)
                if edits:
                    yield node.func.value, stmt, edits, node, None
            elif isinstance(stmt, ast.Assign) and len(stmt.targets) == 1 and on_spine(stmt.value, node):
                yield stmt.targets[0], stmt, [(file.end(node.func.value), file.end(node), "")], node, node
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr == "requires_grad" and true(node.value):
            if edits := file.remove(node):
                yield node.targets[0].value, node, edits, node, None


def on_spine(value, call) -> bool:
    """Is `call` the receiver chain of `value` (x = call.method().…)?"""
    while True:
        if value is call:
            return True
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func.value
        elif isinstance(value, ast.Attribute):
            value = value.value
        else:
            return False


def gradient_reads(file: File, holder, stmt, scope):
    """Reads of `holder.grad` and `autograd.grad(…, holder)` after the statement (or anywhere in a loop that holds both)."""
    loops = [a for a in file.ancestors(stmt) if isinstance(a, (ast.For, ast.While))]
    for node in file.nodes(scope):
        if node.lineno <= stmt.end_lineno and not (loops and node.lineno >= loops[-1].lineno):
            continue
        if isinstance(node, ast.Assign) and node.lineno > stmt.lineno and any(same(t, holder) for t in node.targets):
            if file.parents[node] in [file.parents[stmt], scope]:
                return  # from here on the name is another tensor
        if is_grad(node) and same(node.value, holder) and isinstance(node.ctx, ast.Load):
            parent = file.parents[node]
            if none_test(parent) or dump(holder) in guards_of(file, node):
                continue
            if isinstance(parent, ast.Call) and last_name(parent.func) == "assertIsNone":
                continue
            yield node


def drop_flag(file: File):
    """GF201: `requires_grad=True` of a tensor whose gradient is read is dropped."""
    for holder, stmt, edits, node, creation in flag_sites(file):
        scope = file.scope_of[stmt]
        reads = list(gradient_reads(file, holder, stmt, scope))
        if not reads:
            continue
        if not any(is_backward(n) or last_name(n.func) == "backward" for n in file.nodes(scope) if isinstance(n, ast.Call)):
            file.no_mistake("GF201", "no backward in that function")
            continue
        others = [s for s in flag_sites(file) if s[1] is not stmt and file.scope_of[s[1]] is scope and same(s[0], holder)]
        if others:
            file.no_mistake("GF201", "the flag is set a second time")
            continue
        moved = isinstance(node, ast.Call) and last_name(node.func) == "requires_grad_" and same(node.func.value, holder)  # x = x.requires_grad_()
        if (creation is None or moved) and isinstance(holder, ast.Name) and from_caller(file, scope, holder, stmt):
            file.no_mistake("GF201", "the tensor comes from the caller, who may have set the flag")
            continue
        if creation is not None and "Parameter(" in ast.unparse(stmt.value):
            file.no_mistake("GF201", "a Parameter requires grad anyway")
            continue
        form = "keyword" if isinstance(creation, ast.Call) and last_name(creation.func) != "requires_grad_" else "requires_grad_()" if isinstance(node, ast.Call) else "x.requires_grad = True"
        # a clone of what may require grad: without the flag its gradient is None either way, as no leaf or as no graph tensor
        clone = "GF101" if re.search(r"\.clone\(\)$", ast.unparse(creation.func.value) if isinstance(node, ast.Call) and creation is not None and isinstance(creation.func, ast.Attribute) else "") else ""
        yield Break("GF201", form, file.path, edits, [("old", file.start(r)) for r in reads], ast.unparse(holder), scope, stmt, clone)


def from_caller(file: File, scope, holder, stmt) -> bool:
    """Is the name a parameter of the function, as it came or only moved (`.to`, `.cuda`)?"""
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    arguments = {a.arg for a in [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]}
    if holder.id not in arguments:
        return False
    for node in file.nodes(scope):
        if node.lineno >= stmt.lineno:
            break
        if isinstance(node, ast.Assign) and any(isinstance(n, ast.Name) and n.id == holder.id for t in node.targets for n in ast.walk(t)):
            if re.search(r"detach|\.data\b|Variable|tensor\(|from_numpy", ast.unparse(node.value)):
                return False
    return True


def make_integer(file: File):
    """GF202: the literal of a tensor that requires grad is made integer."""
    for holder, stmt, _, node, creation in flag_sites(file):
        value = creation if creation is not None else None
        if value is None:  # x = torch.tensor(…) … x.requires_grad_()
            scope = file.scope_of[stmt]
            made = [n for n in file.nodes(scope) if isinstance(n, ast.Assign) and n.lineno < stmt.lineno and any(same(t, holder) for t in n.targets)]
            if not made or not isinstance(made[-1].value, ast.Call):
                continue
            value = made[-1].value
        factory = next((n for n in ast.walk(value) if isinstance(n, ast.Call) and last_name(n.func) in {"tensor", "ones", "zeros", "full", "arange"} and root_name(n.func) in {"torch", "t"}), None)
        if factory is None or any(k.arg == "dtype" and not re.search(r"float|double", ast.unparse(k.value)) for k in factory.keywords):
            continue
        if re.search(r"\.(float|double|half|to|type|long|div|mul|sqrt)\(", ast.unparse(value).replace(ast.unparse(factory), "")):
            continue
        if any(k.arg is None for k in factory.keywords):
            file.no_mistake("GF202", "keywords from elsewhere may set the dtype")
            continue
        if value is not factory and any(isinstance(a, (ast.BinOp, ast.IfExp)) for a in file.ancestors(factory) if a in set(ast.walk(value))):
            file.no_mistake("GF202", "an expression around it makes it float again")
            continue
        name = last_name(factory.func)
        dtypes = [k for k in factory.keywords if k.arg == "dtype"]
        edits, form = [], ""
        if dtypes:
            edits, form = [(file.start(dtypes[0].value), file.end(dtypes[0].value), f"{root_name(factory.func)}.long")], "dtype"
        elif name in {"ones", "zeros"} and factory.args and not isinstance(factory.args[-1], ast.GeneratorExp):
            edits, form = [(file.end(factory.args[-1]), file.end(factory.args[-1]), f", dtype={root_name(factory.func)}.long")], "dtype"
            if any(isinstance(a, ast.Starred) for a in factory.args):
                continue
        elif factory.args:
            literals = [n for a in factory.args for n in ast.walk(a) if isinstance(n, ast.Constant)]
            others = [n for a in factory.args for n in ast.walk(a) if isinstance(n, (ast.Name, ast.Call))]
            if not literals or others or not any(isinstance(n.value, float) for n in literals):
                continue
            edits = [(file.start(n), file.end(n), str(int(n.value))) for n in literals if isinstance(n.value, float)]
            form = "literal"
        if not edits or any(e[0] >= e[1] and not e[2] for e in edits):
            continue
        yield Break("GF202", form, file.path, sorted(edits), [("old", file.start(factory)), ("old", file.start(stmt))], ast.unparse(holder), file.scope_of[stmt], factory)


TYPOS = ["require_grad", "requires_gradient", "requires_grads", "requires_gard", "require_grads", "required_grad"]


def misspell(file: File):
    """GF203: the name of the flag is misspelt where it is set on a tensor."""
    for node in ast.walk(file.tree):
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr == "requires_grad"):
            continue
        target = node.targets[0]
        name = target.value
        scope = file.scope_of[node]
        if isinstance(name, ast.Name) and name.id == "self":
            file.no_mistake("GF203", "an attribute of one's own class")
            continue
        if re.search(r"(?i)model|net\b|module|encoder|decoder|layer$|vae|unet|backbone|discriminator|generator", ast.unparse(name).split(".")[-1]) and not (
            isinstance(name, ast.Name) and name.id in loop_vars(file, node) and "parameters" in ast.unparse(next((a.iter for a in file.ancestors(node) if isinstance(a, ast.For)), ast.Constant(0)))
        ):
            file.no_mistake("GF203", "a module: there the right name does nothing either (GF206)")
            continue
        if isinstance(name, ast.Attribute) and root_name(name) == "self" and name.attr not in {"weight", "bias"}:
            if not re.search(rf"self\.{name.attr} = (?:nn\.|torch\.nn\.)?(?:Parameter|torch\.\w+)\(", file.text):
                file.no_mistake("GF203", "an attribute that may be a module")
                continue
        typo = TYPOS[node.lineno % len(TYPOS)]
        start = file.end(target.value)
        loop = isinstance(name, ast.Name) and name.id in loop_vars(file, node)
        form = "loop over parameters" if loop else "tensor"
        yield Break("GF203", form, file.path, [(start, file.end(target), f".{typo}")], [("old", file.start(node))], ast.unparse(name), scope, node)


def zero_grad_moved(file: File):
    """GF302: `zero_grad()` ends up between backward and step."""
    for parent in ast.walk(file.tree):
        for name in ("body", "orelse", "finalbody"):
            suite = getattr(parent, name, None)
            if not isinstance(suite, list) or len(suite) < 3:
                continue
            zeros, backs, steps = {}, [], {}
            for i, stmt in enumerate(suite):
                value = stmt.value if isinstance(stmt, (ast.Expr, ast.Assign)) else None
                if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
                    continue
                attr, receiver = value.func.attr, value.func.value
                if attr == "zero_grad":
                    zeros.setdefault(dump(receiver), []).append((i, receiver))
                elif attr in BACKWARDS:
                    backs.append(i)
                elif attr == "step" and value.args and isinstance(value.args[0], (ast.Name, ast.Attribute)):
                    steps.setdefault(dump(value.args[0]), []).append(i)  # scaler.step(optimizer)
                elif attr == "step":
                    steps.setdefault(dump(receiver), []).append(i)
            for key, found in zeros.items():
                for i, receiver in found:
                    stmt = suite[i]
                    mine = steps.get(key, [])
                    behind = [j for j in mine if j > i]
                    before = [j for j in mine if j < i]
                    if not file.alone(stmt) or stmt.lineno != stmt.end_lineno:
                        continue
                    row = file.rows(stmt.lineno, stmt.end_lineno)
                    if behind and (between := [b for b in backs if i < b < behind[0]]):
                        target = suite[behind[0]]
                        if not any(isinstance(n, ast.Call) and last_name(n.func) == "zero_grad" for s in suite[i + 1 : behind[0]] for n in ast.walk(s)):
                            line = file.text[row[0] : row[1]]
                            line = file.indent(target) + line.strip() + "\n"
                            at = file.starts[suite[between[-1]].end_lineno] if suite[between[-1]].end_lineno < len(file.starts) else None
                            if at is None or not file.alone(suite[between[-1]]):
                                continue
                            yield Break("GF302", "moved behind backward", file.path, [(row[0], row[1], ""), (at, at, line)], [("new", 1, len(file.indent(target)))], ast.unparse(receiver), file.scope_of[stmt], stmt)
                    elif before and [b for b in backs if b < before[-1]]:
                        target = suite[before[-1]]
                        if not file.alone(target):
                            continue
                        at = file.starts[target.lineno - 1]
                        line = file.indent(target) + file.text[row[0] : row[1]].strip() + "\n"
                        yield Break("GF302", "swapped with step", file.path, [(at, at, line), (row[0], row[1], "")], [("new", 0, len(file.indent(target)))], ast.unparse(receiver), file.scope_of[stmt], stmt)


LOSSY = re.compile(r"(?i)loss|criterion|_entropy|mse|bce|nll|penalty|\bl1|\bkl|err|cost|reg|divergence|entropy|objective")


def item_of_term(file: File):
    """GF401: `.item()` behind a term of a sum on which backward is called."""
    for scope in [n for n in ast.walk(file.tree) if isinstance(n, (ast.Module, ast.FunctionDef))]:
        losses = {}
        nodes = file.nodes(scope)
        for node in nodes:
            if is_backward(node):
                of = node.args[0] if node.args and isinstance(node.args[0], (ast.Name, ast.BinOp)) and root_name(node.func.value) in {"accelerator", "self", "fabric"} else node.func.value
                if isinstance(of, ast.Name):
                    losses.setdefault(of.id, node)
        if not losses:
            continue
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and node.targets[0].id in losses:
                terms = additive(node.value)
                if len(terms) < 2:
                    continue
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in losses and isinstance(node.op, (ast.Add, ast.Sub)):
                terms = additive(node.value)
            else:
                continue
            loss = node.targets[0].id if isinstance(node, ast.Assign) else node.target.id
            if losses[loss].lineno < node.lineno and not any(isinstance(a, (ast.For, ast.While)) for a in file.ancestors(node)):
                continue
            for term in terms:
                factor = tensor_factor(term, scope, file, loss, node)
                if factor is None:
                    continue
                if isinstance(factor, str):
                    file.no_mistake("GF401", factor)
                    continue
                end = file.end(factor)
                form = "augmented" if isinstance(node, ast.AugAssign) else "sum"
                yield Break("GF401", form, file.path, [(end, end, ".item()")], [("new", 0, 0)], ast.unparse(factor), scope, node)


def additive(node):
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return additive(node.left) + additive(node.right)
    return [node]


def tensor_factor(term, scope, file: File, loss, stmt):
    """The part of an additive term that is a tensor of the graph: None if unclear, a string if certainly none."""
    while isinstance(term, ast.BinOp) and isinstance(term.op, (ast.Mult, ast.Div)):
        pick = [t for t in (term.left, term.right) if LOSSY.search(ast.unparse(t)) and not isinstance(t, ast.Constant)]
        if isinstance(term.op, ast.Div):
            term = term.left
        elif len(pick) == 1:
            term = pick[0]
        elif len(pick) == 2:
            names = [t for t in pick if not re.search(r"(?i)weight|coef|lambda|alpha|beta|scale|rate|args|config|cfg|hparam|opt\.", ast.unparse(t))]
            if len(names) != 1:
                return None
            term = names[0]
        else:
            return None
    if isinstance(term, ast.UnaryOp):
        term = term.operand
    if isinstance(term, ast.Constant):
        return None
    text = ast.unparse(term)
    if re.search(r"\.(item|detach|data|tolist|numpy)\b", text):
        return "the term is cut already"
    if re.search(r"\b(tf|mx|jnp|np)\.", text):
        return "another framework"
    if isinstance(term, ast.Call):
        if not LOSSY.search(text):
            return None
        return term
    if isinstance(term, ast.Name):
        if term.id == loss:
            return None
        made = [n for n in file.nodes(scope) if isinstance(n, ast.Assign) and n.lineno <= stmt.lineno and any(isinstance(x, ast.Name) and x.id == term.id for t in n.targets for x in ast.walk(t))]
        if not made or not LOSSY.search(term.id):
            return None
        value = made[-1].value
        if re.search(r"\b(tf|mx|jnp|np)\.", ast.unparse(value)):
            return "another framework"
        if isinstance(value, ast.Constant) or re.search(r"\.(item|detach|data|tolist|numpy)\(", ast.unparse(value)):
            return "the term is cut already"
        if no_grad_around(file, made[-1]):
            return "the term is cut already"
        if isinstance(value, (ast.Call, ast.BinOp)):
            return term
    return None


def lost_leaf(file: File):
    """GF102: an operation behind the creation of a leaf whose gradient is read."""
    for count, (holder, stmt, _, node, creation) in enumerate(flag_sites(file)):
        if creation is None or not isinstance(stmt, ast.Assign):
            continue
        scope = file.scope_of[stmt]
        reads = list(gradient_reads(file, holder, stmt, scope))
        if not reads or any(isinstance(n, ast.Attribute) and n.attr == "retain_grad" for n in file.nodes(scope)):
            continue
        if stmt.value is not creation:
            file.no_mistake("GF102", "something stands behind the creation already")
            continue
        if not any(is_backward(n) or isinstance(n, ast.Call) and last_name(n.func) == "backward" for n in file.nodes(scope)):
            file.no_mistake("GF102", "no backward in that function")
            continue
        again = [s for s in flag_sites(file) if s[1] is not stmt and file.scope_of[s[1]] is scope and same(s[0], holder) and s[1].lineno > stmt.lineno]
        if again:
            file.no_mistake("GF102", "made a leaf again before its gradient is read")
            continue
        text = ast.unparse(stmt.value)
        tail = [" * 0.1", ".to(\"cuda\")", ".double()", ".reshape(-1)"][stmt.lineno % 4]
        if "cuda" in tail and (re.search("cuda|device", text) or not re.match(r"(torch|t|th)\.", text)) or "double" in tail and re.search("double|float64|dtype", text):
            tail = " * 0.1"
        end = file.end(stmt.value)
        yield Break("GF102", "then " + tail.strip(), file.path, [(end, end, tail)], [("old", file.start(stmt.value)), ("old", end - 1)], ast.unparse(holder), scope, stmt)


OPERATORS = [strip_guard, drop_retain_grad, out_of_no_grad, rebinding, drop_flag, make_integer, misspell, zero_grad_moved, item_of_term, lost_leaf]


# ------------------------------------------------------------------------------------------------ running


def apply_edits(text: str, edits):
    """New text, and for ("old", offset) / ("new", index, offset) its position there."""
    order = sorted(range(len(edits)), key=lambda i: (edits[i][0], edits[i][1]))
    out, at, length, starts = [], 0, 0, {}
    moves = []  # (old offset, new offset)
    for i in order:
        start, end, new = edits[i]
        out.append(text[at:start])
        length += start - at
        starts[i] = length
        moves.append((start, end, length, len(new)))
        out.append(new)
        length += len(new)
        at = end
    out.append(text[at:])

    def place(where):
        if where[0] == "new":
            return starts[where[1]] + where[2]
        offset, shift = where[1], 0
        for start, end, new_start, size in moves:
            if offset >= end:
                shift = new_start + size - end
            elif offset >= start:
                return new_start
        return offset + shift

    return "".join(out), place


def row_of(text: str, offset: int) -> int:
    return len(re.findall("\r\n|\r|\n", text[:offset])) + 1


RULES = {rule.code: rule for rule in load()}


class Tree:
    """A SRC_DIR: its files, who imports whom, and what the unbroken files report."""

    def __init__(self, folder: str):
        self.folder = folder
        self.files = []
        for base, folders, names in os.walk(folder):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            self.files += [os.path.join(base, n) for n in sorted(names) if n.endswith(".py")]
        self.project = Project(tuple(self.files))
        self._importers: dict[str, list[str]] | None = None
        self._before: dict[str, dict[str, list[int]]] = {}

    def importers(self, path: str) -> list[str]:
        if self._importers is None:
            self._importers = collections.defaultdict(list)
            for file in self.files:
                for target in self.project.imports(file):
                    self._importers[target].append(file)
        return self._importers[path][:25]

    def report(self, path: str, data: bytes | None) -> dict[str, list[int]]:
        """rule -> rows reported in the file (that of `data`, or as it is); the rows of related places under `rule, "related"`."""
        if data is None and path in self._before:
            return self._before[path]
        project = Project(tuple(self.files), {} if data is None else {path: data})
        for cache in ("_modules", "_roots", "_imports"):  # what the break can't change need not be read again
            if isinstance(getattr(project, cache, None), dict):
                getattr(project, cache).update({k: v for k, v in getattr(self.project, cache).items() if k != path})
        facts = Facts(project, [observe(project, [path, *self.importers(path)])])
        out = collections.defaultdict(list)
        for rule in RULES.values():
            for finding in rule.run(facts):
                if finding.path == path:
                    out[finding.code].append(finding.span.row)
                    out[finding.code + " related"] += [r.span.row for r in finding.related if r.path == path]
        self.project._modules.update({k: v for k, v in project._modules.items() if k != path})
        if data is None:
            self._before[path] = out
        return out


def breaks_of(tree: Tree, rules, limit: int, seed: int, skipped):
    found: dict[str, list[tuple[File, Break]]] = collections.defaultdict(list)
    for path in tree.files:
        try:
            with open(path, "rb") as handle:
                data = handle.read()
            if not TRAINS.search(data) or b"torch" not in data or len(data) > 400_000:
                continue
            if "Exercise" in os.path.basename(path):  # a teaching notebook with blanks to fill in
                continue
            file = File(path, decode(path, data).text)
        except Exception:
            continue
        for operator in OPERATORS:
            for broken in operator(file):
                if broken.rule in rules:
                    found[broken.rule].append((file, broken))
        skipped.update(file.skipped)
    chooser = random.Random(seed)
    for rule, sites in sorted(found.items()):
        if len(sites) > limit:
            sites = sorted(chooser.sample(sites, limit), key=lambda s: (s[1].path, s[1].edits))
        yield from sites


def run_tree(folder: str, rules, limit: int, seed: int, keep: str | None = None):
    warnings.simplefilter("ignore")
    tree = Tree(folder)
    skipped: collections.Counter = collections.Counter()
    results = []
    for file, broken in breaks_of(tree, rules, limit, seed, skipped):
        text, place = apply_edits(file.text, broken.edits)
        try:
            ast.parse(text)
        except (SyntaxError, ValueError) as error:
            skipped[broken.rule, f"the broken text does not parse ({type(error).__name__})"] += 1
            continue
        rows = sorted({row_of(text, place(e)) for e in broken.expect})
        old_rows = sorted({row_of(file.text, e[1]) for e in broken.expect if e[0] == "old"})
        started = time.perf_counter()
        before = tree.report(broken.path, None)
        if any(abs(r - row) <= 1 for r in before.get(broken.rule, []) for row in old_rows):
            skipped[broken.rule, "reported there before the break"] += 1
            continue
        with open(broken.path, "rb") as handle:
            raw = handle.read()
        data = (b"\xef\xbb\xbf" if raw.startswith(b"\xef\xbb\xbf") else b"") + text.encode(errors="surrogateescape")
        after = tree.report(broken.path, data)
        hits = [r for r in [*after.get(broken.rule, []), *after.get(broken.or_rule, [])] if any(abs(r - row) <= 1 for row in rows)]
        if broken.rule == "GF201" and not hits and broken.site is not None:
            # another read of the same gradient, earlier in the run (in a helper, say): the report names the creation
            made = row_of(text, place(("old", file.start(broken.site))))
            hits = [r for r in after.get("GF201 related", []) if abs(r - made) <= 1]
        if keep and not hits:
            name = f"{broken.rule}-{os.path.basename(folder)}-{os.path.basename(broken.path)[:-3]}-{rows[0]}.py"
            with open(os.path.join(keep, name), "wb") as handle:
                handle.write(data)
        lines = text.splitlines()
        # what was reported instead, new in this file
        other = sorted((code, r) for code, found in after.items() if "related" not in code for r in found if r not in before.get(code, []) and (code, r) not in [(broken.rule, h) for h in hits])
        results.append(
            dict(
                rule=broken.rule, form=broken.form, path=broken.path, rows=rows, found=bool(hits), holder=broken.holder,
                line=lines[rows[0] - 1].strip() if rows[0] <= len(lines) else "", reason="" if hits else reason(file, broken),
                other=other[:6], seconds=round(time.perf_counter() - started, 3),
            )
        )  # fmt: skip
    return folder, results, skipped


def reason(file: File, broken: Break) -> str:
    """A guess at what the analysis lacked, from the shape of the code."""
    scope = broken.scope
    name = re.match(r"\w*", broken.holder).group() if broken.holder else ""
    arguments = set()
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = {a.arg for a in [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]}
    called = isinstance(scope, ast.FunctionDef) and any(isinstance(n, ast.Call) and last_name(n.func) == scope.name for n in ast.walk(file.tree))
    loops = [a for a in (file.ancestors(broken.site) if broken.site is not None else ()) if isinstance(a, ast.For)]
    source = None
    for loop in loops:
        if name in {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}:
            source = root_name(loop.iter) or next((root_name(a) for a in getattr(loop.iter, "args", [])), None)
            if re.search(r"param_groups|\[[\"']params[\"']\]", ast.unparse(loop.iter)):
                return "parameters from the optimizer's groups"
            if "parameters" in ast.unparse(loop.iter):
                return "parameters of a model that is " + ("an argument" if source in arguments else "an attribute" if source == "self" else "a local")
    if source in arguments or name in arguments:
        return "an argument, callers in the file" if called else "an argument, no caller in sight"
    if name == "self":
        return "an attribute of self"
    if isinstance(scope, (ast.FunctionDef, ast.Module)):
        made = [n for n in file.nodes(scope) if isinstance(n, ast.Assign) and any(isinstance(x, ast.Name) and x.id == (source or name) for t in n.targets for x in ast.walk(t))]
        if made:
            value = made[-1].value
            if isinstance(value, ast.Call) and last_name(value.func):
                return f"value of a call ({last_name(value.func)})" if root_name(value.func) not in {"torch", "Variable"} else "a tensor made by torch"
            return "value of an expression"
    if broken.rule == "GF203":
        return "a loop variable" if loops else "a name from elsewhere"
    return "other"


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folders", nargs="+", metavar="SRC_DIR")
    parser.add_argument("--rules", default="GF101,GF102,GF201,GF202,GF203,GF301,GF302,GF401,GF501,GF502")
    parser.add_argument("--limit", type=int, default=12, help="breaks per rule and SRC_DIR (chosen by --seed)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", help="write every break there")
    parser.add_argument("--keep", metavar="DIR", help="write the broken files that were missed there")
    parser.add_argument("--verbose", action="store_true", help="print the breaks that were found, too")
    args = parser.parse_args(argv)
    rules = set(args.rules.split(","))
    folders = [f.rstrip("/") for f in args.folders]
    results, skipped = [], collections.Counter()
    if args.keep:
        os.makedirs(args.keep, exist_ok=True)
    with ProcessPoolExecutor(args.jobs) as pool:
        for future in [pool.submit(run_tree, f, rules, args.limit, args.seed, args.keep) for f in folders]:
            folder, mine, left_out = future.result()
            results += mine
            skipped.update(left_out)
            if sys.stderr.isatty():
                print(f"{folder}: {sum(r['found'] for r in mine)} of {len(mine)}", file=sys.stderr)
    common = os.path.commonpath(folders) if len(folders) > 1 else os.path.dirname(folders[0])
    for r in results:
        if not r["found"] or args.verbose:
            other = " reported instead: " + ", ".join(f"{c}:{row}" for c, row in r["other"]) if r["other"] else ""
            print(f"{'found ' if r['found'] else 'missed'} {r['rule']} [{r['form']}] {os.path.relpath(r['path'], common)}:{','.join(map(str, r['rows'][:4]))}: {r['line'][:110]}  ({r['reason']}){other}")
    print("\nNo mistake when broken, so left out:")
    for (rule, why), count in sorted(skipped.items()):
        if rule in rules:
            print(f"  {rule} {count:4} {why}")
    print("\nMissed, by reason:")
    for (rule, why), count in sorted(collections.Counter((r["rule"], r["reason"]) for r in results if not r["found"]).items()):
        print(f"  {rule} {count:4} {why}")
    print(f"\n{'rule':6} {'breaks':>7} {'found':>6} {'recall':>7}")
    for rule in sorted({r["rule"] for r in results}):
        mine = [r for r in results if r["rule"] == rule]
        print(f"{rule:6} {len(mine):7} {sum(r['found'] for r in mine):6} {sum(r['found'] for r in mine) / len(mine):7.0%}")
        for form in sorted({r["form"] for r in mine}):
            some = [r for r in mine if r["form"] == form]
            print(f"       {len(some):7} {sum(r['found'] for r in some):6} {sum(r['found'] for r in some) / len(some):7.0%}  {form}")
    total = sum(r["found"] for r in results)
    print(f"{'all':6} {len(results):7} {total:6} {total / max(1, len(results)):7.0%}")
    if args.json:
        with open(args.json, "w") as handle:
            json.dump(results, handle, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Break real training code mechanically, one site at a time, and count the breaks that `gradfix check` reports.

usage: mutation_recall.py FOLDER… [--limit N] [--misses]

FOLDER holds the sources of a package or repository.  Each break is made in memory; it counts as found when the rule that
is meant reports something new on a row where a reader would expect it.
"""

import argparse
import ast
import collections
import copy
import gc
import re
from dataclasses import dataclass
from pathlib import Path

from gradfix.analysis import Facts, Project, observe
from gradfix.analysis.modules import holds_root
from gradfix.codemod import load


@dataclass
class Break:
    rule: str
    what: str
    text: str
    rows: range  # where the report is expected


class Source:
    def __init__(self, text):
        self.text, self.tree = text, ast.parse(text)
        self.starts = [0]
        for line in text.splitlines(True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = text.splitlines(True)
        self.parent = {c: n for n in ast.walk(self.tree) for c in ast.iter_child_nodes(n)}

    def offset(self, row, col):
        line = self.lines[row - 1]
        return self.starts[row - 1] + len(line.encode()[:col].decode(errors="ignore"))

    def replace(self, node, code):
        a, b = self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)
        return self.text[:a] + code + self.text[b:]

    def function(self, node):
        while node in self.parent and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node = self.parent[node]
        return node

    def statement(self, node):
        while not isinstance(node, ast.stmt):
            node = self.parent[node]
        return node

    def suite(self, stmt):
        parent = self.parent[stmt]
        return next((b for f in ("body", "orelse", "finalbody") if isinstance(b := getattr(parent, f, None), list) and stmt in b), [])

    def reads(self, scope, name):
        """Rows on which `name.grad` is read."""
        return [n.lineno for n in ast.walk(scope) if isinstance(n, ast.Attribute) and n.attr == "grad" and isinstance(n.ctx, ast.Load)
                and ast.unparse(n.value) == name and not self.is_test(n)]

    def is_test(self, node):
        parent = self.parent.get(node)
        return isinstance(parent, ast.Compare) and any(isinstance(c, ast.Constant) and c.value is None for c in parent.comparators)


def calls(tree, *names):
    for n in ast.walk(tree):
        if isinstance(n, ast.Call) and (getattr(n.func, "attr", None) in names or getattr(n.func, "id", None) in names):
            yield n


def scope_rows(scope):
    return range(getattr(scope, "lineno", 1), (getattr(scope, "end_lineno", None) or 10**6) + 1)


def breaks(s: Source):
    yield from strip_guard(s)
    yield from drop_retain(s)
    yield from out_of_no_grad(s)
    yield from rebind(s)
    yield from drop_flag(s)
    yield from integer_literal(s)
    yield from misspell(s)
    yield from zero_after_backward(s)
    yield from item_on_term(s)
    yield from lose_leaf(s)


def strip_guard(s):
    for n in ast.walk(s.tree):
        if not (isinstance(n, ast.Compare) and len(n.ops) == 1 and isinstance(n.left, ast.Attribute) and n.left.attr == "grad"
                and isinstance(n.comparators[0], ast.Constant) and n.comparators[0].value is None and isinstance(n.left.value, ast.Name)):
            continue
        parent = s.parent[n]
        holder = parent
        while isinstance(holder, (ast.BoolOp, ast.UnaryOp)):
            holder = s.parent[holder]
        # The name must be a loop variable over parameters: elsewhere the gradient may be certain without the guard.
        scope = s.function(n)
        loops = [l for l in ast.walk(scope) if isinstance(l, (ast.For, ast.comprehension)) and n.left.value.id in
                 {x.id for x in ast.walk(l.target) if isinstance(x, ast.Name)} and re.search(r"param", ast.unparse(l.iter))]
        if not loops:
            continue
        is_not = isinstance(n.ops[0], (ast.IsNot, ast.NotEq))
        name = n.left.value.id
        if isinstance(holder, ast.If) and is_not:
            rows = [r for b in holder.body for r in s.reads(b, name)]
        elif isinstance(holder, ast.If) and isinstance(holder.body[-1], (ast.Continue,)):
            suite = s.suite(holder)
            rows = [r for b in suite[suite.index(holder) + 1:] for r in s.reads(b, name)]
        elif isinstance(holder, ast.comprehension) and is_not:
            comp = s.parent[holder]
            rows = [r for part in ([comp.key, comp.value] if isinstance(comp, ast.DictComp) else [comp.elt]) for r in s.reads(part, name)]
            # A list of gradients is a use only where something is done with its elements.
            if rows and isinstance(getattr(comp, "elt", None), ast.Attribute):
                continue
        else:
            continue
        if rows:
            yield Break("none-guarded-grad", "strip a guard", s.replace(n, "True" if is_not else "False"), range(min(rows), max(rows) + 1))


def drop_retain(s):
    for call in calls(s.tree, "retain_grad"):
        stmt = s.parent[call]
        if isinstance(stmt, ast.Expr) and isinstance(call.func, ast.Attribute):
            name = ast.unparse(call.func.value)
            rows = s.reads(s.tree, name) or s.reads(s.tree, name.split(".")[-1])
            if rows:
                yield Break("retain-grad", "drop retain_grad()", s.replace(stmt, "pass"), range(min(rows), max(rows) + 1))


def no_grad_blocks(s):
    for n in ast.walk(s.tree):
        if isinstance(n, ast.With) and len(n.items) == 1 and ast.unparse(n.items[0].context_expr) == "torch.no_grad()":
            yield n


def updates(block):
    """In-place updates by a gradient directly in a `no_grad` block or in loops there."""
    for n in ast.walk(block):
        if isinstance(n, ast.AugAssign) and isinstance(n.op, (ast.Sub, ast.Add)) and f"{ast.unparse(n.target)}.grad" in ast.unparse(n.value):
            yield n, n.target


def out_of_no_grad(s):
    for block in no_grad_blocks(s):
        rows = [u.lineno for u, _ in updates(block)]
        rows += [c.lineno for c in calls(block, "add_", "sub_") if isinstance(c.func, ast.Attribute) and f"{ast.unparse(c.func.value)}.grad" in ast.unparse(c)]
        if rows:
            yield Break("inplace-leaf-update", "take an update out of no_grad", s.replace(block.items[0].context_expr, "torch.enable_grad()"),
                        range(min(rows), max(rows) + 1))


def rebind(s):
    for block in no_grad_blocks(s):
        for update, target in updates(block):
            sign = "-" if isinstance(update.op, ast.Sub) else "+"
            name = ast.unparse(target)
            value = ast.unparse(update.value)
            value = f"({value})" if isinstance(update.value, ast.BinOp) and isinstance(update.value.op, (ast.Add, ast.Sub)) else value
            yield Break("parameter-rebinding", "turn an in-place update into a rebinding", s.replace(update, f"{name} = {name} {sign} {value}"),
                        range(update.lineno, update.lineno + 1))


def drop_flag(s):
    for n in ast.walk(s.tree):
        if isinstance(n, ast.Call):
            flag = next((k for k in n.keywords if k.arg == "requires_grad" and isinstance(k.value, ast.Constant) and k.value.value is True), None)
            stmt = s.statement(n)
            if flag is not None and isinstance(stmt, ast.Assign) and stmt.value is n and isinstance(stmt.targets[0], ast.Name):
                name = stmt.targets[0].id
                rows = s.reads(s.function(n), name)
                if rows:
                    changed = copy.deepcopy(n)
                    changed.keywords = [k for k in changed.keywords if k.arg != "requires_grad"]
                    yield Break("missing-requires-grad", "drop requires_grad=True", s.replace(n, ast.unparse(changed)), range(min(rows), max(rows) + 1))
            if isinstance(n.func, ast.Attribute) and n.func.attr == "requires_grad_" and not (n.args and ast.unparse(n.args[0]) == "False"):
                target = stmt.targets[0] if isinstance(stmt, ast.Assign) else n.func.value
                rows = s.reads(s.function(n), ast.unparse(target))
                if rows:
                    yield Break("missing-requires-grad", "drop requires_grad_()", s.replace(n, ast.unparse(n.func.value)), range(min(rows), max(rows) + 1))
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Attribute) and n.targets[0].attr == "requires_grad" and ast.unparse(n.value) == "True":
            rows = s.reads(s.function(n), ast.unparse(n.targets[0].value))
            if rows:
                yield Break("missing-requires-grad", "drop x.requires_grad = True", s.replace(n, "pass"), range(min(rows), max(rows) + 1))


def integer_literal(s):
    for n in calls(s.tree, "tensor"):
        if any(k.arg == "requires_grad" and ast.unparse(k.value) == "True" for k in n.keywords) and n.args and not any(k.arg == "dtype" for k in n.keywords):
            literals = [c for c in ast.walk(n.args[0]) if isinstance(c, ast.Constant)]
            if literals and all(isinstance(c.value, float) for c in literals) and re.fullmatch(r"[\s\d.,\[\]()eE+-]*", ast.unparse(n.args[0])):
                changed = copy.deepcopy(n)
                changed.args[0] = ast.parse(re.sub(r"\d+\.\d*(?:e-?\d+)?", "2", ast.unparse(n.args[0])), mode="eval").body
                yield Break("integer-requires-grad", "make a literal integer", s.replace(n, ast.unparse(changed)), range(n.lineno, n.end_lineno + 1))


def misspell(s):
    for n in ast.walk(s.tree):
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Attribute) and n.targets[0].attr == "requires_grad":
            target = n.targets[0]
            name = ast.unparse(target.value)
            # On a module the attribute is GF206's; only parameters of a loop and tensors made in sight count.
            scope = s.function(n)
            made = any(isinstance(a, ast.Assign) and ast.unparse(a.targets[0]) == name and re.search(r"torch\.|\.clone\(|\.detach\(|Parameter\(", ast.unparse(a.value))
                       for a in ast.walk(scope))
            looped = any(isinstance(l, ast.For) and name in {x.id for x in ast.walk(l.target) if isinstance(x, ast.Name)} and "parameters()" in ast.unparse(l.iter)
                         for l in ast.walk(scope))
            if made or looped:
                yield Break("requires-grad-typo", "misspell requires_grad", s.replace(target, f"{name}.require_grad"), range(n.lineno, n.lineno + 1))


def zero_after_backward(s):
    for call in calls(s.tree, "zero_grad"):
        stmt = s.parent[call]
        if not isinstance(stmt, ast.Expr) or not isinstance(call.func, ast.Attribute) or stmt.lineno != stmt.end_lineno:
            continue
        suite = s.suite(stmt)
        name = ast.unparse(call.func.value)
        after = suite[suite.index(stmt) + 1:] if stmt in suite else []
        backward = next((b for b in after if isinstance(b, ast.Expr) and isinstance(b.value, ast.Call) and getattr(b.value.func, "attr", "") == "backward"), None)
        if backward is None:
            continue
        rest = after[after.index(backward) + 1:]
        if not any(isinstance(r, ast.Expr) and ast.unparse(r.value).startswith(f"{name}.step(") for r in rest):
            continue
        lines = list(s.lines)
        line = lines[stmt.lineno - 1]
        lines[stmt.lineno - 1] = line[: len(line) - len(line.lstrip())] + "pass\n"
        lines.insert(backward.end_lineno, line)
        yield Break("zero-grad-order", "move zero_grad() behind backward", "".join(lines), range(backward.end_lineno + 1, backward.end_lineno + 2))


def item_on_term(s):
    for call in calls(s.tree, "backward"):
        if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
            continue
        name, scope = call.func.value.id, s.function(call)
        for n in ast.walk(scope):
            if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name and isinstance(n.value, ast.BinOp) and isinstance(n.value.op, ast.Add):
                term = n.value.right
                core = term
                while isinstance(core, ast.BinOp) and isinstance(core.op, ast.Mult):
                    core = core.right
                if isinstance(core, (ast.Name, ast.Call)) and n.lineno < call.lineno:
                    yield Break("item-in-graph", "append .item() to a loss term", s.replace(core, ast.unparse(core) + ".item()"), range(n.lineno, n.end_lineno + 1))


def lose_leaf(s):
    for n in ast.walk(s.tree):
        if isinstance(n, ast.Call) and any(k.arg == "requires_grad" and ast.unparse(k.value) == "True" for k in n.keywords):
            stmt = s.parent.get(n)
            if isinstance(stmt, ast.Assign) and isinstance(stmt.targets[0], ast.Name) and getattr(n.func, "attr", "") in (
                    "randn", "rand", "zeros", "ones", "tensor", "full", "empty", "linspace"):
                name = stmt.targets[0].id
                used = s.reads(s.function(n), name) or any(re.search(rf"\b{name}\b", ast.unparse(c)) for c in calls(s.function(n), "SGD", "Adam", "AdamW", "LBFGS"))
                if used:
                    yield Break("leaf-lost-at-creation", "scale a new leaf", s.replace(n, ast.unparse(n) + " * 0.1"), range(n.lineno, n.end_lineno + 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--limit", type=int, default=40, help="at most so many breaks of a rule per folder")
    parser.add_argument("--misses", action="store_true", help="print each break that was not found")
    options = parser.parse_args()
    gc.disable()
    rules = {r.name: r for r in load()}

    def found(files, path, overlay):
        project = Project(files, overlay)
        facts = Facts(project, [observe(project, [path])])
        return {(r.name, f.span.row) for r in rules.values() for f in r.run(facts) if f.path == path}

    total, hit = collections.Counter(), collections.Counter()
    for folder in options.folders:
        files = tuple(sorted(str(p) for p in Path(folder).rglob("*.py")))
        count: collections.Counter = collections.Counter()
        for path in files:
            try:
                data = Path(path).read_bytes()
                if not holds_root(data) and b"requires_grad" not in data:
                    continue
                source = Source(data.decode())
            except (SyntaxError, ValueError, OSError, RecursionError):
                continue
            base = None
            for b in breaks(source):
                if count[b.rule] >= options.limit:
                    continue
                try:
                    ast.parse(b.text)
                except SyntaxError:
                    continue
                base = found(files, path, {}) if base is None else base
                if any(name == b.rule and row in b.rows for name, row in base):
                    continue  # reported already before it was broken
                count[b.rule] += 1
                total[b.rule] += 1
                seen = found(files, path, {path: b.text.encode()})
                if any(name == b.rule and b.rows.start - 1 <= row <= b.rows.stop for name, row in seen):
                    hit[b.rule] += 1
                elif options.misses:
                    rows = f"{b.rows.start}" + (f"-{b.rows.stop - 1}" if len(b.rows) > 1 else "")
                    line = b.text.splitlines()[b.rows.start - 1].strip()
                    others = sorted(x for x in seen - base)
                    print(f"  missed {b.rule}: {path}:{rows}: {b.what}: {line[:90]} {others or ''}")
            gc.collect()
    for rule in sorted(total):
        print(f"{rule:24} {hit[rule]:4}/{total[rule]:<4} {100 * hit[rule] / total[rule]:.0f}%")
    print(f"{'all':24} {sum(hit.values()):4}/{sum(total.values()):<4} {100 * sum(hit.values()) / max(1, sum(total.values())):.0f}%")


if __name__ == "__main__":
    main()

"""What the rules about `Variable`, `volatile` and `.data` share: how a call is unwrapped, and where `no_grad` has to stand."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from gradfix.findings import Applicability, DropUnusedImport, EnsureImport, Lift, ReplaceStatement, Wrap

TENSORS = {"tensor", "parameter", "gradient"}
# What holds data without being a tensor.
HOLDERS = re.compile(r"^(?:self|args?|opts?|cfg|config|params?|\w*data(?:set)?|\w*sets?|batch|corpus|field|\w*loader|mnist|cifar)$", re.I)
SAFE, UNSAFE = Applicability.SAFE, Applicability.UNSAFE


def joined(all_facts, role, key):
    """What all contexts say of a role: their values of `key`."""
    found = set()
    for fact in all_facts:
        info = fact.info.get(role)
        if info is not None:
            value = info[key]
            found |= value if isinstance(value, set) else {value}
    return found


def state(all_facts, role):
    found = joined(all_facts, role, "state")
    for worst in ("graph", "unknown", "data"):
        if worst in found:
            return worst
    return "plain" if found else "unknown"


def is_tensor(all_facts, role):
    kinds = joined(all_facts, role, "kinds")
    return bool(kinds) and kinds <= TENSORS


def dropped_import(facts, path, callee_text):
    """The edit that removes the import of a name once nothing uses it, unless another file takes the name from here."""
    name = callee_text.split(".")[0]
    if name == "torch" or taken_elsewhere(facts, path, name):
        return ()
    return (DropUnusedImport(path, name),)


def taken_elsewhere(facts, path, name):
    cache = facts.__dict__.setdefault("_taken", {})
    if path not in cache:
        cache[path] = [p for p in facts.project.files if p != path and path in facts.project.imports(p)]
    return any(takes(facts, path, p, name) for p in cache[path] if re.search(rf"\b{re.escape(name)}\b", text_of(facts, p)))


def takes(facts, path, importer, name):
    """Does `importer` have the name from `path`: by import, by `import *`, or as an attribute of the module?"""
    module = facts.project.module(importer)
    if module is None:
        return True
    stars = own = False
    for n in ast.walk(module.tree):
        if isinstance(n, ast.ImportFrom):
            here = facts.project.resolve(importer, n.module or "", n.level) == path
            if here and any(a.name == name for a in n.names):
                return True
            stars |= here and any(a.name == "*" for a in n.names)
            own |= any((a.asname or a.name) == name for a in n.names)
        elif isinstance(n, ast.Attribute) and n.attr == name and not ast.unparse(n.value).startswith(("torch", "autograd")):
            return True
    return stars and not own


def text_of(facts, path):
    try:
        return facts.text(path)
    except Exception:
        return ""


# ----------------------------------------------------------------- Variable(x)


@dataclass(frozen=True)
class Unwrap:
    """What a call becomes: `code`, in which `__expr__` stands for the expression at `inner`."""

    inner: object
    code: str
    applicability: Applicability
    why: str


def unwrap(facts, fact, all_facts, node, ignore_flag=False):
    """How `Variable(…)` is written today, or None where that can't be told."""
    syntax = facts.syntax(fact.path)
    arguments = {k.arg: k.value for k in node.keywords}
    data = node.args[0] if node.args else arguments["data"]
    flag = arguments.get("requires_grad", node.args[1] if len(node.args) > 1 else None)
    dropped = syntax.source(node).replace(syntax.source(data), "", 1)
    if "#" in dropped or isinstance(data, (ast.GeneratorExp, ast.Starred)):
        return None
    inner, cut = syntax.span(data), ""
    known = state(all_facts, "data")
    owner = data.value if isinstance(data, ast.Attribute) and data.attr == "data" else None
    if owner is not None and is_tensor_owner(all_facts, owner):
        inner, cut = syntax.span(owner), ".detach()"
    wanted = None
    if flag is not None and not ignore_flag:
        wanted = flag.value if isinstance(flag, ast.Constant) else syntax.source(flag)
        if isinstance(wanted, str) and "\n" in wanted:
            return None
    if not wanted and not cut and is_wrapped_unless_wrapped(syntax, node, data):
        return Unwrap(inner, "__expr__", SAFE, "every tensor is one today, so none gets here")
    if not wanted:
        if cut or known in ("plain", "data"):
            return Unwrap(inner, "__expr__" + cut, SAFE, "it has no graph, so the wrapper does nothing" if not cut else
                          "`.data` and the wrapper detach it: so does `.detach()`")
        if known == "unknown":
            return Unwrap(inner, "__expr__", UNSAFE, "tensors and variables are one")
        if severs(all_facts):
            return Unwrap(inner, "__expr__", UNSAFE, "today the wrapper cuts it off from all that is trained")
        return Unwrap(inner, "__expr__.detach()", SAFE, "today the wrapper detaches it")
    call = ".requires_grad_()" if wanted is True else f".requires_grad_({wanted})"
    if known == "graph" and not cut and severs(all_facts):
        return Unwrap(inner, "__expr__", UNSAFE, "today the wrapper makes a new leaf of it, so nothing that is trained gets a gradient")
    fresh = known != "graph" and is_fresh(data, fact.info.get("torch"))
    return Unwrap(inner, f"__expr__{cut or ('' if fresh else '.detach()')}{call}", SAFE, "the wrapper makes a leaf")


def severs(all_facts):
    return any(f.info.get("severs") for f in all_facts)


def is_tensor_owner(all_facts, owner):
    if is_tensor(all_facts, "owner"):
        return True
    name = owner
    while isinstance(name, (ast.Subscript, ast.Call)):
        name = name.func if isinstance(name, ast.Call) else name.value
    word = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
    return state(all_facts, "owner") == "graph" or not HOLDERS.match(word)


NEW = {"new", "new_zeros", "new_ones", "new_tensor", "new_full", "new_empty", "clone"}


def is_fresh(node, torch=None):
    """Does the expression make a tensor that nothing else has a name for?"""
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return True
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in NEW:
            return True
        root = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in ("torch", "th", torch):
            return node.func.attr not in ("as_tensor", "squeeze", "unsqueeze", "reshape", "transpose", "t", "load")
        return is_fresh(node.func.value, torch)
    return False


def statement_edits(facts, path, calls):
    """Edits that unwrap `calls` ([(call node, Unwrap)]) of one statement; none of it is left where it only renames itself."""
    syntax = facts.syntax(path)
    stmt = syntax.statement(calls[0][0])
    chosen = dict(calls)
    if isinstance(stmt, ast.Assign) and len(stmt.targets) == 1 and len({u.applicability for u in chosen.values()}) == 1:
        target, value = stmt.targets[0], stmt.value
        pairs = list(zip(target.elts, value.elts)) if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(
            target.elts) == len(value.elts) else [(target, value)]
        if all(isinstance(t, (ast.Name, ast.Attribute)) and becomes(syntax, v, chosen) == ast.unparse(t) for t, v in pairs):
            return {call: (ReplaceStatement(path, syntax.span(stmt), ""),) for call in chosen}
    return {call: (Lift(path, syntax.span(call), u.inner, u.code),) for call, u in chosen.items()}


def without_empty_blocks(facts, path, plans, edits):
    """Where all that stands under a `no_grad()`, or under a test, goes, the block goes with it."""
    syntax = facts.syntax(path)
    leaving = {}  # statement -> the calls in it
    for call, mine in edits.items():
        stmt = syntax.statement(call)
        if mine == (ReplaceStatement(path, syntax.span(stmt), ""),):
            leaving.setdefault(stmt, []).append(call)
    out = dict(edits)
    for block in {syntax.parents[stmt] for stmt in leaving}:
        calls = [call for stmt in getattr(block, "body", []) for call in leaving.get(stmt, ())]
        if is_idle(syntax, block) and all(stmt in leaving for stmt in block.body) and len({plans[c].applicability for c in calls}) == 1:
            out.update(dict.fromkeys(calls, (ReplaceStatement(path, syntax.span(block), ""),)))
    return out


def is_idle(syntax, block):
    """Does the block do nothing once its statements are gone?"""
    if not isinstance(block, (ast.With, ast.If)):
        return False
    if any("#" in line for line in syntax.module.lines[block.lineno - 1 : block.end_lineno]):
        return False
    if isinstance(block, ast.With):
        return all(i.optional_vars is None and ast.unparse(i.context_expr).endswith("no_grad()") for i in block.items)
    if block.orelse or syntax.source(block).startswith("elif"):
        return False
    return all(ast.unparse(n.func) in ("isinstance", "hasattr", "len", "torch.is_tensor", "torch.cuda.is_available")
               for n in ast.walk(block.test) if isinstance(n, ast.Call)) and not any(isinstance(n, ast.NamedExpr) for n in ast.walk(block.test))


def is_wrapped_unless_wrapped(syntax, node, data):
    """`if not isinstance(x, Variable): x = Variable(x)`: what was no tensor then is one today."""
    block = syntax.parents.get(syntax.statement(node))
    if not isinstance(block, ast.If) or syntax.statement(node) not in block.body:
        return False
    tests = [n.operand for n in ast.walk(block.test) if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not)]
    return any(isinstance(t, ast.Call) and ast.unparse(t.func) == "isinstance" and len(t.args) == 2 and ast.unparse(t.args[0]) == ast.unparse(data)
               and (ast.unparse(t.args[1]) == ast.unparse(node.func) or ast.unparse(t.args[1]).endswith(".Tensor")) for t in tests)


def becomes(syntax, value, chosen):
    if value in chosen:
        plan = chosen[value]
        inner = next((n for n in ast.walk(value) if hasattr(n, "lineno") and isinstance(n, ast.expr) and syntax.span(n) == plan.inner), None)
        return ast.unparse(inner) if inner is not None and plan.code == "__expr__" else None
    return ast.unparse(value)


def variable_calls(facts):
    """(fact, all facts at its place, call node) of each call of `Variable`, and of each other use of the name."""
    for fact, all_facts in facts.bad("legacy-variable"):
        node = facts.syntax(fact.path).find(fact.span, ast.Call if fact.info["form"] == "call" else ast.AST)
        if fact.info["form"] != "call" or node is not None:
            yield fact, all_facts, node


def is_volatile(node):
    """`volatile=…`, or a second argument of that name."""
    if any(k.arg == "volatile" for k in node.keywords):
        return True
    return len(node.args) > 1 and "volatile" in ast.unparse(node.args[1])


def no_grad(facts, path, torch):
    return f"with {torch or 'torch'}.no_grad():", () if torch else (EnsureImport(path, "torch"),)


# ------------------------------------------------- where no_grad has to stand


class NotLocal(Exception):
    """What is volatile leaves the function, or is trained on."""


CUT_ATTRIBUTES = {"data", "shape", "dtype", "device", "is_cuda", "requires_grad"}
CUT_METHODS = {"detach", "item", "numpy", "tolist", "size", "dim", "numel", "nelement"}
CUT_FUNCTIONS = {"float", "int", "len", "str", "print", "isinstance", "type", "range", "format", "repr", "bool", "hasattr", "id"}
HARMLESS = {"append", "extend", "add", "insert", "print", "format", "write", "keys", "items", "list", "tuple", "zip", "enumerate", "dict", "info",
            "cuda", "cpu", "to"}
TRAINING = {"backward", "step", "zero_grad"}


class Region:
    """Statements of a function that would record a graph of what was volatile: these go under `no_grad`."""

    def __init__(self, syntax, seeds, body):
        self.syntax, self.seeds = syntax, set(seeds)
        self.tainted: set[str] = set()
        self.escapes = False
        self.runs: dict = {}  # (first statement, last statement), as spans, in order
        self.suite(body)

    def carries(self, node):
        """May the value be part of a graph that starts in something volatile?"""
        if node in self.seeds:
            return True
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in self.tainted:
            return True
        if isinstance(node, (ast.Name, ast.Constant, ast.Lambda, ast.Compare)) or is_text(node):
            return False
        if isinstance(node, ast.Attribute):
            return node.attr not in CUT_ATTRIBUTES and self.carries(node.value)
        if isinstance(node, ast.Subscript):
            return self.carries(node.value)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in CUT_METHODS or isinstance(
                    node.func, ast.Name) and node.func.id in CUT_FUNCTIONS:
                return False
            parts = [*node.args, *(k.value for k in node.keywords)]
            return any(map(self.carries, parts)) or isinstance(node.func, ast.Attribute) and self.carries(node.func.value)
        return any(self.carries(n) for n in ast.iter_child_nodes(node) if isinstance(n, (ast.expr, ast.comprehension, ast.keyword)))

    def records(self, stmt):
        """Does the statement compute something of a volatile value that other tensors may go into?"""
        shown = {n for part in ast.walk(stmt) if is_text(part) or is_print(part) for n in ast.walk(part) if isinstance(n, ast.BinOp)}
        for n in ast.walk(stmt):
            if isinstance(n, ast.Call) and n not in self.seeds:
                name = n.func.attr if isinstance(n.func, ast.Attribute) else n.func.id if isinstance(n.func, ast.Name) else ""
                if name in HARMLESS | CUT_METHODS | CUT_FUNCTIONS:
                    continue
                args = [*n.args, *(k.value for k in n.keywords)]
                if isinstance(n.func, ast.Attribute) and self.carries(n.func.value):
                    if any(not isinstance(a, ast.Constant) and not self.carries(a) and not is_number(a) for a in args):
                        return True
                elif any(map(self.carries, args)):
                    return True
            elif isinstance(n, ast.BinOp) and n not in shown:
                sides = (n.left, n.right)
                if any(map(self.carries, sides)) and any(not self.carries(s) and not is_number(s) for s in sides):
                    return True
        return False

    def suite(self, body):
        run: list = []

        def close():
            if run:
                last = max(i for i, (_, op) in enumerate(run) if op)
                first, end = run[0][0], run[last][0]
                self.runs[(self.syntax.span(first), self.syntax.span(end))] = None
                run.clear()

        for stmt in body:
            op, touched = self.statement(stmt)
            if op:
                run.append((stmt, True))
            elif run and (touched or is_quiet(stmt)):
                run.append((stmt, False))
            else:
                close()
        close()

    def statement(self, stmt):
        """(does it record, does it use what is volatile)"""
        if isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if any(isinstance(n, ast.Name) and n.id in self.tainted for n in ast.walk(stmt)):
                raise NotLocal
            return False, False
        if isinstance(stmt, (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try)):
            return self.compound(stmt)
        touched = any(self.carries(n) for n in ast.walk(stmt) if isinstance(n, ast.expr))
        op = self.records(stmt)
        if touched and trains(stmt):
            raise NotLocal
        if isinstance(stmt, ast.Return) and stmt.value is not None and self.carries(stmt.value):
            if not op and not self.runs:
                raise NotLocal
            self.escapes = True
        self.bind(stmt)
        return op, touched

    def bind(self, stmt):
        if isinstance(stmt, ast.Assign):
            for target in stmt.targets:
                if isinstance(target, ast.Tuple) and isinstance(stmt.value, ast.Tuple) and len(target.elts) == len(stmt.value.elts):
                    marks = [self.carries(v) for v in stmt.value.elts]
                    for t, mark in zip(target.elts, marks):
                        self.mark(t, mark)
                else:
                    self.mark(target, self.carries(stmt.value))
        elif isinstance(stmt, (ast.AugAssign, ast.AnnAssign)) and stmt.value is not None:
            if self.carries(stmt.value):
                self.mark(stmt.target, True)
        elif isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call) and any(map(self.carries, stmt.value.args)):
            self.escapes = True

    def mark(self, target, carries):
        if isinstance(target, (ast.Tuple, ast.List)):
            for t in target.elts:
                self.mark(t, carries)
        elif isinstance(target, ast.Starred):
            self.mark(target.value, carries)
        elif carries:
            self.tainted.add(ast.unparse(target))
            self.escapes |= not isinstance(target, ast.Name)
        else:
            self.tainted.discard(ast.unparse(target))

    def compound(self, stmt):
        header = [n for n in (getattr(stmt, "iter", None), getattr(stmt, "test", None)) if n is not None]
        if any(self.carries(n) for h in header for n in ast.walk(h) if n in self.seeds):
            raise NotLocal
        before = set(self.tainted)
        inside = any(n in self.seeds for n in ast.walk(stmt))
        suites = [getattr(stmt, name, []) for name in ("body", "orelse", "finalbody")] + [h.body for h in getattr(stmt, "handlers", [])]
        suites = [body for body in suites if body]
        if isinstance(stmt, (ast.For, ast.AsyncFor)):
            self.mark(stmt.target, self.carries(stmt.iter))
        if isinstance(stmt, (ast.With, ast.AsyncWith)) and any("no_grad" in ast.unparse(i.context_expr) for i in stmt.items):
            kept, self.runs = self.runs, {}
            for body in suites:
                self.suite(body)
            self.runs = kept
            return False, True
        kept = dict(self.runs)
        loop = isinstance(stmt, (ast.For, ast.AsyncFor, ast.While))
        for _ in range(2 if loop else 1):
            start = set(self.tainted)
            after = set()
            for body in suites:
                self.tainted = set(start)
                self.suite(body)
                after |= self.tainted
            self.tainted = after | (start if loop or isinstance(stmt, ast.If) and not stmt.orelse else set())
            if isinstance(stmt, (ast.For, ast.AsyncFor)):
                self.mark(stmt.target, self.carries(stmt.iter))
        found = [run for run in self.runs if run not in kept]
        touched = any(isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) in before for n in ast.walk(stmt))
        if found and not inside and not any(trains(n) for n in ast.walk(stmt) if isinstance(n, ast.stmt)):
            self.runs = kept  # nothing in it is trained: one block around all of it
            return True, True
        return False, touched


def is_text(node):
    """Text that is put together: what goes into it is only shown."""
    if isinstance(node, ast.JoinedStr) or isinstance(node, ast.Constant) and isinstance(node.value, str):
        return True
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.Mod, ast.Add)) and is_text(node.left) or isinstance(node.op, ast.Add) and is_text(node.right)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("format", "join") and is_text(node.func.value)


def is_print(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def is_number(node):
    return isinstance(node, (ast.Constant, ast.UnaryOp)) and not any(isinstance(n, (ast.Name, ast.Attribute)) for n in ast.walk(node)) or (
        isinstance(node, (ast.List, ast.Tuple)) and all(is_number(e) for e in node.elts))


def is_quiet(stmt):
    """Computes nothing that could be trained: may stand under `no_grad` between two statements that must."""
    if not isinstance(stmt, (ast.Assign, ast.AugAssign, ast.Expr, ast.Pass)):
        return False
    for n in ast.walk(stmt):
        if isinstance(n, ast.Call):
            name = n.func.attr if isinstance(n.func, ast.Attribute) else n.func.id if isinstance(n.func, ast.Name) else ""
            if name not in HARMLESS | CUT_METHODS | CUT_FUNCTIONS:
                return False
    return True


def trains(stmt):
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in TRAINING for n in ast.walk(stmt))


def wraps(path, region, header):
    return tuple(Wrap(path, first, last, header) for first, last in region.runs)


"""One forward pass per root over abstract values.

Code is executed on abstract values: both sides of a branch that can't be decided, a loop twice (the second turn,
with what the first one left and with widened numbers, is where a rebound leaf shows), calls by following them.
Objects have identity, so aliases and rebinding are seen; what can't be known is unknown and stays silent.
"""

from __future__ import annotations

import ast
import bisect
import re

from gradfix.analysis import torch_model as tm
from gradfix.analysis.facts import Fact
from gradfix.analysis.modules import LEGACY, holds_root, root_rows
from gradfix.analysis.values import (
    PLAIN, UNKNOWN, Bound, Class, Const, External, Function, Heap, Imported, ModuleValue, Multi, Number, Obj, Ref, join_values,
    values_of,
)
from gradfix.findings import Problem

STEPS = 30_000  # for a program
ROOT_STEPS = 8_000  # for a function that nobody is seen to call
DEPTH = 14
UNROLL = 8
LONG_UNROLL = 40  # of short bodies: parameters are chosen one by one


class OutOfBudget(Exception):
    pass


class LazyNames(dict):
    """Globals of an imported file, bound when first asked for (and again where the heap no longer holds the object)."""

    def __init__(self, interpreter, frame, pending):
        super().__init__()
        self.interpreter, self.frame, self.unsettled, self.running = interpreter, frame, pending, set()

    def __contains__(self, name):
        return dict.__contains__(self, name) or name in self.unsettled

    def __iter__(self):
        return iter(dict.fromkeys([*self.unsettled, *dict.keys(self)]))

    def __getitem__(self, name):
        value = dict.get(self, name)
        stale = value is None or isinstance(value, Ref) and value.oid not in self.interpreter.st.heap
        if stale and name in self.unsettled and name not in self.running:
            self.running.add(name)
            try:
                self.interpreter.bind_lazily(self.frame, self.unsettled[name])
            finally:
                self.running.discard(name)
            value = dict.get(self, name)
        return UNKNOWN if value is None else value

    def get(self, name, default=None):
        return self[name] if name in self else default


def bindings(body):
    """{name: [the statements of a file's top level that bind it]}"""
    out: dict[str, list] = {}
    for s in body:
        if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            out[s.name] = [s]
        elif isinstance(s, ast.ImportFrom) and s.names[0].name == "*":
            pass
        elif isinstance(s, (ast.Import, ast.ImportFrom)):
            for alias in s.names:
                out[alias.asname or alias.name.split(".")[0]] = [s]
        elif isinstance(s, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            for target in s.targets if isinstance(s, ast.Assign) else [s.target]:
                for n in ast.walk(target):
                    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                        out[n.id] = [*out.get(n.id, ()), s][-4:]
        elif isinstance(s, ast.If):
            for name, found in {**bindings(s.orelse), **bindings(s.body)}.items():
                out.setdefault(name, found)
        elif isinstance(s, ast.Try):
            inner = {}
            for handler in s.handlers:
                inner.update(bindings(handler.body))
            inner.update(bindings(s.body))
            out.update({name: found for name, found in inner.items() if name not in out})
    for name, more in entries(body, out).items():
        out[name] = [*out[name], *more[:MOST_ENTRIES]]
    return out


MOST_ENTRIES = 40  # statements that fill one registry


def entries(body, bound):
    """{container: [the statements of the top level that put something into it]}: `R["a"] = A`, `R.update(…)`, `@register("a")`."""
    out: dict[str, list] = {}
    for s in body:
        names = ()
        if isinstance(s, ast.Assign):
            names = [t.value.id for t in s.targets if isinstance(t, ast.Subscript) and isinstance(t.value, ast.Name)]
        elif isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and isinstance(s.value.func, ast.Attribute):
            names = [s.value.func.value.id] if isinstance(s.value.func.value, ast.Name) else ()
        elif isinstance(s, ast.ClassDef):
            called = [d.func if isinstance(d, ast.Call) else d for d in s.decorator_list]
            names = [n for c in called if isinstance(c, ast.Name) and c.id in bound for n in filled(bound[c.id][0])]
        for name in names:
            if name in bound and isinstance(bound[name][0], (ast.Assign, ast.AnnAssign)):
                out.setdefault(name, []).append(s)
    return out


def filled(function):
    """The containers from outside that a function, or one in it, puts something into."""
    if not isinstance(function, ast.FunctionDef):
        return frozenset()
    if not hasattr(function, "filled"):
        nodes = list(ast.walk(function))
        own = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | {n.arg for n in nodes if isinstance(n, ast.arg)}
        stored = {n.value.id for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name)}
        called = {n.func.value.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and isinstance(n.func.value, ast.Name)
                  and n.func.attr in ("append", "update", "setdefault", "add")}
        function.filled = frozenset((stored | called) - own)
    return function.filled


class State:
    __slots__ = ("heap", "frame", "mode", "known", "backwards")

    def __init__(self):
        self.heap, self.frame, self.mode, self.known, self.backwards = Heap(), None, True, {}, ()

    def fork(self):
        new = State()
        new.heap, new.mode, new.known = self.heap.fork(), self.mode, dict(self.known)
        new.frame, new.backwards = self.frame.fork() if self.frame else None, self.backwards
        return new


class Frame:
    """The names of a running function or file.

    `shared` are those declared `global` or `nonlocal`, each with the scope that owns it: they are like the function's own
    until it returns, and then its caller's, until the owner is reached (see `pop_frame`).
    """

    __slots__ = ("vars", "parent", "module", "closure", "name", "owner", "shared")

    def __init__(self, module, parent=None, closure=None, name="", owner=None):
        self.vars, self.module, self.parent, self.closure, self.name, self.owner = {}, module, parent, closure, name, owner
        self.shared = None

    def fork(self, deep=False):
        """A copy for a branch.  Callers' frames can't change before the call returns, so branches share them."""
        parent = self.parent.fork(True) if deep and self.parent else self.parent
        new = Frame(self.module, parent, self.closure, self.name, self.owner)
        new.shared = self.shared
        new.vars = self.vars if isinstance(self.vars, LazyNames) else dict(self.vars)
        return new


def join_states(a, b):
    if a is None or b is None:
        return a or b
    out = State()
    out.heap = a.heap.join(b.heap, join_objects)
    out.frame = join_frames(a.frame, b.frame)
    out.mode = a.mode if a.mode == b.mode else None
    out.known = {oid: state for oid in {**a.known, **b.known} if (state := grad_in(a, oid)) == grad_in(b, oid) and state in ("set", "none")}
    out.backwards = a.backwards + tuple(x for x in b.backwards if x not in a.backwards)
    return out


def grad_in(st, oid):
    """What a state knows of an object's `.grad`: from a test on this path, else from the heap."""
    if oid in st.known:
        return st.known[oid]
    obj = st.heap.get(oid)
    return obj.grad if obj is not None else "unknown"


def join_frames(a, b):
    if a is None or b is None or a is b:
        return a or b
    out = a.fork()
    if out.vars is b.vars:
        return out
    if b.shared:
        out.shared = {**(a.shared or {}), **b.shared}
    for name, value in b.vars.items():
        out.vars[name] = join_values(out.vars[name], value) if name in out.vars else value
    return out


def join_objects(a, b):
    new = a.copy()
    for slot in ("leaf", "rg", "retained", "dtype", "module", "hooked", "lost", "mode", "reached"):
        x, y = getattr(a, slot), getattr(b, slot)
        if x != y:
            setattr(new, slot, None)
    if a.grad != b.grad:
        new.grad = "maybe" if "unknown" not in (a.grad, b.grad) else "unknown"
        new.cleared = a.cleared or b.cleared
    elif a.cleared != b.cleared:
        new.cleared = None
    if a.ins != b.ins:
        new.ins = tuple(dict.fromkeys(a.ins + b.ins))
        new.cold, new.unsure = a.cold & b.cold, a.unsure | b.unsure | frozenset(a.ins) ^ frozenset(b.ins)
    if a.emptied != b.emptied:
        new.emptied = None
    new.dead = a.dead | b.dead
    new.added = a.added | b.added
    if a.numeric != b.numeric:
        new.numeric = (a.numeric or frozenset()) | (b.numeric or frozenset())
    if a.linear != b.linear:
        new.linear = None if a.linear is None or b.linear is None else tuple(dict.fromkeys(a.linear + b.linear))
    new.frozen = a.frozen or b.frozen
    new.conversion = a.conversion or b.conversion
    for name, value in b.attrs.items():
        new.attrs[name] = join_values(new.attrs[name], value) if name in new.attrs else value
    if a.items is not b.items and a.kind in ("list", "tuple", "iter", "optimizer"):
        new.items = tuple(dict.fromkeys(tuple(a.items) + tuple(b.items))) if len(a.items) != len(b.items) else tuple(
            join_values(x, y) for x, y in zip(a.items, b.items)
        )
        new.open = a.open or b.open or len(a.items) != len(b.items)
    elif a.items != b.items and a.kind == "dict":
        new.items = {k: join_values(a.items[k], b.items[k]) if k in a.items and k in b.items else a.items.get(k, b.items.get(k))
                     for k in [*a.items, *(k for k in b.items if k not in a.items)]}
    return new


class Backward:
    """A backward that ran: where, on what, and the program's names at that point."""

    __slots__ = ("path", "span", "statement", "loss", "frame", "heap", "reached", "inputs", "in_loop", "started")


class Interpreter(tm.TorchModel):
    def __init__(self, project, out):
        self.project, self.out = project, out
        self.next_oid = 1
        self.globals: dict[str, Frame] = {}
        self.visited: set = set()
        self.backward_hooks: set = set()  # ids of functions that run during backward
        self.explain = None

    # ------------------------------------------------------------------ roots
    def start(self, concrete):
        self.st = State()
        self.steps, self.depth, self.stack = 0, 0, []
        self.statements: list = []
        self.concrete = concrete
        self.limit = STEPS if concrete else ROOT_STEPS
        self.yields: list = []
        self.loops: list = []
        self.returns: list = []
        self.rebindings: list = []
        self.optimizers: list = []
        self.cut_reach: list = []
        self.terms: list = []
        self.unsettled: list = []
        self.stepped: set = set()
        self.wanted: set = set()
        self.cut_seen: set = set()
        self.switches: list = []
        self.handed: set = set()  # what was given to constructors
        self.ever_stepped: set = set()
        self.start_training()
        self.global_switch = None
        self.derived: dict = {}
        self.trained: set = set()
        self.zeroed: set = set()
        self.tested: set = set()
        self.modules: set = set()
        self.called_modules: set = set()
        self.fed: set = set()
        self.running: set[int] = set()  # Sequentials whose forward runs
        self.started: dict[int, int] = {}  # of each statement, the first object that its last run could make
        self.bent: dict = {}  # (path, span, kind) of a cut -> the places that keep what was cut from being a tensor
        self.proven: list = []  # objects of which a gradient was used without a test
        self.narrowed: list = []  # what was assumed: (value or old value, slot or name, truth or new value)
        self.viewed: dict = {}  # base's oid -> the views made of it
        self.hidden: dict = {}  # module's oid -> what stands for those of its parameters that we can't see
        self.hooks = False
        self.forward_hooks: list = []  # (part of a model that we can't see, function)
        self.fired: set[int] = set()  # the parts whose hooks were called
        self.filled_at = -1  # the step at which the program last wrote a `.grad` itself
        self.workarounds: list = []
        self.calls: list = []
        self.nested: list = []  # functions defined in functions: run at the end where nothing was seen to call them
        self.callees: set = set()

    def new(self, kind, **kw):
        oid = self.next_oid
        self.next_oid += 1
        kw.setdefault("made_after", len(self.st.backwards))
        kw.setdefault("module", None)
        obj = Obj(kind, **kw)
        if obj.statement is None and self.statements:
            obj.statement = self.statements[-1]
        self.st.heap[oid] = obj
        return Ref(oid)

    def obj(self, value):
        return self.st.heap.get(value.oid) if isinstance(value, Ref) else None

    def update(self, ref, **kw):
        new = self.st.heap[ref.oid].copy()
        for name, value in kw.items():
            setattr(new, name, value)
        self.st.heap[ref.oid] = new
        if "grad" in kw:
            self.st.known.pop(ref.oid, None)
        return new

    def module_frame(self, path):
        """The globals of an imported file: each name is interpreted when it is first asked for."""
        if path not in self.globals:
            module = self.project.module(path)
            frame = None
            if module is not None:
                frame = Frame(module, name="<module>")
                frame.vars = LazyNames(self, frame, bindings(module.tree.body))
            self.globals[path] = frame
        return self.globals[path]

    def bind_lazily(self, frame, statements):
        """Run the statements that bind a name of an imported file, in that file's globals."""
        saved = (self.st.frame, self.st.mode, self.statements, self.loops, self.returns, self.concrete)
        self.st.frame, self.st.mode, self.loops, self.returns = frame, True, [], []
        self.statements = []
        self.depth += 1
        try:
            self.block(statements)
        except Unreachable:
            pass
        finally:
            self.depth -= 1
            self.st = self.st or State()
            self.st.frame, self.st.mode, self.statements, self.loops, self.returns, self.concrete = saved

    def force(self, value):
        """What an imported name stands for."""
        while isinstance(value, Imported):
            if value.sub:
                return ModuleValue(value.path)
            frame = self.module_frame(value.path)
            if frame is not None and value.name in frame.vars:
                value = frame.vars[value.name]
            else:
                sub = self.project.resolve(value.path, value.name, 1) if value.path.endswith("__init__.py") else None
                return ModuleValue(sub) if sub and sub != value.path else UNKNOWN
        return value

    # ------------------------------------------------------------- statements
    def block(self, body):
        """Run statements; afterwards `self.st` is None where every path has left."""
        for stmt in body:
            if self.st is None:
                return
            self.statements.append((self.st.frame.module, stmt))
            self.started[id(stmt)] = self.next_oid
            try:
                self.statement(stmt)
            finally:
                self.statements.pop()

    def tick(self):
        self.steps += 1
        if self.steps > self.limit:
            raise OutOfBudget

    def statement(self, s):
        self.tick()
        method = getattr(self, "do_" + type(s).__name__, None)
        loops = len(self.loops)
        if method:
            try:
                method(s)
            except Unreachable:  # this path ends here; others go on
                self.st = None
                del self.loops[loops:]

    def do_Expr(self, s):
        self.eval(s.value)

    def do_Assign(self, s):
        if len(s.targets) == 1 and isinstance(s.targets[0], ast.Tuple) and isinstance(s.value, ast.Tuple) and len(
            s.targets[0].elts
        ) == len(s.value.elts):
            values = [self.eval(v) for v in s.value.elts]
            for target, value, node in zip(s.targets[0].elts, values, s.value.elts):
                self.assign(target, value, node, s)
            return
        value = self.eval(s.value)
        for target in s.targets:
            self.assign(target, value, s.value, s)

    def do_AnnAssign(self, s):
        if s.value is not None:
            self.assign(s.target, self.eval(s.value), s.value, s)

    def do_AugAssign(self, s):
        target = self.eval(s.target)
        value = self.eval(s.value)
        self.augmented(s, target, value)

    def do_Return(self, s):
        value = self.eval(s.value) if s.value is not None else Const(None)
        self.returns[-1].append((value, self.st)) if self.returns else None
        self.st = None

    def do_Raise(self, s):
        if s.exc is not None:
            self.eval(s.exc)
        self.st = None

    def do_Break(self, s):
        if self.loops:
            self.loops[-1][0].append(self.st)
        self.st = None

    def do_Continue(self, s):
        if self.loops:
            self.loops[-1][1].append(self.st)
        self.st = None

    def do_Pass(self, s):
        pass

    def do_Assert(self, s):
        self.test(s.test)
        self.assume(s.test, True)

    def do_Delete(self, s):
        for t in s.targets:
            if isinstance(t, ast.Name):
                self.st.frame.vars.pop(t.id, None)

    def do_Global(self, s):
        self.share(s.names, (self.st.frame.module.path, "<module>"))

    def do_Nonlocal(self, s):
        scope = self.st.frame.closure
        while scope is not None and s.names[0] not in scope.vars:
            scope = scope.closure
        if scope is not None:
            self.share(s.names, (scope.module.path, scope.name))

    def share(self, names, scope):
        frame = self.st.frame
        for name in names:
            value = self.find(name)
            frame.shared = {**(frame.shared or {}), (*scope, name): name}
            frame.vars[name] = value

    def pop_frame(self):
        """Back to the caller, which gets the names that belong to it, or to a scope that it may reach."""
        done, frame = self.st.frame, self.st.frame.parent
        self.st.frame = frame
        for (path, scope, name), held in (done.shared or {}).items() if frame is not None else ():
            if frame.name == scope and frame.module.path == path:
                frame.vars[name] = done.vars[held]
            else:  # under a key that is no name of this frame's own
                key = (frame.shared or {}).get((path, scope, name)) or f"{path}:{scope}:{name}"
                frame.shared = {**(frame.shared or {}), (path, scope, name): key}
                frame.vars[key] = done.vars[held]

    def passed_on(self, scope, name):
        """What a function that has returned left in a name of a scope that is not in sight of the frame that runs."""
        key, frame = (scope.module.path, scope.name, name), self.st.frame
        while frame is not None:
            if frame.shared and key in frame.shared:
                return frame.vars[frame.shared[key]]
            frame = frame.parent
        return None

    def do_Import(self, s):
        for alias in s.names:
            path = self.project.resolve(self.st.frame.module.path, alias.name)
            if path:
                value = ModuleValue(path)
                if not alias.asname and "." in alias.name:
                    value = External(alias.name.split(".")[0])
            else:
                value = External(alias.name if alias.asname else alias.name.split(".")[0])
            self.st.frame.vars[alias.asname or alias.name.split(".")[0]] = value

    def do_ImportFrom(self, s):
        importer = self.st.frame.module.path
        path = self.project.resolve(importer, s.module or "", s.level)
        for alias in s.names:
            if alias.name == "*":
                frame = self.module_frame(path) if path and path != importer else None
                for name in frame.vars if frame else ():
                    if not name.startswith("_"):
                        self.st.frame.vars[name] = Imported(path, name)
                continue
            if path and path != importer:
                value = Imported(path, alias.name)
            elif sub := self.project.resolve(importer, f"{s.module or ''}.{alias.name}".strip("."), s.level):
                value = Imported(sub, alias.name, sub=True)
            else:
                value = UNKNOWN if (path or s.level) else External(f"{s.module}.{alias.name}")
            self.st.frame.vars[alias.asname or alias.name] = value

    def do_FunctionDef(self, s):
        value = Function(s, self.st.frame.module, self.st.frame, None, s.name)
        for decorator in s.decorator_list:
            text = ast.unparse(decorator)
            if not re.search(r"(no_grad|enable_grad|inference_mode|wraps|compile|jit|cache|torch\.)", text):
                value = value  # an unknown decorator mostly wraps: the body is still what runs
        if self.stack:
            self.nested.append(value)
        self.st.frame.vars[s.name] = value

    do_AsyncFunctionDef = do_FunctionDef

    def do_ClassDef(self, s):
        frame = self.st.frame
        bases = tuple(self.eval(b) for b in s.bases)
        attrs = {}
        cls = Class(s, frame.module, bases, attrs)
        for item in s.body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                attrs[item.name] = Function(item, frame.module, frame, cls, item.name)
            elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                attrs[item.targets[0].id] = self.eval(item.value)
            elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                attrs.setdefault("__fields__", []).append((item.target.id, item.value))
                if item.value is not None:
                    attrs[item.target.id] = self.eval(item.value)
        frame.vars[s.name] = self.decorated(cls, s.decorator_list)

    def decorated(self, cls, decorators):
        """What a decorator of the program makes of the class (`@register("mlp")`): mostly the class itself, entered somewhere."""
        for decorator in reversed(decorators):
            function = decorator.func if isinstance(decorator, ast.Call) else decorator
            maker = self.lookup(function.id) if isinstance(function, ast.Name) else None
            if isinstance(maker, Function) and filled(maker.node):  # others, such as those that write documentation, cost time only
                value = self.eval(decorator)
                made = self.call(value, [cls], {}, decorator, False) if isinstance(value, Function) else cls
                cls = made if isinstance(made, Class) else cls
        return cls

    def do_If(self, s):
        decided = self.test(s.test)
        if decided is not None:
            self.assume(s.test, decided)
            self.block(s.body if decided else s.orelse)
            return
        before = self.st
        self.st = before.fork()
        self.assume(s.test, True)
        self.block(s.body)
        after_true = self.st
        self.st = before
        self.assume(s.test, False)
        self.block(s.orelse)
        self.st = join_states(after_true, self.st)

    def do_With(self, s):
        saved, switches, returned = self.st.mode, len(self.switches), len(self.returns[-1]) if self.returns else 0
        for item in s.items:
            value = self.eval(item.context_expr)
            mode = self.grad_mode_of(item.context_expr, value)
            if mode != "same":
                self.st.mode = mode
                self.switches.append((self.st.frame.module, s, item.context_expr, len(self.statements)))
            if item.optional_vars is not None:
                known = self.obj(value)
                self.assign(item.optional_vars, value if known is not None and known.kind == "opaque" else UNKNOWN, item.context_expr, s)
        try:
            self.block(s.body)
        finally:
            del self.switches[switches:]
        left = [self.st, *(st for _, st in (self.returns[-1][returned:] if self.returns else ()))]
        left += [st for breaks, continues, *_ in self.loops for st in [*breaks, *continues]]
        for st in left:  # however the block is left, the mode is what it was
            if st is not None:
                st.mode = saved

    do_AsyncWith = do_With

    def do_Try(self, s):
        before = self.st.fork()
        self.block(s.body)
        if self.st is not None:
            self.block(s.orelse)
        after = self.st
        for handler in s.handlers:
            self.st = join_states(before.fork(), after.fork() if after else None)
            if handler.name:
                self.st.frame.vars[handler.name] = UNKNOWN
            self.block(handler.body)
            after = join_states(after, self.st)
        self.st = after
        if s.finalbody:
            if self.st is None:
                self.st = before
                self.block(s.finalbody)
                self.st = None
            else:
                self.block(s.finalbody)

    do_TryStar = do_Try

    def do_Match(self, s):
        self.eval(s.subject)
        before, after = self.st, None
        for case in s.cases:
            self.st = before.fork()
            for name in ast.walk(case.pattern):
                if isinstance(name, (ast.MatchAs, ast.MatchStar)) and name.name:
                    self.st.frame.vars[name.name] = UNKNOWN
            self.block(case.body)
            after = join_states(after, self.st)
        self.st = join_states(after, before)

    def do_For(self, s):
        iterable = self.eval(s.iter)
        limit = LONG_UNROLL if len(s.body) <= 3 else UNROLL
        self.loop(s, self.turns(iterable, limit), exact=self.is_exact(iterable, limit))

    do_AsyncFor = do_For

    def do_While(self, s):
        self.loop(s, [None, None], test=s.test)

    def is_exact(self, value, limit):
        """Are the turns of a loop over the value all that there are?"""
        obj = self.obj(value)
        return isinstance(value, Const) or obj is not None and obj.kind in ("list", "tuple", "iter", "dict") and not obj.open and len(obj.items) <= limit

    def loop(self, s, turns, test=None, exact=False):
        self.loops.append(([], [], s, len(self.st.backwards), exact))
        turns = list(turns)
        start, first, before = dict(self.st.frame.vars), self.next_oid, None
        for number, value in enumerate(turns):
            if self.st is None:
                break
            self.tick()
            if number == 1 and not exact:
                self.widen(start)
            if test is not None:
                if self.test(test) is False:
                    break
                self.assume(test, True)
            else:
                self.assign(s.target, value, s.iter, s)
            self.block(s.body)
            breaks, continues, *_ = self.loops[-1]
            for st in continues:
                self.st = join_states(self.st, st)
            continues.clear()
            if not exact and 1 < len(turns) <= number + 2 and len(turns) < 4 and self.st is not None:
                now = self.known_of_names(), len(self.st.backwards) > self.loops[-1][3] and self.leaves_made_before(first)
                if before is not None and now != before:
                    turns.append(turns[-1])  # not stable yet
                before = now
        breaks, *_ = self.loops.pop()
        if self.st is not None and s.orelse:
            self.block(s.orelse)
        for st in breaks:
            self.st = join_states(self.st, st)

    def known_of_names(self):
        """What is known of the tensors that names stand for."""
        out = {}
        for name, value in self.st.frame.vars.items() if not isinstance(self.st.frame.vars, LazyNames) else ():
            objs = [obj for v in values_of(value) if (obj := self.obj(v)) is not None and obj.kind == "tensor"]
            if objs:
                out[name] = {(obj.leaf, obj.rg, obj.grad) for obj in objs}
        return out

    def leaves_made_before(self, first):
        """What is known of the leaves that are older than `first`."""
        return {oid: (obj.grad, obj.leaf, obj.rg) for oid, obj in self.st.heap.objects() if oid < first and obj.kind == "tensor" and obj.leaf is not False}

    def widen(self, start):
        """Numbers that the first turn changed are any number from the second turn on."""
        for name, value in self.st.frame.vars.items():
            old = start.get(name)
            if isinstance(value, Const) and isinstance(old, Const) and value.value != old.value:
                if isinstance(value.value, (int, float)) and isinstance(old.value, (int, float)):
                    self.st.frame.vars[name] = PLAIN

    def turns(self, value, limit=UNROLL):
        """The values of a loop variable, turn by turn: all of a short known container, else two."""
        if isinstance(value, Multi):
            columns = [self.turns(v) for v in value.values if not isinstance(v, Const)]
            longest = max(map(len, columns), default=0)
            return [self.each([c[min(i, len(c) - 1)] for c in columns if c]) for i in range(min(longest, UNROLL))]
        obj = self.obj(value)
        if obj is not None and obj.kind in ("list", "tuple", "iter") and not obj.open and len(obj.items) <= limit:
            return list(obj.items)
        if obj is not None and obj.kind == "module" and obj.items and not isinstance(obj.items, dict) and not obj.open and len(obj.items) <= limit:
            return list(obj.items)
        if obj is not None and obj.kind == "dict" and len(obj.items) <= UNROLL and not obj.open:
            return [Const(k) for k in obj.items]
        if obj is not None and obj.kind in ("list", "tuple", "iter") and obj.items:
            each = self.each(obj.items)
            return [each, each]
        if obj is not None and obj.kind == "range":
            first, count = obj.items
            if count is not None and count <= 0:
                return []
            return [Const(first)] if count == 1 else [Const(first), PLAIN]
        if isinstance(value, Const) and isinstance(value.value, (str, tuple)) and len(value.value) <= UNROLL:
            return [Const(c) for c in value.value]
        element = self.element_of(value)
        return [element, self.element_of(value, again=element)]

    def each(self, items):
        flat = tuple(dict.fromkeys(v for i in items for v in self.likely_parts(i)))
        if len(flat) == 1:
            return flat[0]
        if flat and all(isinstance(v, Number) for v in flat):
            return Number(frozenset().union(*(v.cuts for v in flat)))
        return Multi(flat[:24], each=True)

    # ------------------------------------------------------------- conditions
    def test(self, node):
        """True / False / None: what the condition is known to be.  Evaluates it once, for its effects."""
        if isinstance(node, ast.BoolOp):
            before, mark = self.st, len(self.narrowed)
            results = []
            self.st = before.fork()
            for value in node.values:
                result = self.test(value)
                results.append(result)
                if isinstance(node.op, ast.And) and result is False or isinstance(node.op, ast.Or) and result is True:
                    break
                self.assume(value, isinstance(node.op, ast.And))
            self.widen_again(mark)
            self.st.known = dict(before.known)
            if isinstance(node.op, ast.And):
                return False if False in results else (True if all(r is True for r in results) else None)
            return True if True in results else (False if all(r is False for r in results) else None)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.test(node.operand)
            return None if inner is None else not inner
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self.compare_test(node)
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            self.note_truth(node, node, self.eval(node.value), "truth")
        return self.truth(self.eval(node))

    def truth(self, value):
        if isinstance(value, Const):
            try:
                return bool(value.value)
            except Exception:
                return None
        obj = self.obj(value)
        if obj is not None:
            if obj.kind in ("list", "tuple", "dict"):
                return None if obj.open else bool(obj.items)
            if obj.kind in ("instance", "module", "optimizer"):
                return True
        if isinstance(value, (Function, Class)):
            return True
        return None

    def compare_test(self, node):
        op, right = node.ops[0], node.comparators[0]
        if isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)) and isinstance(right, ast.Constant) and right.value is None:
            grad_of = self.grad_holder(node.left)
            if grad_of is not None:
                if any(isinstance(v, Ref) and v.oid in self.derived for v in values_of(grad_of)):
                    return None  # what a wrong rebinding left: look at both sides
                self.tested.update(v.oid for v in values_of(grad_of) if isinstance(v, Ref))
                states = {self.grad_state(v) for v in values_of(grad_of)}
                negative = isinstance(op, (ast.IsNot, ast.NotEq))
                if isinstance(op, (ast.Eq, ast.NotEq)) and isinstance(node.left, ast.Attribute):
                    self.note_truth(node, node.left, grad_of, "is not" if negative else "is")
                if negative and isinstance(grad_of, Ref):  # what follows wants it
                    self.wanted.add(grad_of.oid)
                if states == {"set"}:
                    return negative
                if states <= {"none", "cleared"}:
                    return None if self.concrete is False else not negative
                return None
            value = self.eval(node.left)
            if isinstance(value, Const):
                same = value.value is None
            elif isinstance(value, (Function, Class, Number)) or self.obj(value) is not None and self.obj(value).kind != "opaque":
                same = False
            else:
                return None
            return (not same) if isinstance(op, (ast.IsNot, ast.NotEq)) else same
        left, right = self.eval(node.left), self.eval(right)
        if isinstance(left, Const) and isinstance(right, Const):
            try:
                return bool(COMPARE[type(op)](left.value, right.value))
            except Exception:
                return None
        if isinstance(op, (ast.In, ast.NotIn)) and isinstance(left, Const):
            obj = self.obj(right)
            if obj is not None and not obj.open and obj.kind == "dict":
                return (left.value in obj.items) == isinstance(op, ast.In)
            if obj is not None and not obj.open and obj.kind in ("list", "tuple") and all(isinstance(i, Const) for i in obj.items):
                return (left in obj.items) == isinstance(op, ast.In)
        return None

    def note_truth(self, node, read, holder, form):
        """`if p.grad:`, `p.grad == None`"""
        objs = [self.obj(v) for v in values_of(holder)]
        if any(o is not None and (o.kind == "tensor" or o.kind == "opaque" and (o.param or self.iterated_argument(o, read.value))) for o in objs):
            self.fact("grad-truthiness", node, True, form=form, read=self.statements[-1][0].source(read), inverted=False)

    def grad_holder(self, node):
        """The value whose `.grad` the expression reads (`p.grad`, `getattr(p, "grad", None)`, a name bound to it)."""
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            return self.eval(node.value)
        if isinstance(node, ast.NamedExpr):
            value = self.eval(node)
            return Multi(tuple(Ref(v.receiver.oid) for v in values_of(value) if isinstance(v, Bound) and v.name == "grad")) if any(
                isinstance(v, Bound) and v.name == "grad" for v in values_of(value)) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(
            node.args) >= 2 and isinstance(node.args[1], ast.Constant) and node.args[1].value == "grad":
            return self.eval(node.args[0])
        if isinstance(node, ast.Name):
            value = self.lookup(node.id)
            grads = [v for v in values_of(value) if isinstance(v, Bound) and v.name == "grad"]
            if grads:
                return grads[0].receiver if len(grads) == 1 else Multi(tuple(g.receiver for g in grads))
        return None

    def assume(self, node, truth):
        """Narrow: what holds where the condition is `truth`."""
        if self.st is None:
            return
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.assume(node.operand, not truth)
        if isinstance(node, ast.BoolOp):
            if isinstance(node.op, ast.And) == truth:
                for value in node.values:
                    self.assume(value, truth)
            return
        if isinstance(node, ast.NamedExpr):
            return self.assume(node.target, truth)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            op, right = node.ops[0], node.comparators[0]
            if isinstance(right, ast.Constant) and right.value is None and isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
                left = node.left.target if isinstance(node.left, ast.NamedExpr) else node.left
                holder = self.grad_holder(left)
                is_set = isinstance(op, (ast.IsNot, ast.NotEq)) == truth
                if holder is not None:
                    self.know(left, holder, is_set)
                elif isinstance(node.left, ast.Name) and isinstance(self.lookup(node.left.id), Multi):
                    kept = tuple(v for v in values_of(self.lookup(node.left.id)) if (v == Const(None)) != is_set)
                    if kept:
                        self.narrow(node.left.id, kept[0] if len(kept) == 1 else Multi(kept))
            return
        holder = self.grad_holder(node)
        if holder is not None:
            return self.know(node, holder, truth)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance" and len(node.args) == 2:
            holder = self.grad_holder(node.args[0])  # `isinstance(p.grad, torch.Tensor)`: it is no `None`
            return self.know(node.args[0], holder, truth) if holder is not None else self.assume_class(node, truth)
        if isinstance(node, ast.Call):
            return self.assume_call(node, truth)
        if isinstance(node, ast.Attribute) and node.attr in ("requires_grad", "is_leaf"):
            value = self.eval(node.value)
            slot = "rg" if node.attr == "requires_grad" else "leaf"
            kept = tuple(v for v in values_of(value) if self.obj(v) is None or getattr(self.obj(v), slot) in (None, truth))
            if isinstance(value, Multi) and kept and isinstance(node.value, ast.Name):
                self.narrow(node.value.id, kept[0] if len(kept) == 1 else Multi(kept, each=value.each))
            for v in kept:
                obj = self.obj(v)
                if obj is not None and getattr(obj, slot) is None:
                    self.narrowed.append((v, slot, truth))
                    self.update(v, **{slot: truth})

    def narrow(self, name, value):
        vars = self.st.frame.vars
        self.narrowed.append((vars.get(name), name, value))
        vars[name] = value

    def widen_again(self, mark):
        """Take back what was assumed since `mark`: it held only for the rest of a condition."""
        for old, what, new in reversed(self.narrowed[mark:]):
            if new is True or new is False:
                if self.obj(old) is not None and getattr(self.obj(old), what) is new:
                    self.update(old, **{what: None})
            elif self.st is not None and self.st.frame.vars.get(what) == new:
                self.st.frame.vars[what] = old
        del self.narrowed[mark:]

    def assume_class(self, node, truth):
        """`isinstance(m, nn.Linear)`: of several modules those that are; what is out of sight has the parameters of one."""
        name = node.args[0]
        if not isinstance(name, ast.Name):
            return
        value, classes = self.lookup(name.id), self.flat([self.eval(node.args[1])])
        kept = tuple(v for v in values_of(value) if self.instance_of(v, classes) in (None, truth))
        if kept and isinstance(value, Multi):
            self.narrow(name.id, kept[0] if len(kept) == 1 else Multi(kept, each=value.each))
        if truth and classes and all(isinstance(c, External) and c.name.startswith("torch.nn.") and c.name.rsplit(".", 1)[-1] in tm.WEIGHTED for c in classes):
            for v in kept:
                if self.obj(v) is not None and self.obj(v).kind == "opaque" and "weight" not in self.obj(v).attrs:
                    self.store_attribute(v, "weight", self.hidden_parameter(v))

    def assume_call(self, node, truth):
        """A predicate of the user's (`has_grad(p)`, `self.has_grad(p)`): assume what it returns."""
        fn, shift, receiver = None, 0, None
        if isinstance(node.func, ast.Name):
            fn = self.lookup(node.func.id)
        elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            bound = self.eval(node.func)
            if isinstance(bound, Bound) and bound.function is not None:
                fn, shift, receiver = bound.function, 1, bound.receiver
        if not isinstance(fn, Function):
            return
        body = fn.node.body
        expr = body if isinstance(fn.node, ast.Lambda) else body[-1].value if body and isinstance(body[-1], ast.Return) else None
        params = [a.arg for a in fn.node.args.args]
        if expr is None or len(params) < len(node.args) + shift:
            return
        frame = Frame(fn.module, self.st.frame, fn.closure)
        if receiver is not None:
            frame.vars[params[0]] = receiver
        for name, arg in zip(params[shift:], node.args):
            frame.vars[name] = self.eval(arg)
        self.st.frame = frame
        self.assume(expr, truth)
        self.pop_frame()

    def know(self, node, holder, is_set):
        """`.grad` of `holder` was tested: true of this branch only, so it is kept beside the heap."""
        values = values_of(holder)
        if isinstance(holder, Multi):
            wanted = ("set", "maybe", "unknown") if is_set else ("none", "cleared", "maybe", "unknown")
            kept = tuple(v for v in values if self.grad_state(v) in wanted)
            if kept and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                self.narrow(node.value.id, kept[0] if len(kept) == 1 else Multi(kept, each=holder.each))
                values = kept
        for v in values:
            if isinstance(v, Ref):
                self.st.known[v.oid] = "set" if is_set else "none"
        if is_set and isinstance(node, ast.Name):  # the name holds a gradient, so from here a tensor
            self.narrow(node.id, self.tensor(node, (), rg=False, leaf=True, grads=tuple(v.oid for v in values if isinstance(v, Ref))))

    def grad_state(self, value):
        if not isinstance(value, Ref):
            return "unknown"
        if value.oid in self.st.known:
            return self.st.known[value.oid]
        obj = self.obj(value)
        return obj.grad if obj is not None else "unknown"

    # ------------------------------------------------------------- assignment
    def assign(self, target, value, node, stmt):
        if isinstance(target, ast.Starred):
            target = target.value
        if isinstance(target, ast.Name):
            self.rebound(target, self.st.frame.vars.get(target.id), value, stmt)
            self.st.frame.vars[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            starred = next((i for i, t in enumerate(target.elts) if isinstance(t, ast.Starred)), None)
            parts = self.unpack(value, len(target.elts)) if starred is None else self.unpack_around(value, starred, len(target.elts) - starred - 1)
            for t, v in zip(target.elts, parts):
                self.assign(t, v, node, stmt)
        elif isinstance(target, ast.Attribute):
            self.set_attribute(target, self.eval(target.value), value, stmt)
        elif isinstance(target, ast.Subscript):
            self.set_item(target, self.eval(target.value), self.eval(target.slice), value, stmt)

    def unpack(self, value, n):
        obj = self.obj(value)
        if obj is not None and obj.kind in ("list", "tuple", "iter") and len(obj.items) == n and not obj.open:
            return list(obj.items)
        if obj is not None and obj.kind in ("list", "tuple", "iter") and obj.items:
            each = self.each(obj.items)
            return [each] * n
        if isinstance(value, Multi):
            columns = [self.unpack(v, n) for v in value.values if v != Const(None)]
            if columns:
                return [c[0] if len(set(c)) == 1 else Multi(tuple(dict.fromkeys(x for v in c for x in values_of(v))), each=value.each)
                        for c in map(list, zip(*columns))]
        return [self.part_of(value, i) for i in range(n)]

    def unpack_around(self, value, before, after):
        """The parts of `a, *rest, b = value`: single values, with a list between them."""
        obj = self.obj(value)
        if isinstance(value, Multi):
            columns = [self.unpack_around(v, before, after) for v in value.values if v != Const(None)]
            if columns:
                return [c[0] if len(set(c)) == 1 else Multi(tuple(dict.fromkeys(x for v in c for x in values_of(v))), each=value.each)
                        for c in map(list, zip(*columns))]
        if obj is not None and obj.kind in ("list", "tuple", "iter") and not obj.open and len(obj.items) >= before + after:
            end = len(obj.items) - after
            return [*obj.items[:before], self.new("list", items=tuple(obj.items[before:end])), *obj.items[end:]]
        rest = self.part_of(value, before)
        return [*(self.part_of(value, i) for i in range(before)), rest, *([rest] * after)]

    # ------------------------------------------------------------ expressions
    def eval(self, node):
        self.tick()
        method = getattr(self, "on_" + type(node).__name__, None)
        value = method(node) if method else UNKNOWN
        if self.explain is not None:
            self.note_explanation(node, value)
        return value

    def on_Constant(self, node):
        return Const(node.value)

    def lookup(self, name):
        return self.force(self.find(name))

    def find(self, name):
        frame = self.st.frame
        if name in frame.vars:
            return frame.vars[name]
        closure = frame.closure
        live = frame.parent
        while live is not None:  # the closure as it is now, where it is still running
            if live.name and closure is not None and live.name == closure.name and live.module is closure.module and name in live.vars:
                return live.vars[name]
            live = live.parent
        while closure is not None:
            if (value := self.passed_on(closure, name)) is not None:
                return value
            if name in closure.vars:
                return closure.vars[name]
            closure = closure.closure
        top = self.globals.get(frame.module.path)
        if top is not None and (value := self.passed_on(top, name)) is not None:
            return value
        if top is not None and name in top.vars:
            return top.vars[name]
        return External("builtins." + name) if name in BUILTINS else UNKNOWN

    def on_Name(self, node):
        return self.lookup(node.id)

    def on_NamedExpr(self, node):
        value = self.eval(node.value)
        self.assign(node.target, value, node.value, node)
        return value

    def on_Tuple(self, node):
        return self.sequence("tuple", node)

    def on_List(self, node):
        return self.sequence("list", node)

    def on_Set(self, node):
        return self.sequence("list", node)

    def sequence(self, kind, node):
        items, open_ = [], False
        for element in node.elts:
            if isinstance(element, ast.Starred):
                value = self.eval(element.value)
                obj = self.obj(value)
                if obj is not None and obj.kind in ("list", "tuple", "iter"):
                    items.extend(obj.items)
                    open_ |= obj.open
                else:
                    items.append(self.element_of(value))
                    open_ = True
            else:
                items.append(self.eval(element))
        return self.new(kind, items=tuple(items), open=open_)

    def on_Dict(self, node):
        items, open_ = {}, False
        for key, value in zip(node.keys, node.values):
            v = self.eval(value)
            if key is None:
                obj = self.obj(v)
                if obj is not None and obj.kind == "dict":
                    items.update(obj.items)
                open_ = True if obj is None or obj.open else open_
                continue
            k = self.eval(key)
            if isinstance(k, Const):
                items[k.value] = v
            else:
                open_ = True
                items[f"*{len(items)}"] = v
        return self.new("dict", items=items, open=open_)

    def on_JoinedStr(self, node):
        text = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.eval(part.value)
                plain = isinstance(value, Const) and isinstance(value.value, (str, int)) and part.format_spec is None and part.conversion == -1
                text = None if text is None or not plain else f"{text}{value.value}"
            elif text is not None:
                text += str(part.value)
        return UNKNOWN if text is None else Const(text)

    def on_Starred(self, node):
        return self.eval(node.value)

    def on_Await(self, node):
        return self.awaited(self.eval(node.value))

    def awaited(self, value):
        obj = self.obj(value)
        return obj.attrs["*awaited"] if obj is not None and "*awaited" in obj.attrs else value

    def on_Yield(self, node):
        value = self.eval(node.value) if node.value is not None else Const(None)
        if self.yields:
            self.yields[-1].append(value)
        return UNKNOWN

    def on_YieldFrom(self, node):
        value = self.eval(node.value)
        if self.yields:
            self.yields[-1].extend(self.turns(value))
        return UNKNOWN

    def on_Lambda(self, node):
        return Function(node, self.st.frame.module, self.st.frame, None, "<lambda>")

    def on_IfExp(self, node):
        decided = self.test(node.test)
        if decided is not None:
            self.assume(node.test, decided)
            return self.eval(node.body if decided else node.orelse)
        before = self.st
        self.st = before.fork()
        self.assume(node.test, True)
        a = self.eval(node.body)
        after = self.st
        self.st = before
        self.assume(node.test, False)
        b = self.eval(node.orelse)
        self.st = join_states(after, self.st)
        return join_values(a, b)

    def on_BoolOp(self, node):
        known, mark = dict(self.st.known), len(self.narrowed)
        values = []
        for operand in node.values:
            value = self.eval(operand)
            values.append(value)
            truth = self.truth(value)
            if truth is not None and truth != isinstance(node.op, ast.And):
                break
            self.assume(operand, isinstance(node.op, ast.And))
        self.widen_again(mark)
        self.st.known = known
        out = values[0]
        for v in values[1:]:
            out = join_values(out, v)
        return out

    def on_Compare(self, node):
        if len(node.ops) == 1 and isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None:
            result = self.compare_test(node)
            return UNKNOWN if result is None else Const(result)
        values = [self.eval(node.left)] + [self.eval(c) for c in node.comparators]
        if len(values) == 2 and all(isinstance(v, Const) for v in values):
            try:
                return Const(bool(COMPARE[type(node.ops[0])](values[0].value, values[1].value)))
            except Exception:
                return UNKNOWN
        return self.compare_values(node, values)

    def on_Slice(self, node):
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.eval(part)
        return UNKNOWN

    def on_ListComp(self, node):
        return self.comprehension(node, "list")

    on_SetComp = on_ListComp

    def on_GeneratorExp(self, node):
        return self.comprehension(node, "iter")

    def on_DictComp(self, node):
        return self.comprehension(node, "dict")

    def comprehension(self, node, kind):
        """Its own scope, its conditions narrow the element."""
        outer = self.st.frame
        inner = Frame(outer.module, outer, outer if outer.name == "" else outer, "", outer.owner)
        inner.closure = outer
        inner.vars = {}
        self.st.frame = inner
        results, keys, open_ = [], [], [False]

        def run(generators):
            if self.st is None:
                return
            if not generators:
                if kind == "dict":
                    keys.append(self.eval(node.key))
                    results.append(self.eval(node.value))
                else:
                    results.append(self.eval(node.elt))
                return
            gen = generators[0]
            iterable = self.eval(gen.iter)
            turns = self.turns(iterable, LONG_UNROLL)
            obj = self.obj(iterable)
            exact = isinstance(iterable, Const) or obj is not None and obj.kind in ("list", "tuple", "iter", "dict", "range") and not obj.open
            if obj is not None and obj.kind == "range":
                count = obj.items[1]
                exact = count is not None and count <= UNROLL
                if exact:
                    turns = [Const(obj.items[0] + i) for i in range(count)]
            open_[0] |= not exact
            for value in turns:
                known, mark = dict(self.st.known), len(self.narrowed)
                self.assign(gen.target, value, gen.iter, node)
                keep = True
                for condition in gen.ifs:
                    decided = self.test(condition)
                    if decided is False:
                        keep = False
                        break
                    if decided is None:
                        open_[0] = True
                    self.assume(condition, True)
                if keep:
                    run(generators[1:])
                if self.st is None:
                    return
                self.widen_again(mark)
                narrowed = self.st.known
                self.st.known = known
                if gen.ifs and keep:
                    self.filtered.update({k: v for k, v in narrowed.items() if known.get(k) != v})

        self.filtered, proven = {}, len(self.proven)
        run(node.generators)
        if self.st is not None:
            self.pop_frame()
            self.st.known.update(dict.fromkeys(self.proven[proven:], "set"))
        filtered, self.filtered = self.filtered, {}
        if kind == "dict":
            items = {}
            for k, v in zip(keys, results):
                items[k.value if isinstance(k, Const) else f"*{len(items)}"] = v
            return self.new("dict", items=items, open=open_[0])
        ref = self.new(kind, items=tuple(results), open=open_[0])
        # Elements that passed `if p.grad is not None` keep that knowledge.
        for value in results:
            for v in values_of(value):
                if isinstance(v, Ref) and filtered.get(v.oid) == "set":
                    self.st.known[v.oid] = "set"
        return ref

    filtered: dict = {}

    # -------------------------------------------------------------- functions
    def call_function(self, fn, args, kwargs, node, receiver=None, open_args=False):
        """Follow a call into a function of the checked files."""
        if self.depth >= DEPTH or sum(1 for f in self.stack if f is fn.node) > 1:
            return self.unknown_result(node, [*args, *([receiver] if receiver is not None else ())], kwargs)
        frame = Frame(fn.module, self.st.frame, fn.closure, fn.name, fn.owner)
        positional = ([receiver] if receiver is not None else []) + list(args)
        a = fn.node.args
        names = [p.arg for p in a.posonlyargs + a.args]
        defaults = dict(zip(names[len(names) - len(a.defaults):], a.defaults)) if a.defaults else {}
        defaults.update({k.arg: d for k, d in zip(a.kwonlyargs, a.kw_defaults) if d is not None})
        static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in getattr(fn.node, "decorator_list", ()))
        if static and receiver is not None:
            positional = positional[1:]
        for name, value in zip(names, positional):
            frame.vars[name] = value
        if a.vararg:
            frame.vars[a.vararg.arg] = self.new("tuple", items=tuple(positional[len(names):]), open=open_args)
        extra = {}
        for name, value in kwargs.items():
            if name in names or any(k.arg == name for k in a.kwonlyargs):
                frame.vars[name] = value
            else:
                extra[name] = value
        if a.kwarg:
            frame.vars[a.kwarg.arg] = self.new("dict", items=extra, open=open_args)
        for name in names + [k.arg for k in a.kwonlyargs]:
            if name not in frame.vars:
                frame.vars[name] = UNKNOWN if open_args else self.default_value(defaults.get(name), fn)
        module, stmt = self.statements[-1] if self.statements else (None, None)
        self.calls.append((module, stmt, node, fn, 1 if receiver is not None else 0))
        caller, limit, mode = self.st.frame, self.limit, self.st.mode
        self.limit = min(limit, self.steps + max(400, (limit - self.steps) // 2))
        try:
            result = self.run_body(fn, frame)
            if isinstance(fn.node, ast.AsyncFunctionDef) and not is_generator(fn.node):
                return self.new("opaque", origin="coroutine", attrs={"*awaited": result})
            return result
        except OutOfBudget:
            # The function is too much to follow: what it does is unknown, and its caller goes on.
            if self.steps > limit or self.st is None or not isinstance(node, ast.Call):
                raise
            self.visited.discard((fn.module.path, fn.node.lineno, fn.node.col_offset))
            self.st.frame, self.st.mode = caller, mode
            return self.unknown_result(node, args, kwargs, receiver)
        finally:
            self.limit = limit
            self.calls.pop()

    def default_value(self, node, fn):
        if node is None:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return Const(node.value)
        saved = self.st.frame
        frame = Frame(fn.module, saved, fn.closure)
        self.st.frame = frame
        value = self.eval(node)
        self.pop_frame()
        return value

    def run_body(self, fn, frame):
        self.visited.add((fn.module.path, fn.node.lineno, fn.node.col_offset))
        saved_mode, saved_loops, switches, decorated = self.st.mode, self.loops, len(self.switches), False
        for decorator in getattr(fn.node, "decorator_list", ()):
            mode = self.decorator_mode(decorator)
            if mode != "same":
                self.st.mode, decorated = mode, True
                self.switches.append((fn.module, fn.node, decorator, None))
        if id(fn.node) in self.backward_hooks or self.is_autograd_function(fn):
            self.st.mode, decorated = False, True
        self.st.frame = frame
        self.loops = []
        self.depth += 1
        self.stack.append(fn.node)
        self.returns.append([])
        self.yields.append([])
        try:
            if isinstance(fn.node, ast.Lambda):
                value = self.eval(fn.node.body)
                self.pop_frame()
                return value
            self.block(fn.node.body)
            results = self.returns[-1]
            if is_generator(fn.node):
                st = self.st
                for _, r in results:
                    st = join_states(st, r)
                self.st = st
                value = self.new("iter", items=tuple(self.yields[-1][:24]), open=True) if st is not None else None
            else:
                value, st = (Const(None), self.st) if self.st is not None else (None, None)
                for v, r in results:
                    value = v if value is None else join_values(value, v)
                    st = join_states(st, r)
            if st is None:  # it always raises
                self.st = None
                raise Unreachable
            self.st = st
            self.pop_frame()
            return value if value is not None else Const(None)
        finally:
            self.loops = saved_loops
            self.depth -= 1
            self.stack.pop()
            self.returns.pop()
            self.yields.pop()
            del self.switches[switches:]
            if self.st is not None and decorated:  # what `set_grad_enabled(False)` did stays when a function returns
                self.st.mode = saved_mode

    def is_autograd_function(self, fn):
        """Is it the forward or backward of a `torch.autograd.Function`?  Both run with grad mode off."""
        return isinstance(fn.owner, Class) and fn.name in ("forward", "backward", "setup_context", "jvp") and any(
            isinstance(b, External) and b.name.startswith("torch.autograd") for b in fn.owner.bases)

    # ------------------------------------------------------------------ facts
    def where(self, node):
        module, stmt = self.statements[-1] if self.statements else (self.st.frame.module, node)
        for m, s in reversed(self.statements):
            module, stmt = m, s
            break
        return module, stmt

    def fact(self, kind, node, bad, module=None, stmt=None, **info):
        if module is None:
            module, stmt_node = self.where(node)
            stmt = stmt or stmt_node
        span, statement = module.span(node), module.span(stmt)
        info.setdefault("source", module.source(node) if bad else "")
        if bad:
            info.setdefault("torch", module.torch_name())
        fact = Fact(kind, module.path, span, statement, bad, info, self.concrete)
        self.out.facts.append(fact)
        return fact

    def note_explanation(self, node, value):
        module = self.st.frame.module if self.st and self.st.frame else None
        if module is None or module.path != self.explain[0] or getattr(node, "lineno", 0) != self.explain[1]:
            return
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.Subscript)):
            return
        self.explain[2].setdefault(module.source(node), self.describe(value))

    def leaf_of(self, obj):
        """Is a tensor a leaf, as far as is known?  Where there is nothing to convert, a conversion returns the leaf itself."""
        sources = map(self.st.heap.get, obj.ins) if obj.conversion not in (None, "clone") else ()
        return None if any(o is not None and self.leaf_of(o) is not False for o in sources) else obj.leaf

    def describe(self, value):
        if isinstance(value, Multi):
            return ("each of " if value.each else "one of ") + ", ".join(dict.fromkeys(self.describe(v) for v in value.values))
        obj = self.obj(value)
        if isinstance(value, Bound):
            return f"gradient ({self.grad_state(value.receiver)})" if value.name == "grad" and isinstance(value.receiver, Ref) else f"method {value.name}"
        if obj is None:
            return "unknown" if value is UNKNOWN or value == UNKNOWN else type(value).__name__.lower() + (
                f" {value.value!r}" if isinstance(value, Const) else f" {value.name}" if isinstance(value, External) else "")
        if obj.kind == "tensor":
            known = {True: "yes", False: "no", None: "unknown"}
            return (f"tensor (leaf: {known[self.leaf_of(obj)]}, requires grad: {known[obj.rg]}, grad: {self.grad_state(value)}, "
                    f"retained: {known[obj.retained]}, dtype: {obj.dtype or 'unknown'})")
        return obj.kind


class Unreachable(Exception):
    """Every path of a called function raises: what follows the call does not run."""


COMPARE = {
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.Lt: lambda a, b: a < b, ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b, ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}
BUILTINS = set(dir(__builtins__)) if not isinstance(__builtins__, dict) else set(__builtins__)


def is_main_guard(stmt):
    return isinstance(stmt, ast.If) and isinstance(stmt.test, ast.Compare) and isinstance(
        stmt.test.left, ast.Name) and stmt.test.left.id == "__name__"


def is_generator(node):
    if not hasattr(node, "is_generator"):
        node.is_generator = _is_generator(node)
    return node.is_generator


def _is_generator(node):
    stack = list(node.body) if isinstance(node.body, list) else []
    while stack:
        n = stack.pop()
        if isinstance(n, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            stack.extend(ast.iter_child_nodes(n))
    return False


def observe_file(project, path, out, explain=None):
    """Interpret a file: its top level as a program, then what that never called, with unknown arguments."""
    from gradfix.source import SourceError, decode

    try:
        source = decode(path, project.data(path))
        code = project.code(path)
    except OSError as error:
        out.problems.append(Problem(path, error.strerror or str(error)))
        return
    except SourceError as error:
        out.problems.append(Problem(path, error.reason, error.row, error.col))
        return
    if OTHER_FRAMEWORK.search(code) and b"torch" not in code:
        return  # `.grad` and `backward` mean something else there
    root = explain is not None or holds_root(code) or bool(SCRIPT.search(code)) and project.imports_root(path)
    legacy = "legacy" in project.needs and LEGACY.search(code) is not None
    if not root and not legacy:
        return
    text = source.text
    out.problems += source.problems if "async-argument" in project.needs else [*source.problems, *source.outdated]
    module = project.module(path)
    if module is None:
        out.problems.append(parse_problem(path, text))
        return
    try:
        if root:
            run_roots(project, module, out, explain)
        if legacy:
            from gradfix.analysis.legacy import observe

            observe(project, module, out)
    except RecursionError:
        out.problems.append(Problem(path, "nested too deeply to analyse"))


OTHER_FRAMEWORK = re.compile(rb"^\s*(?:import|from)\s+(?:mxnet|tensorflow|jax|paddle|mindspore|chainer|tinygrad|mlx|autograd|megengine|oneflow)\b", re.M)
# A file that does something when it is run, at the left margin.
SCRIPT = re.compile(rb"^(?:for|while|with|async|if __name__|[A-Za-z_][\w.]*\()", re.M)

def parse_problem(path, text):
    try:
        ast.parse(text)
    except SyntaxError as error:
        from gradfix.source import syntax_error

        wrong = syntax_error(text, error)
        return Problem(path, wrong.reason, wrong.row, wrong.col)
    except (ValueError, RecursionError, MemoryError) as error:
        return Problem(path, f"cannot be parsed: {error}")
    return Problem(path, "cannot be parsed")


def run_roots(project, module, out, explain, make=None, rows=None):
    interpreter = (make or Interpreter)(project, out)
    interpreter.explain = explain
    interpreter.start(True)
    frame = Frame(module, name="<module>")
    interpreter.globals[module.path] = frame
    interpreter.st.frame = frame
    rows = root_rows(module.text) if rows is None else rows
    try:
        interpreter.block(module.tree.body)
        interpreter.run_nested(rows)
        interpreter.finish()
    except (OutOfBudget, Unreachable):
        pass
    except RecursionError:
        raise
    except Exception as error:
        out.problems.append(crash(module, error))
    top = interpreter.st.frame if interpreter.st is not None and interpreter.st.frame is not None else frame
    while top.parent is not None:
        top = top.parent
    heap = interpreter.st.heap if interpreter.st is not None else Heap()
    for fn, owner in functions_of(module):
        out.functions += 1
        if (module.path, fn.lineno, fn.col_offset) in interpreter.visited:
            out.interpreted += 1
            continue
        at = bisect.bisect_left(rows, fn.lineno)
        if at == len(rows) or rows[at] > fn.end_lineno:
            continue
        out.interpreted += 1
        interpreter.start(False)
        interpreter.st.heap = heap.fork()
        interpreter.globals[module.path] = top
        interpreter.st.frame = Frame(module, None, top, "<root>")
        try:
            interpreter.run_root(fn, owner, top)
            interpreter.run_nested(rows)
            interpreter.finish()
        except (OutOfBudget, Unreachable):
            pass
        except RecursionError:
            raise
        except Exception as error:
            out.problems.append(crash(module, error, fn))
    return interpreter


def crash(module, error, fn=None):
    """An error of ours, which must not cost the other functions and files their analysis."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
    what = f"function {fn.name}" if fn is not None else "the top level"
    return Problem(module.path, f"the analysis of {what} crashed: {type(error).__name__}: {error} ({where})", fn.lineno if fn is not None else None)


def functions_of(module):
    """(function, class or None) of a file, outer ones first; functions inside functions are theirs to call."""
    for stmt in module.tree.body:
        if isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield stmt, None
        elif isinstance(stmt, ast.ClassDef):
            for item in stmt.body:
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield item, stmt
        elif isinstance(stmt, (ast.If, ast.Try)):
            for item in ast.walk(stmt):
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield item, None


def explain_line(project, path, line):
    from gradfix.analysis.facts import Observations

    beliefs: dict[str, str] = {}
    observe_file(project, path, Observations(), (path, line, beliefs))
    if not beliefs:
        return f"{path}:{line}: nothing was evaluated there"
    width = max(map(len, beliefs))
    return "\n".join(f"{name:{width}}  {what}" for name, what in beliefs.items())

"""Who trains what: freezing, registration, and what the optimizers hold.

Times are object numbers: an object made later has a larger one.
"""

from __future__ import annotations

import ast
import re

from gradfix.analysis import operations
from gradfix.analysis.values import Class, Const, Function, Number, Ref, join_values, values_of

LOSS_CLASS = re.compile(r"loss|criterion|objective", re.I)
FRAMEWORK_LOSSES = ("training_step", "compute_loss")
BY_HAND = re.compile(r"\bautomatic_optimization\b|\bmanual_backward\b|\.backward\(")


class Training:
    def start_training(self):
        self.throwaway: dict = {}  # layers made in a forward and not kept: oid -> (node, module, stmt)
        self.module_flags: list = []  # `module.requires_grad = …`
        self.assigned: dict = {}  # (module's oid, attribute) -> (module, stmt, target)
        self.unregistered: list = []
        self.built: dict = {}  # optimizer's oid -> how it was built
        self.replacements: list = []
        self.branch_facts: list = []
        self.replaced: set = set()  # parameters that took the place of one that an optimizer held
        self.swapped: list = []  # parameters put in the place of one that optimizers hold: (those, new, …)
        self.idle_steps: list = []  # (optimizer, what was live) of steps of which no held parameter got a gradient
        self.busy: set = set()  # optimizers that did move something
        self.copies: dict = {}  # a deep copy's oid -> the original's
        self.configured: dict = {}  # a module's oid -> its optimizers
        self.called_methods: set = set()  # objects whose methods are no tensor's
        self.dependence: set = set()

    # ---------------------------------------------------------- in a forward
    def in_forward(self):
        """Does the code run in a module's `forward`, outside of any `__init__`?"""
        inside = False
        for _, _, _, fn, _ in self.calls:
            if fn.name == "__init__":
                inside = False
            elif fn.name == "forward" and isinstance(fn.owner, Class) and self.is_module_class(fn.owner):
                inside = True
        return inside

    def note_layer(self, ref, node):
        if self.in_forward() and self.calls[-1][3].name != "__init__":
            self.throwaway[ref.oid] = (node, *self.statements[-1])

    def used_in_forward(self, ref):
        """A layer that the same forward made is called: a new one each time, whose parameters nobody trains."""
        made = self.throwaway.get(ref.oid)
        if made is None:
            return
        node, module, stmt = made
        params = [self.obj(p) for p in self.parameters_of(ref)[0]]
        if any(p is not None and p.rg is True and not p.filled for p in params):
            self.fact("parameter-in-forward", node, True, module=module, stmt=stmt, layer=module.source(node.func) if isinstance(node, ast.Call) else "")

    # ------------------------------------------------------------ frameworks
    def framework_loss(self, fn, cls):
        """The `return` of a method on whose value a trainer, which we can't see, runs backward; None where it is no such method.

        Lightning's `training_step` (unless the module optimizes by hand) and the `compute_loss` of Hugging Face's trainers.
        """
        if fn.name == "training_step" and not self.is_module_class(cls):
            return None
        if fn.name == "compute_loss" and not any(base_name(b).endswith("Trainer") for b in cls.node.bases):
            return None
        if fn.name not in FRAMEWORK_LOSSES or BY_HAND.search(cls.module.source(cls.node)):
            return None
        returns = [n for n in own_nodes(fn) if isinstance(n, ast.Return) and n.value is not None]
        return returns[-1] if returns else None

    def run_framework_loss(self, function, receiver, returned):
        """Call the method as the trainer does: then backward, then the step of the module's own optimizer."""
        built = self.configured_optimizers(receiver)
        given, keywords = self.unknown_arguments(function)
        if function.name == "compute_loss" and given:
            self.trained.add(given[0].oid)  # the model
        if function.node.args.args:  # so that a report can name what is in it
            self.st.frame.vars[function.node.args.args[0].arg] = receiver
        loss = self.loss_in(self.call_function(function, given, keywords, function.node, receiver=receiver))
        if loss is None:
            return
        self.statements.append((function.module, returned))
        try:
            self.backward(returned.value, loss, {})
            if len(built) == 1:
                self.optimizer_method(built[0], "step", [], {}, returned.value)
        finally:
            self.statements.pop()

    def configured_optimizers(self, receiver):
        """What Lightning hands out as `self.optimizers()`: all that `configure_optimizers` builds, in order."""
        obj = self.obj(receiver)
        if receiver.oid not in self.configured:
            known = len(self.optimizers)
            configure = self.class_attribute(obj.cls, "configure_optimizers") if obj.cls is not None else None
            if isinstance(configure, Function):
                self.call_function(configure, *self.unknown_arguments(configure), configure.node, receiver=receiver)
            self.configured[receiver.oid] = self.optimizers[known:]
        return self.configured[receiver.oid]

    def loss_in(self, result):
        """Of `{"loss": loss, …}` the loss, of `(loss, outputs)` the first."""
        found = []
        for v in values_of(result):
            obj = self.obj(v)
            if obj is not None and obj.kind == "dict":
                v = obj.items.get("loss")
            elif obj is not None and obj.kind in ("tuple", "list"):
                v = obj.items[0] if obj.items else None
            found += [p for p in values_of(v) if isinstance(p, (Ref, Number))] if v is not None else []
        out = found[0] if found else None
        for v in found[1:]:
            out = join_values(out, v)
        return out

    # -------------------------------------------------------------- branches
    def untaken(self, ref):
        """(path, span) of a use of the leaf that did not run: in a function nobody called, or in a branch."""
        owned = False
        for oid, obj in self.st.heap.objects():
            if obj.kind != "module" or obj.cls is None:
                continue
            for name, child in obj.attrs.items():
                if isinstance(child, Ref) and isinstance(name, str) and (child == ref or self.obj(child) is not None and self.obj(child).kind == "module"
                                                                         and ref in self.parameters_of(child)[0]):
                    module, owned = obj.cls.module, True
                    for fn in obj.cls.node.body:
                        if isinstance(fn, (ast.FunctionDef, ast.AsyncFunctionDef)) and fn.name != "__init__":
                            called = (module.path, fn.lineno, fn.col_offset) in self.visited
                            if (place := uses_in(fn, called, lambda n: isinstance(n, ast.Attribute) and n.attr == name)) is not None:
                                return module.path, module.span(place), (module.path, fn.lineno, fn.col_offset)
        if owned:
            return None
        module = self.statements[-1][0]
        for name in self.names_of({ref.oid}):
            if name.isidentifier() and (place := uses_in(module.tree, True, lambda n: isinstance(n, ast.Name) and n.id == name)) is not None:
                return module.path, module.span(place), None
        return None

    # -------------------------------------------------------------- freezing
    def freeze(self, ref, node):
        """A tensor is told not to require grad."""
        obj = self.obj(ref)
        if obj is not None and obj.rg is not False:
            self.update(ref, rg=False, frozen=(*self.statements[-1], node))

    def frozen_loss(self, loss, event):
        """Backward runs on what does not require grad, because all that it was computed from was frozen."""
        parts = [p for v in self.flat([loss]) for p in values_of(v)]
        objs = [self.obj(p) for p in parts]
        if not objs or any(o is None or o.kind != "tensor" or o.rg is not False for o in objs) or any(f for _, _, f in self.module_flags):
            return
        below = set().union(*(self.below(p.oid) for p in parts))
        leaves = [self.st.heap[i] for i in below if self.st.heap[i].frozen is not None]
        if not leaves or any(o.kind in ("opaque", "module") or o.partial or o.rg is not False for o in (self.st.heap[i] for i in below)):
            return
        frozen = {i for i in below if self.st.heap[i].frozen is not None}
        if any(self.st.heap[i].dead for i in below) and not frozen <= self.held():
            return  # what was cut off may be what is to blame
        last = max(leaves, key=lambda o: o.frozen[1].lineno)
        self.frozen_fact(last, "loss", event.path, event.span)

    def frozen_fact(self, obj, use, path, span, holder=None):
        module, stmt, node = obj.frozen
        self.fact("frozen-parameter", node, True, module=module, stmt=stmt, use=use, at=(path, span), holder=holder)

    def step_of_frozen(self, obj):
        """All that a stepped optimizer holds was frozen after it had been given to it, and after it had been trained."""
        held = [self.obj(p) for p in obj.items if isinstance(p, Ref)]
        if obj.open or not held or any(o is None or o.kind != "tensor" or o.rg is not False or o.frozen is None or o.grad != "set" for o in held):
            return
        module, stmt = self.statements[-1]
        self.frozen_fact(held[0], "step", module.path, module.span(stmt))

    # ---------------------------------------------------------- registration
    def check_registered(self, ref):
        """What a module's `__init__` made and kept where `parameters()` does not find it."""
        obj = self.obj(ref)
        if obj is None or obj.kind != "module" or obj.cls is None:
            return
        registered = {m.oid for m in self.submodules(ref)}
        parameters = {p.oid for p in self.parameters_of(ref)[0]}
        given_out = self.given_out(obj)
        for name, value in obj.attrs.items():
            place = self.assigned.get((ref.oid, name))
            if place is None or not isinstance(name, str) or not isinstance(value, Ref):
                continue
            kept = self.obj(value)
            if kept is None:
                continue
            if kept.kind in ("list", "dict", "tuple"):
                items = list(kept.items.values() if isinstance(kept.items, dict) else kept.items)
                nested = any(self.obj(i) is not None and self.obj(i).kind in ("list", "tuple") for i in items)
                parts = [v for i in self.flat(items) for v in values_of(i) if isinstance(v, Ref)]
                if any(v.oid in given_out for v in parts):
                    continue
                layers = [v for v in parts if self.obj(v) is not None and self.obj(v).kind == "module" and v.oid > ref.oid and v.oid not in registered]
                leaves = [v for v in parts if self.obj(v) is not None and self.obj(v).kind == "tensor" and self.obj(v).leaf is True
                          and self.obj(v).rg is True and v.oid > ref.oid and v.oid not in parameters]
                if len(parts) == len(layers) and layers and any(self.obj(p).rg for v in layers for p in self.parameters_of(v)[0]):
                    self.unregistered.append((ref, place, "layers", layers, "nested" if nested else kept.kind, tuple(kept.items) if isinstance(kept.items, dict) else ()))
                elif len(parts) == len(leaves) and leaves:
                    self.unregistered.append((ref, place, "parameters", leaves, "nested" if nested else kept.kind, ()))
            elif kept.kind == "tensor" and value.oid > ref.oid and value.oid not in parameters | given_out:
                if kept.leaf is True and kept.rg is True and not kept.param and not kept.dead:
                    self.unregistered.append((ref, place, "tensor", [value], "", ()))
                elif kept.leaf is False and kept.rg is True and kept.lost in self.st.heap and self.st.heap[kept.lost].param and kept.lost > ref.oid and (
                        kept.lost not in parameters):
                    self.unregistered.append((ref, place, "moved", [value], "", ()))

    def finish_registration(self):
        held = self.held()
        for ref, (module, stmt, target), what, values, kind, keys in self.unregistered:
            leaves = {p.oid for v in values for p in (self.parameters_of(v)[0] if what == "layers" else [v])}
            if leaves & (held | self.wanted) or any(v.oid in self.handed for v in values):
                continue
            if not any(self.st.heap.get(i) is not None and self.st.heap[i].rg is True for i in leaves):
                continue  # frozen meanwhile
            cls = self.obj(ref).cls if self.obj(ref) is not None else None
            text = cls.module.source(cls.node) if cls is not None else ""
            if not self.concrete and (".grad" in text or "optim" in text):
                continue
            if any(v.oid in {m.oid for m in self.submodules(ref)} for v in values):
                continue  # registered after all
            if what == "tensor" and cls is not None and bound_by_hand(cls.node, target):
                continue
            self.fact("unregistered-parameter", stmt, True, module=module, stmt=stmt, target=module.source(target), form=what, container=kind, keys=keys)

    def given_out(self, obj):
        """What a module keeps out of `parameters()` and hands out by a method of its own (`def arch_parameters(self)`)."""
        out = set()
        for fn in obj.cls.node.body:
            if not isinstance(fn, (ast.FunctionDef, ast.AsyncFunctionDef)) or fn.name in ("forward", "__init__", "__call__"):
                continue
            given = [n.value for n in ast.walk(fn) if isinstance(n, (ast.Return, ast.Yield, ast.YieldFrom)) and n.value is not None]
            for name in {n.attr for value in given for n in attributes_of_self(value)} & obj.attrs.keys():
                out |= {p.oid for p in self.operands([obj.attrs[name]]) if isinstance(p, Ref)}
        return out

    def held(self):
        """Everything that some optimizer holds."""
        out = set()
        for o in self.optimizers:
            obj = self.obj(o)
            for p in obj.items if obj is not None else ():
                out |= {v.oid for v in values_of(p) if isinstance(v, Ref)}
        return out

    # ------------------------------------------------------------ optimizers
    def note_built(self, ref, params, node):
        """What stood outside of an optimizer when it was built from (some of) a module's parameters."""
        inside = {p.oid for p in params if isinstance(p, Ref)}
        frozen = {oid for oid, obj in self.st.heap.objects() if obj.kind == "tensor" and obj.param and obj.rg is False and oid not in inside}
        module, stmt = self.statements[-1]
        call = self.calls[-1] if self.calls and isinstance(stmt, ast.Return) and self.calls[-1][0] is not None else None
        self.built[ref.oid] = {"node": node, "module": module, "stmt": stmt, "frozen": frozen, "groups": 0,
                               "call": (call[0], call[1], call[2]) if call is not None else None}

    def family(self, oids):
        """The parameters of the smallest visible modules that hold some of `oids` directly or below: {module oid: parameters}."""
        out = {}
        for oid, obj in self.st.heap.objects():
            if obj.kind == "module" and not obj.open:
                params, open_ = self.parameters_of(Ref(oid))
                mine = {p.oid for p in params}
                if not open_ and mine & oids:
                    out[oid] = mine
        return out

    def finish_optimizers(self):
        """Parameters that a loss trains and that no optimizer of the program moves, although it moves their siblings."""
        if not self.concrete or not self.optimizers or not self.terms:
            return
        held = self.held()
        live = set().union(*(t.live for t in self.terms))
        loose = {i for i in live - held - self.replaced if (o := self.st.heap.get(i)) is not None and o.kind == "tensor" and o.param
                 and o.rg is not False and o.leaf is True and not o.dead}
        for ref in self.optimizers:
            obj, how = self.obj(ref), self.built.get(ref.oid)
            if obj is None or how is None or obj.reached is None or ref.oid not in self.ever_stepped or not obj.items:
                continue
            items = {p.oid for p in obj.items if isinstance(p, Ref)}
            if any(self.st.heap.get(i) is None or self.st.heap[i].kind != "tensor" for i in items):
                self.stale_opaque(ref, obj, how)
                continue
            if obj.open or any(t.blind for t in self.terms):
                continue
            self.stale(ref, items, loose, live, how) or self.missing(ref, items, loose, how) or self.criterion(items, loose, how)

    def stale(self, ref, items, loose, live, how):
        for module, params in self.family(items).items():
            new = {i for i in params & loose if i > ref.oid}
            thawed = {i for i in params & loose if i in how["frozen"]}
            if new or thawed:
                return self.stale_fact(how, new or thawed, "new" if new else "thawed")
        for oid, reached in self.idle_steps:  # a copy is trained and the optimizer still holds the original
            if oid == ref.oid and (new := {i for i in loose & reached if i > ref.oid and self.original(i) in items}):
                return self.stale_fact(how, new, "copied")
            # It never moved anything: what is trained in place of what it holds was made after it.
            if oid == ref.oid and oid not in self.busy and any(self.st.heap[i].rg for i in items) and not any(items & behind for t in self.terms for _, behind in t.cuts) and (
                    new := {i for i in loose & reached if i > ref.oid}):
                return self.stale_fact(how, new, "new")
        return False

    def original(self, oid):
        """Of a copy of a copy what was copied first."""
        while oid in self.copies:
            oid = self.copies[oid]
        return oid

    def stale_fact(self, how, lost, why, place=None):
        if why == "copied":
            source = self.st.heap[min(lost)]
            place = source.statement
        elif how["call"] is not None:
            place = (how["call"][0], how["call"][1])
        module, stmt = place or (how["module"], how["stmt"])
        made = min((self.st.heap[i] for i in lost if i in self.st.heap), key=lambda o: o.statement[1].lineno if o.statement else 0, default=None)
        related = (made.statement[0].path, made.statement[0].span(made.statement[1])) if made is not None and made.statement is not None else None
        self.fact("stale-optimizer", stmt, True, module=module, stmt=stmt, why=why, lost=self.names_of(lost), made=related)
        return True

    def stale_opaque(self, ref, obj, how):
        """A layer of a model that we can't see into is replaced after the optimizer was built from its parameters."""
        owners = {i for p in obj.items if isinstance(p, Ref) and self.obj(p) is not None for i in self.obj(p).ins}
        held = self.held()
        for owner, attr, value, place in self.replacements:
            if owner not in owners or value.oid < ref.oid:
                continue
            params = {p.oid for p in self.parameters_of(value)[0]}
            if params and not params & held and any(owner in t.live for t in self.terms):
                self.stale_fact(how, params, "new")
                return

    def missing(self, ref, items, loose, how):
        """Groups were made of some layers of a module, and one of its trained layers is in none."""
        for module, params in sorted(self.family(items).items()):
            left = {i for i in params & loose if self.st.heap[i].rg is True}
            if not left or not items <= params:
                continue
            obj = self.st.heap[module]
            children = [c for c in [*obj.attrs.values(), *(obj.items.values() if isinstance(obj.items, dict) else obj.items)] if isinstance(c, Ref)]
            with_held = [c for c in children if {p.oid for p in self.parameters_of(c)[0]} & items]
            without = [c for c in children if (mine := {p.oid for p in self.parameters_of(c)[0]}) and mine <= left]
            if len(with_held) < 2 or not without or any(c.oid in self.called_methods for c in without):
                continue
            if obj.loaded or any(self.st.heap[c.oid].loaded for c in without):
                continue
            self.fact("optimizer-missing-parameters", how["node"], True, module=how["module"], stmt=how["stmt"], lost=self.names_of(left),
                      layers=self.names_of({c.oid for c in without}))
            return True
        return False

    def criterion(self, items, loose, how):
        """A loss of the program's own that holds parameters (centers, temperatures), which only it and nobody else would train."""
        for oid, obj in self.st.heap.objects():
            if obj.kind != "module" or obj.cls is None or obj.loaded or not LOSS_CLASS.search(obj.cls.node.name):
                continue
            params = {p.oid for p in self.parameters_of(Ref(oid))[0]}
            left = {i for i in params & loose if self.st.heap[i].rg is True}
            together = any(t.live & items and t.live & left for t in self.terms)
            if left and left == params and together and how["node"] is not None:
                self.fact("optimizer-missing-parameters", how["node"], True, module=how["module"], stmt=how["stmt"], lost=self.names_of(left),
                          layers=self.names_of({oid}))
                return True
        return False

    def flag_on_module(self, target, ref, value, stmt):
        flag = bool(value.value) if isinstance(value, Const) else None
        self.module_flags.append(((self.statements[-1][0], stmt, target), ref, flag))

    def finish_branches(self):
        """Was the function that would have used the leaf never called, or was it called and went another way?"""
        for fact in self.branch_facts:
            fact.info["called"] = fact.info["function"] is None or fact.info["function"] in self.visited

    def finish_flags(self):
        for (module, stmt, target), ref, flag in self.module_flags:
            obj = self.st.heap.get(ref.oid) if self.st is not None else None
            if obj is None or obj.kind == "opaque" and ref.oid not in self.modules | self.callees | self.called_methods | self.trained:
                continue
            if obj.kind == "opaque" and (obj.param or obj.flagged is not None):
                continue
            self.fact("requires-grad-on-module", stmt, True, module=module, stmt=stmt, target=module.source(target.value), flag=flag,
                      value=module.source(stmt.value) if isinstance(stmt, ast.Assign) else None)


def bound_by_hand(cls, target):
    """Does a method other than the constructor bind the attribute, which it could not if it were a parameter?"""
    return any(isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and ast.unparse(n) == ast.unparse(target)
               for fn in cls.body if isinstance(fn, ast.FunctionDef) and fn.name != "__init__" for n in ast.walk(fn))


def attributes_of_self(value):
    """`self.a` where it is what is handed out: bare, or in a list or a sum of lists; not `self.a(x)` nor `self.a * 2`."""
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self":
        yield value
    elif isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        for element in value.elts:
            yield from attributes_of_self(element)
    elif isinstance(value, ast.Dict):
        for element in value.values:
            yield from attributes_of_self(element)
    elif isinstance(value, ast.Starred):
        yield from attributes_of_self(value.value)
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        yield from attributes_of_self(value.left)
        yield from attributes_of_self(value.right)
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("list", "tuple", "iter", "chain"):
        for argument in value.args:
            yield from attributes_of_self(argument)


def uses_in(tree, called, match):
    """The first load that `match` accepts: anywhere in a function that nobody called, else in a branch."""
    scopes = [tree] if not called else [part for n in ast.walk(tree) if isinstance(n, (ast.If, ast.IfExp)) for part in branches(n)]
    for scope in scopes:
        for n in ast.walk(scope):
            if match(n) and isinstance(n.ctx, ast.Load):
                return n
    return None


def branches(node):
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [*node.body, *node.orelse]


def is_tensor_method(name):
    return operations.lookup(name) is not None or name.startswith("__")


def base_name(node):
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def own_nodes(fn):
    """The nodes of a function without those of the functions in it."""
    work = list(fn.body)
    while work:
        node = work.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            work[:0] = ast.iter_child_nodes(node)

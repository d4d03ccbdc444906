"""Where values leave the recorded path, and which of those places matter.

A cut matters where a term of a loss depends on what is to be trained through cuts only, or where something that is
to be trained is reached by no loss of the program but through cuts.  Everything else is deliberate: a factor, an
index, a mask, a target, a straight-through estimator.
"""

from __future__ import annotations

import ast

from gradfix.analysis.values import Bound, Cut, Multi, Number, Ref, values_of

# Which rule speaks of a cut.
RULES = {
    **dict.fromkeys(("item", "tolist", "float", "int", "bool", "complex", "round", "math"), "item-in-graph"),
    "numpy": "numpy-in-graph", "rewrap": "tensor-rewrap", "variable": "tensor-rewrap", "detach": "detach-in-graph",
    "data": "detach-in-graph", "state_dict": "detach-in-graph", "no-grad": "no-grad-forward", "op": "nondifferentiable-op",
    "parameter": "parameter-in-forward", "checkpoint": "checkpoint-no-grad-input",
}
SOFT = ("detach", "data", "variable", "state_dict")  # a tensor that was only taken out: what is read from it next is the cut to name
UNSEEN = "unseen"  # grad mode was off around code that can't be read: it matters only where no loss of the program trains what it holds
MOST = 24  # cuts that one value remembers


class Term:
    """An additive term of a loss: what it reaches by the recorded path, and the cuts below it with all that lies behind them."""

    __slots__ = ("live", "blind", "cuts", "path", "span", "statement", "shared", "hidden", "alone", "held", "frame", "aside")


class Cuts:
    # ------------------------------------------------------------ making cuts
    def cut(self, node, kind, source, op=""):
        module, stmt = self.statements[-1]
        if kind == "no-grad":
            module, stmt, node = self.switched_off(module, stmt, node)
        node = stmt if node is None or not hasattr(node, "lineno") else node
        return Cut(module.path, module.span(node), kind, source, module.span(stmt), op)

    def switched_off(self, module, stmt, node):
        """What to name where grad mode is off: the block, where all of it is cut, else the statement in it."""
        if not self.switches:
            return (*self.global_switch, ) if self.global_switch is not None else (module, stmt, node)
        where, block, switch, depth = self.switches[-1]
        if depth is not None and depth < len(self.statements):
            inner, first = self.statements[depth]
            if inner is where and first is not block.body[0]:
                return where, first, first
        return where, block, switch

    def leaving(self, node, parts, kind, op=""):
        """The cuts of a result that autograd does not record: those that its operands came through, and this one."""
        dead: set = set()
        for part in parts:
            if isinstance(part, Number):
                self.bend(part.cuts, node)
                dead |= part.cuts
                continue
            obj = self.obj(part)
            if obj.rg is not False and obj.kind in ("tensor", "opaque"):
                dead.add(self.cut(node, kind, part.oid, op))
            else:
                dead |= obj.dead
        return capped(dead)

    def bend(self, cuts, node):
        """What was read from a tensor goes through something that a tensor in its place could not do, or would be cut by."""
        module, stmt = self.statements[-1]
        where = (module.path, module.span(node if hasattr(node, "lineno") else stmt)) if node is None or isinstance(node, ast.AST) else node
        for cut in cuts:
            self.bent.setdefault((cut.path, cut.span, cut.kind), set()).add(where)

    # ------------------------------------------------------- what lies below
    def additive(self, value):
        """({nodes of the sum}, [oids of its terms], {cuts of plain numbers that were added})"""
        nodes, terms, numbers = set(), [], set()
        work = [p.oid for v in self.flat([value]) for p in self.likely_parts(v) if isinstance(p, Ref)]
        while work:
            oid = work.pop()
            obj = self.st.heap.get(oid)
            if obj is None or oid in nodes:
                continue
            nodes.add(oid)
            numbers |= obj.added
            if obj.linear is None or obj.leaf is True and obj.rg is True:  # computed before it became a leaf
                terms.append(oid)
            else:
                work.extend(obj.linear)
        return nodes, terms, numbers

    def recorded(self, oid):
        """({what the recorded path reaches with a derivative that is not zero everywhere}, blind, {cuts beside the path}, [leaves taken out])"""
        live, cuts, blind, aside, work = set(), set(), False, [], [oid]
        while work:
            i = work.pop()
            obj = self.st.heap.get(i)
            if obj is None or i in live:
                continue
            if i == oid or not self.taken_out(obj):
                cuts |= obj.dead
            else:
                aside.append(i)
            if obj.kind in ("tensor", "opaque") and (obj.rg is False or obj.dead):
                if obj.rg is not False:  # a new leaf, made of what was not recorded
                    live.add(i)
                continue
            cuts |= (obj.numeric or frozenset()) | obj.added
            if obj.flat is not None:
                cuts.add(obj.flat)
                continue
            live.add(i)
            blind |= bool(obj.partial) or self.from_nowhere(obj)
            switched = not obj.unsure <= obj.cold  # one branch leaves the path where another stays on it: a switch, set on purpose
            for j in obj.ins:
                if j not in obj.cold:
                    work.append(j)
                elif not (switched and j in obj.unsure):
                    cuts |= self.st.heap[j].dead
            if obj.kind in ("module", "opaque"):
                work.extend(p.oid for p in self.parameters_of(Ref(i))[0])
        return live, blind, cuts, aside

    def taken_out(self, obj):
        """A leaf for its own sake (`y = x.detach().requires_grad_()`): what is computed from it is meant to end there."""
        return obj.leaf is True and obj.rg is True and bool(obj.dead) and all(c.kind in ("detach", "data") for c in obj.dead)

    def behind(self, cut, memo):
        """All that the value depended on where it left the path, through further cuts, too."""
        found = memo.get(cut.source)
        if found is not None:
            return found
        seen, work = set(), [cut.source]
        while work:
            i = work.pop()
            obj = self.st.heap.get(i)
            if obj is None or i in seen:
                continue
            seen.add(i)
            work.extend(obj.ins)
            work.extend(c.source for c in obj.dead)
            work.extend(c.source for c in obj.numeric or ())
            if obj.kind in ("module", "opaque"):
                work.extend(p.oid for p in self.parameters_of(Ref(i))[0])
        memo[cut.source] = seen
        return seen

    # ---------------------------------------------------------------- losses
    def note_loss(self, loss, node, module, wanted=None):
        """Keep of a loss what tells, once it is known what is trained, which of its cuts matter."""
        self.settle()
        others = [b.receiver for b in values_of(self.weak) if isinstance(b, Bound)] if self.weak is not None else []
        if loss in others and loss not in self.likely_parts(Multi(tuple(others))):
            return
        stmt = self.statements[-1][1]
        nodes, term_ids, numbers = self.additive(loss)
        for v in self.flat([loss]):
            numbers = numbers.union(*(p.cuts for p in self.likely_parts(v) if isinstance(p, Number)))
        memo, terms = {}, []
        parts = [(self.recorded(oid), oid) for oid in term_ids]
        if numbers:
            parts.append(((set(), False, numbers, []), None))
        roots = [self.obj(p) for v in self.flat([loss]) for p in values_of(v)]
        hidden = bool(roots) and all(o is not None and o.leaf is True and o.rg is True and o.dead for o in roots)
        whole = set().union(*(live for (live, *_), _ in parts)) if parts else set()
        for (live, blind, cuts, aside), oid in parts:
            term = Term()
            term.live, term.blind, term.hidden, term.held = live, blind, hidden, None
            term.path, term.span, term.statement, term.frame = module.path, module.span(node), module.span(stmt), self.st.frame
            term.cuts = without_factors([(c, self.behind(c, memo)) for c in sorted(capped(cuts), key=place_of) if not self.cancels(c, nodes)], self.st.heap)
            term.alone = len(parts) == 1
            term.aside = [(i, c, self.behind(c, memo)) for i in aside for c in sorted(self.st.heap[i].dead, key=place_of)]
            fed = {m for m, a in self.fed if a in nodes and m is not None and m in self.callees}
            term.shared = frozenset(i for c, _ in term.cuts for i in [c] if self.shares_model(c.source, whole | fed))
            terms.append(term)
        self.unsettled.extend(terms)
        self.terms.extend(terms)
        self.last_terms = len(terms)
        if wanted is not None:
            self.wanted |= wanted

    def cancels(self, cut, nodes):
        """`x - x.item()`: zero in value; `x + (y - x).detach()`: a straight-through estimator."""
        if cut.source in nodes:
            return cut.kind in ("item", "float", *SOFT)
        if cut.kind in SOFT:
            source = self.st.heap.get(cut.source)
            if source is not None and source.linear is not None:
                inner = self.additive(Ref(cut.source))[0] - {cut.source}
                return bool(inner & nodes) or bool({self.same(i) for i in inner} & {self.same(i) for i in nodes} - {None})
        return False

    def same(self, oid):
        """What two evaluations of the same expression have in common (`x.sigmoid()` written twice)."""
        obj = self.st.heap[oid]
        return (obj.ins, ast.dump(obj.node)) if isinstance(obj.node, ast.AST) and obj.ins else None

    def settle(self):
        """Judge the losses so far by what the optimizers stepped since then hold."""
        if not self.stepped and not self.settling:
            return
        held, known = set(), bool(self.stepped)
        reached = set().union(*(t.live for t in self.unsettled)) if self.unsettled else set()
        for oid in self.stepped:
            obj = self.st.heap.get(oid) if self.st is not None else None
            if self.unsettled and obj is not None and obj.kind == "optimizer" and not any(isinstance(p, Ref) and p.oid in reached for p in obj.items):
                self.idle_steps.append((oid, reached))
            elif self.unsettled:
                self.busy.add(oid)
            if obj is None or obj.kind != "optimizer" or not obj.items:
                known = False
                continue
            known = known and not obj.open or self.concrete and known
            for p in obj.items:
                for v in values_of(p):
                    if isinstance(v, Ref):
                        held |= self.with_module(v.oid)
        self.stepped.clear()
        pending, self.unsettled = self.unsettled, []
        for term in pending:
            term.held = held if known else None
            for cut, behind in term.cuts:
                if not term.alone and (obj := self.st.heap.get(cut.source)) is not None and obj.flat is cut:
                    continue  # `x.floor() + f(x)`: a step that others smooth
                if cut.op == UNSEEN:
                    continue
                if known:
                    lost = behind & held
                    if lost and not term.blind and not term.live & held:
                        self.cut_fact(cut, term, lost)
                elif not any(self.trains_itself(i, term) for i in term.live if i in self.st.heap) and (any(map(self.is_trained, behind)) or cut in term.shared and RULES[cut.kind] == "item-in-graph"):
                    self.cut_fact(cut, term, {i for i in behind if self.is_trained(i)})

    settling = False

    def trains_itself(self, oid, term):
        """Is what a loss reaches trained for its own sake?  A leaf that is the loss itself only hides the cut."""
        obj = self.st.heap[oid]
        return not obj.dead or not term.hidden and self.taken_out(obj)

    def with_module(self, oid):
        """A parameter, and for one that stands for all of a module that we can't see into, the module."""
        obj = self.st.heap.get(oid)
        return {oid}.union(*map(self.opaque_parts, obj.ins)) if obj is not None and obj.kind == "opaque" and obj.param else {oid}

    def is_trained(self, oid):
        obj = self.st.heap.get(oid)
        return obj is not None and (obj.kind == "tensor" and obj.rg is True and obj.leaf is True or oid in self.trained
                                    or obj.kind == "module" and bool(obj.open) and oid in self.trained)

    def finish_cuts(self):
        """What is to be trained, or whose gradient is read, and is reached by every loss through cuts only."""
        if self.st is None:
            return
        self.settling = True
        try:
            self.settle()
        finally:
            self.settling = False
        live = set().union(*(t.live for t in self.terms)) if self.terms else set()
        if any(t.blind for t in self.terms):
            return
        wanted = {i for i in self.wanted if self.is_trained(i)} if self.concrete else set()
        read, owned = set(wanted), self.held()
        for ref in self.optimizers:
            obj = self.obj(ref)
            for p in obj.items if obj is not None and obj.reached is not None else ():
                for v in values_of(p):
                    if isinstance(v, Ref) and self.st.heap.get(v.oid) is not None and self.st.heap[v.oid].rg is not False:
                        wanted |= self.with_module(v.oid)
        wanted = {i for i in wanted - live if self.st.heap.get(i) is not None and (
            self.st.heap[i].kind == "tensor" and self.st.heap[i].leaf is True and self.st.heap[i].rg is True or i in self.trained)}
        for term in self.terms:
            for cut, behind in term.cuts:
                # A loss that another optimizer's step follows need not train it.
                if lost := {i for i in behind & wanted if term.held is None or i in term.held or i in read and i not in owned}:
                    self.cut_fact(cut, term, lost)
            for leaf, cut, behind in term.aside:  # a leaf whose gradient nobody asks for, and which nobody moves
                if leaf not in self.wanted and leaf not in owned and not self.st.heap[leaf].hooked and (lost := {i for i in behind & wanted if term.held is None or i in term.held}):
                    self.cut_fact(cut, term, lost)

    def raising(self, loss, node, module):
        """Operations on the recorded path of a loss that have no derivative at all: backward raises."""
        for v in self.flat([loss]):
            for p in values_of(v):
                if not isinstance(p, Ref):
                    continue
                live, *_ = self.recorded(p.oid)
                for i in sorted(live):
                    obj = self.st.heap[i]
                    if obj.raises is not None and obj.rg is True:
                        (where, stmt), op_node, name = obj.raises
                        leaves = {j for j in self.below(i) if self.is_trained(j)}
                        self.fact("nondifferentiable-op", op_node, True, module=where, stmt=stmt, cut="op", op=name, raises=True, hidden=False,
                                  loss=(module.path, module.span(node)), lost=self.names_of(leaves))

    def cut_fact(self, cut, term, lost):
        from gradfix.analysis.facts import Fact

        key = (cut.path, cut.span, cut.kind)
        if key in self.cut_seen:
            return
        self.cut_seen.add(key)
        if any(r["module"].path == cut.path and cut.statement.contains(r["module"].span(r["stmt"])) for r in self.rebindings):
            return  # the rebinding is what is wrong
        module = self.project.module(cut.path)
        info = {"cut": cut.kind, "op": cut.op, "loss": (term.path, term.span), "lost": self.names_of(lost, term.frame),
                "torch": module.torch_name() if module is not None else "torch", "hidden": term.hidden}
        info["bent"] = self.bent.setdefault((cut.path, cut.span, cut.kind), set())  # filled until the end of the program
        self.out.facts.append(Fact(RULES[cut.kind], cut.path, cut.span, cut.statement, True, info, self.concrete))

    def shares_model(self, oid, live):
        """Backward runs through the output of a call that the value comes from, too: so that output requires grad."""
        return any(self.st.heap[i].origin == "result" and self.st.heap[i].mode is not False or i in self.callees for i in self.below(oid) & live)

    # ----------------------------------------------------------------- names
    def names_of(self, oids, there=None, most=3):
        """How the program calls some of these objects, for people to read: in the function that runs, or else `there`."""
        found, frames = {}, []
        for frame in (self.st.frame if self.st is not None else None, there):
            while frame is not None:
                frames.append(frame)
                frame = frame.parent
        frames += [f for f in self.globals.values() if f is not None and f not in frames]
        work = [(name, value, 0) for f in frames for name, value in dict.items(f.vars) if isinstance(name, str) and name.isidentifier()]
        seen = set()
        for name, value, depth in work:  # breadth first: the shortest name wins
            for v in values_of(value):
                if not isinstance(v, Ref) or (v.oid in seen and v.oid not in oids):
                    continue
                seen.add(v.oid)
                if v.oid in oids and v.oid not in found:
                    found[v.oid] = name
                    if len(found) == len(oids):
                        break
                obj = self.obj(v)
                if obj is None or depth > 3 or len(work) > 4000:
                    continue
                work.extend((f"{name}.{k}", c, depth + 1) for k, c in obj.attrs.items() if isinstance(k, str) and k.isidentifier())
                if obj.kind in ("list", "tuple", "module") and not isinstance(obj.items, dict):
                    work.extend((f"{name}[{i}]", c, depth + 1) for i, c in enumerate(obj.items[:12]))
                elif isinstance(obj.items, dict):
                    work.extend((f"{name}[{k!r}]", c, depth + 1) for k, c in list(obj.items.items())[:12] if not str(k).startswith("*"))
        names = list(dict.fromkeys(found.values()))
        return names[:most] + (["…"] if len(names) > most else [])


def without_factors(cuts, heap):
    """Without what was detached of the same parameters that an operation without a derivative cuts off: `(w / w.detach().max()).round()`."""
    flat = set().union(*(behind for cut, behind in cuts if cut.kind == "op"))
    return [(cut, behind) for cut, behind in cuts
            if cut.kind not in SOFT or not (held := {i for i in behind if heap.get(i) is not None and heap[i].param}) or not held <= flat]


def capped(cuts):
    return frozenset(cuts) if len(cuts) <= MOST else frozenset(sorted(cuts, key=place_of)[:MOST])


def place_of(cut):
    """An order that is the same in every run: that of a set is not."""
    return cut.path, cut.span.row, cut.span.col, cut.kind, cut.source


def compared(node):
    """Is the expression a comparison?"""
    return isinstance(node, ast.Compare)

"""In the child: the original program on a forgiving autograd.

It runs the script as it was, but overlooks the mistakes that the findings name: the gradient of every tensor is kept,
a `.grad` that is `None` at such a row counts as zeros, a leaf may be updated in place, a parameter that is bound again
is updated instead, a tensor that should be a leaf is made one, a module registers what it was given in a list, a tensor made
of others stays connected to them, so does a number or an array that was read from one, a `zero_grad()` that comes too
early waits.  So the
statements of the original say what the repaired program has to compute, to the end of the script, and not one line of
the rewrite takes part in it.
"""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import sys
import threading

import torch
from torch.overrides import TorchFunctionMode

from gradfix.harness.measured import measured
from gradfix.harness.record import Recorder, _grad
from gradfix.harness.trace import Event

INPLACE_ON_LEAF = ("a leaf Variable that requires grad", "a view of a leaf Variable that requires grad")
ONLY_FLOATS = "floating point"
NO_TRUTH = "Boolean value of Tensor with more than one value"
LEAVES = {"item", "tolist", "numpy", "detach", "cpu"}  # methods that end a tensor's history, and what is said beside them
WRAPS = {"tensor", "as_tensor", "Tensor", "FloatTensor", "DoubleTensor", "Variable"}


class Skip(BaseException):
    """What needs a gradient that is `None` is left out."""


class ForgivingRecorder(Recorder):
    def __init__(self, job, main):
        super().__init__(job, main)
        self.spec = job.forgive
        self.rows = {path: set(rows) for path, rows in self.spec.rows.items()}
        self.meant: dict[str, dict[int, set[str]]] = {}  # the `.grad`s that the findings name at a row
        for path, pairs in self.spec.reads.items():
            for row, text in pairs:
                self.meant.setdefault(path, {}).setdefault(row, set()).add(text)
        self.gradients: dict[str, dict[tuple, str]] = {}  # the text of each `.grad`, by its place
        self.updated: dict[int, tuple[torch.Tensor, object, int]] = {}  # tensors updated in place of being bound again
        self.shown: set[str] = set()  # tensors whose gradient a finding asks for
        self.loops: dict[str, set[int]] = {}  # the rows of the loops around the named rows
        self.sums: dict[str, set[int]] = {}  # the rows of `p.grad += ...`
        self.absent: dict[int, torch.Tensor] = {}  # tensors without a gradient, where one was supplied
        self.late: list = []
        self.stepped = False  # since something was put off
        self.used = False  # a step has been made with the gradients of the last backward

    def note(self, text: str) -> None:
        if text not in self.record.forgiven and len(self.record.forgiven) < 50:
            self.record.forgiven.append(text)

    def named_row(self, frame) -> bool:
        path = self.path_of(frame.f_code.co_filename)
        return path is not None and frame.f_lineno in self.rows.get(path, ())

    def named_read(self, tensor, frame) -> bool:
        """Whether a finding means this very `.grad`, as far as that can be told."""
        if not self.named_row(frame):
            return False
        path = self.path_of(frame.f_code.co_filename)
        texts = self.meant.get(path, {}).get(frame.f_lineno)
        if texts is None or id(tensor) in self.absent or not hasattr(frame.f_code, "co_positions"):  # Python 3.10 has none
            return True
        places = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
        text = self.gradients.get(path, {}).get(next(places, None))
        return text is None or text in texts

    def is_absent(self, tensor, frame) -> bool:
        """Whether its gradient was missing at a named row of this loop."""
        return id(tensor) in self.absent and frame.f_lineno in self.loops.get(self.path_of(frame.f_code.co_filename) or "", ())

    def adds_to_it(self, frame) -> bool:
        """Is this `p.grad += ...`?  It is not left out where there is no gradient yet."""
        return frame.f_lineno in self.sums.get(self.path_of(frame.f_code.co_filename), ())

    def tests_truth(self, frame) -> bool:
        return frame.f_lineno in self.spec.truth.get(self.path_of(frame.f_code.co_filename) or "", ())

    def install(self) -> None:
        super().install()
        import builtins

        for name, function in (
            ("leaf", self.leaf), ("rebind", self.rebind), ("late", self.put_off), ("spell", self.spell),
            ("register", self.register), ("rewrap", self.rewrap), ("keep", self.keep), ("data", self.data), ("attempt", self.attempt), ("element", self.element), ("Skip", Skip),
        ):  # fmt: skip
            setattr(builtins, f"__gradfix_{name}__", function)
        self.mode = Forgiving(self)
        self.mode.__enter__()
        start = threading.Thread._bootstrap_inner

        def start_forgiving(thread):
            with Forgiving(self):  # a mode counts for one thread
                start(thread)

        threading.Thread._bootstrap_inner = start_forgiving

    # ---- what the script meets

    def read(self, tensor, value, frame):
        supplied = False
        if not tensor.is_leaf and id(tensor) not in self.retained and value is not None:
            (name,) = self.named([tensor], frame)
            if name in self.shown or self.named_read(tensor, frame):
                self.shown.add(name)
            else:
                value = None  # no finding asks for it
        if value is None and (self.named_read(tensor, frame) or self.is_absent(tensor, frame)) and not self.tests_truth(frame):
            self.record.skipped = True
            if self.skips and self.compiled_here(frame) and not self.adds_to_it(frame):
                raise Skip
            value = self.filled(tensor)
            supplied = True
            self.absent[id(tensor)] = tensor
            self.note("a gradient that is `None` counts as zeros")
        self.on = False
        try:
            (name,) = self.named([tensor], frame)
            kept = self.values.of(value)
            if supplied:
                kept.supplied = True
            self.add(Event("read", self.place(frame), {name: kept}))
        finally:
            self.on = True
        return value

    def grad(self, outputs, inputs, args, kwargs):
        if self.busy or "allow_unused" in kwargs or len(args) > 3 or not self.named_row(self.frame()):
            return super().grad(outputs, inputs, args, kwargs)
        result = super().grad(outputs, inputs, args, {**kwargs, "allow_unused": True})
        if all(g is not None for g in result):
            return result
        self.record.skipped = True
        if self.skips:
            return result
        self.note("a gradient that is `None` counts as zeros")
        given = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        return tuple(self.filled(t) if g is None else g for t, g in zip(given, result))

    def filled(self, tensor):
        """What counts as the gradient of a tensor that has none."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            return torch.zeros_like(tensor).as_subclass(torch.Tensor)

    def before_backward(self, tensors, leaves, frame, args, kwargs):
        self.settle(self.stepped or self.spec.until == "backward")
        self.used = False

    def after_step(self, optimizer, args, kwargs) -> None:
        super().after_step(optimizer, args, kwargs)
        self.stepped = self.used = True

    def after_backward(self, leaves, frame, known) -> None:
        self.held.update(self.named(leaves, frame))
        values = {}
        for name, tensor in [*self.named(leaves, frame).items(), *self.names.walk(frame)]:
            if (tensor.is_leaf or tensor.retains_grad) and name not in values:
                values[name] = self.values.of(_grad.__get__(tensor))
        self.add(Event("backward", self.place(frame), values, scale=self.scale))

    def end_of_script(self) -> None:
        self.settle(True)

    def settle(self, late: bool) -> None:
        """Do what was put off."""
        for tensor, gradient, version in self.updated.values():
            now = _grad.__get__(tensor)
            if now is not None and now is gradient and now._version == version:
                _grad.__set__(tensor, None)
        self.updated.clear()
        if late:
            calls, self.late = self.late, []
            for call in calls:
                call()

    # ---- what statements at the named rows are turned into

    def leaf(self, make, parameter: bool, only: tuple[int, ...]):
        """The result of an expression (or these items of it), as leaves that require grad."""
        value = make()
        if only and isinstance(value, (list, tuple)):
            return [self._leaves(item, parameter) if i in only else item for i, item in enumerate(value)]
        return self._leaves(value, parameter)

    def _leaves(self, value, parameter: bool, depth: int = 0):
        if isinstance(value, torch.Tensor):
            if value.is_leaf and value.requires_grad:
                return value
            self.note("a tensor counts as a leaf that requires grad")
            with torch.no_grad(), torch._C.DisableTorchFunction():
                out = value.detach()
                if not (out.is_floating_point() or out.is_complex()):
                    out = out.to(torch.get_default_dtype())
                if parameter:
                    return torch.nn.Parameter(out)
                if value.is_leaf and out.dtype == value.dtype:
                    return value.requires_grad_()
                return out.requires_grad_()
        if depth < 2 and isinstance(value, list):
            value[:] = [self._leaves(v, parameter, depth + 1) for v in value]
        elif depth < 2 and type(value) is tuple:
            return tuple(self._leaves(v, parameter, depth + 1) for v in value)
        elif depth < 2 and isinstance(value, dict):
            value.update({k: self._leaves(v, parameter, depth + 1) for k, v in value.items()})
        return value

    def rebind(self, old, new):
        """The old tensor (or tensors) with the new contents."""
        try:
            old = old()
        except (NameError, AttributeError, LookupError, TypeError):
            return new
        return self._into(old, new)

    def _into(self, old, new):
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            if old is new or not (old.is_leaf and old.requires_grad) or old.shape != new.shape:
                return new
            with torch.no_grad(), torch._C.DisableTorchFunction():
                old.copy_(new)
            gradient = _grad.__get__(old)
            self.updated[id(old)] = (old, gradient, gradient._version if gradient is not None else 0)
            self.note("a parameter that is bound again is updated instead")
            return old
        if type(old) is type(new) and isinstance(new, (list, tuple)) and len(old) == len(new):
            return type(new)([self._into(a, b) for a, b in zip(old, new)])
        if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
            return {k: self._into(old[k], v) for k, v in new.items()}
        return new

    def attempt(self, make, instead):
        try:
            return make()
        except Skip:
            return instead

    def put_off(self, function, *args, **kwargs):
        self.note("a `zero_grad()` that comes too early waits")
        self.record.postponed = True
        if not self.late:  # gradients that were used have no other step to wait for
            self.stepped = self.used
        self.late.append(functools.partial(function, *args, **kwargs))

    def spell(self, owner, value):
        if isinstance(owner, torch.Tensor) and isinstance(value, bool):
            self.note("a misspelt `requires_grad` counts")
            if value and not (owner.is_floating_point() or owner.is_complex()):
                owner.data = owner.data.to(torch.get_default_dtype())
            owner.requires_grad_(value)
        elif isinstance(owner, torch.nn.Module) and isinstance(value, bool):
            self.note("a flag that a module does not have counts for its parameters")
            owner.requires_grad_(value)

    def register(self, module, names):
        """Let a module know of the parameters and layers that it holds under these names."""
        for name in names:
            held = module.__dict__.get(name)
            try:
                known = _registered(held)
            except (TypeError, ValueError, KeyError):
                continue
            if known is not held:
                setattr(module, name, known)
                self.note("what a module holds is registered")

    def rewrap(self, function, *args, **kwargs):
        """A tensor made of others, connected to them."""
        with torch._C.DisableTorchFunction():
            joined = _joined(args[0]) if len(args) == 1 else None
        if joined is None:
            return function(*args, **kwargs)
        self.note("a tensor made of others stays connected to them")
        return joined.to(kwargs["dtype"]) if "dtype" in kwargs else joined

    def keep(self, function, *args, **kwargs):
        """A number or an array read from a tensor, connected to it: the tensor itself, or a measured function of it."""
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(owner, torch.Tensor) and owner.requires_grad and name in LEAVES and not args:
            self.note("a number read from a tensor stays connected to it")
            return list(owner.unbind()) if name == "tolist" else owner
        if function is float and len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].requires_grad:
            self.note("a number read from a tensor stays connected to it")
            return args[0]
        if name in WRAPS | {"from_numpy"} and len(args) == 1:
            kwargs.pop("requires_grad", None)
            return args[0] if isinstance(args[0], torch.Tensor) and not kwargs else self.rewrap(function, *args, **kwargs)
        home = (getattr(function, "__module__", None) or type(function).__module__).partition(".")[0]
        if home in ("math", "numpy") and not isinstance(owner, torch.Tensor):
            result = measured(function, args, kwargs)
            if result is not None:
                self.note("a function that autograd does not know is differentiated by measuring")
                return result
        return function(*args, **kwargs)

    def data(self, value):
        return value if isinstance(value, torch.Tensor) else value.data

    def element(self, value, index):
        """The only element of a tensor or array without dimensions may be indexed."""
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            self.note("the only element of a tensor may be indexed")
            return value.item()
        return value[index]

    # ---- compiling

    @property
    def skips(self) -> bool:
        return self.spec.none in ("statement", "continue")

    def changes(self, path: str) -> bool:
        path = self.path_of(path)
        return path in self.spec.rows

    def compiled_here(self, frame) -> bool:
        return self.changes(frame.f_code.co_filename)

    def compile(self, source, path):
        if not self.changes(path):
            return super().compile(source, path)
        mine = self.path_of(path)
        tree = ast.parse(source, path)
        self.loops[mine] = _loops_around(tree, self.rows.get(mine, set()))
        names = ("leaf", "rebind", "late", "register", "rewrap", "keep", "variable", "scalar")
        self.gradients[mine] = {
            (n.lineno, n.end_lineno, n.col_offset, n.end_col_offset): ast.unparse(n)
            for n in ast.walk(tree)
            if isinstance(n, ast.Attribute) and n.attr == "grad"
        }
        self.sums[mine] = {
            n.target.lineno for n in ast.walk(tree)
            if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Attribute) and n.target.attr == "grad"
        }  # fmt: skip
        tables = {name: set(getattr(self.spec, name).get(mine, ())) for name in names}
        tree = _Statements(parts=set(self.spec.parts.get(mine, ())), **tables).visit(tree)
        if self.skips:
            tree = _Skips(self.rows.get(mine, set()), self.spec.none).visit(tree)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def _registered(held):
    """Plain tensors and containers as what a module registers."""
    if isinstance(held, torch.Tensor) and not isinstance(held, torch.nn.Parameter) and held.is_floating_point():
        return torch.nn.Parameter(held.detach())
    items = list(held.values()) if isinstance(held, dict) else held if isinstance(held, (list, tuple)) else []
    if not items:
        return held
    if all(isinstance(item, torch.Tensor) for item in items):
        return torch.nn.ParameterDict(held) if isinstance(held, dict) else torch.nn.ParameterList(held)
    if isinstance(held, dict):
        return torch.nn.ModuleDict({key: _registered(item) for key, item in held.items()})
    return torch.nn.ModuleList([_registered(item) for item in items])


def _joined(value):
    """Tensors of the graph, in lists, as one tensor of the graph; None for anything else."""
    if isinstance(value, torch.Tensor):
        return value if value.requires_grad else None
    if not isinstance(value, (list, tuple)) or not value:
        return None
    known = [_joined(item) for item in value]
    if all(item is None for item in known):
        return None
    parts = [
        item if item is not None else torch.as_tensor(raw, dtype=torch.get_default_dtype()) for item, raw in zip(known, value)
    ]
    return torch.stack([part.reshape(()) if part.numel() == 1 else part for part in parts])


def _loops_around(tree, rows) -> set[int]:
    """All rows of the innermost loops around these rows."""
    loops = [range(n.lineno, n.end_lineno + 1) for n in ast.walk(tree) if isinstance(n, (ast.For, ast.While))]
    out: set[int] = set()
    for row in rows:
        out.update(min((loop for loop in loops if row in loop), key=len, default=()))
    return out


def _call(name: str, *arguments):
    return ast.Call(ast.Name(f"__gradfix_{name}__", ast.Load()), list(arguments), [])


def _thunk(expression):
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), expression)


def _loaded(target):
    return ast.parse(ast.unparse(target), mode="eval").body


def _misspelt(name: str) -> bool:
    return name != "requires_grad" and difflib.SequenceMatcher(None, name, "requires_grad").ratio() > 0.75


class _Statements(ast.NodeTransformer):
    def __init__(self, leaf, rebind, late, register, rewrap, keep, variable, scalar, parts):
        self.leaf, self.rebind, self.late, self.parts = leaf, rebind, late, parts
        self.register, self.rewrap, self.keep = register, rewrap, keep
        self.variable, self.scalar = variable, scalar

    def _rows(self, node, rows) -> bool:
        return any(node.lineno <= row <= node.end_lineno for row in rows)

    def visit_FunctionDef(self, node):
        """At the end of `__init__`: register what it put under the names at the rows."""
        names = []
        if node.name == "__init__" and node.args.args:
            own = node.args.args[0].arg
            for part in ast.walk(node):
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == own:
                    if self._rows(part, self.register) and part.attr not in names:
                        names.append(part.attr)
        node = self.generic_visit(node)
        if names:
            told = ast.Expr(_call("register", ast.Name(own, ast.Load()), ast.Constant(tuple(names))))
            last = node.body[-1]
            told.lineno = told.end_lineno = last.end_lineno
            told.col_offset = told.end_col_offset = last.col_offset
            node.body.append(told)
        return node

    def visit_Compare(self, node):
        """`type(x) == Variable` is true of tensors, as it once was."""
        node = self.generic_visit(node)
        left, right = node.left, node.comparators[0]
        if not self._rows(node, self.variable) or len(node.ops) > 1 or not isinstance(node.ops[0], (ast.Eq, ast.Is)):
            return node
        if not isinstance(left, ast.Call) or ast.unparse(left.func) != "type" or len(left.args) != 1:
            return node
        if ast.unparse(right).rpartition(".")[2] != "Variable":
            return node
        return ast.copy_location(ast.Call(ast.Name("isinstance", ast.Load()), [left.args[0], right], []), node)

    def visit_Subscript(self, node):
        node = self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and self._rows(node, self.scalar):
            return ast.copy_location(_call("element", node.value, node.slice), node)
        return node

    def visit_Attribute(self, node):
        node = self.generic_visit(node)
        if node.attr == "data" and isinstance(node.ctx, ast.Load) and self._rows(node, self.keep):
            return ast.copy_location(_call("data", node.value), node)
        return node

    def visit_Call(self, node):
        node = self.generic_visit(node)
        if self._rows(node, self.keep):
            kept = ast.Call(ast.Name("__gradfix_keep__", ast.Load()), [node.func, *node.args], node.keywords)
            return ast.copy_location(kept, node)
        name = getattr(node.func, "attr", getattr(node.func, "id", None))
        if name in WRAPS and node.args and self._rows(node, self.rewrap):
            first = node.args[0]
            if isinstance(first, ast.Attribute) and first.attr == "data":
                first = first.value
            return ast.copy_location(
                ast.Call(ast.Name("__gradfix_rewrap__", ast.Load()), [node.func, first, *node.args[1:]], node.keywords), node
            )
        return node

    def visit_Assign(self, node):
        if self._rows(node, self.rebind) and len(node.targets) == 1:
            (target,) = node.targets
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
                old = ast.Tuple([_loaded(t) for t in target.elts], ast.Load())
                node.value = _call("rebind", _thunk(old), node.value)
            else:
                node.value = _call("rebind", _thunk(_loaded(target)), node.value)
            return ast.copy_location(node, node)
        if self._rows(node, self.leaf):
            return self._make_leaf(node)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node):
        return self._make_leaf(node) if node.value is not None and self._rows(node, self.leaf) else node

    def visit_AugAssign(self, node):
        if not self._rows(node, self.rebind):
            return self.generic_visit(node)
        value = ast.BinOp(_loaded(node.target), node.op, node.value)
        return ast.copy_location(ast.Assign([node.target], _call("rebind", _thunk(_loaded(node.target)), value)), node)

    def _make_leaf(self, node):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Attribute) and (_misspelt(target.attr) or target.attr == "requires_grad"):
            told = ast.Expr(_call("spell", _loaded(target.value), node.value))
            return [ast.copy_location(told, node)]
        for part in ast.walk(node.value):
            if isinstance(part, ast.keyword) and part.arg and _misspelt(part.arg):
                part.arg = "requires_grad"
                if isinstance(part.value, ast.Constant) and not part.value.value:
                    return node
        parameter = any(
            isinstance(n, (ast.Name, ast.Attribute)) and "Parameter" == getattr(n, "id", getattr(n, "attr", ""))
            for n in ast.walk(node.value)
        )
        only = ast.Constant(tuple(index for row, index in self.parts if node.lineno <= row <= node.end_lineno))
        node.value = _call("leaf", _thunk(node.value), ast.Constant(parameter), only)
        return node

    def visit_Expr(self, node):
        call = node.value
        if self._rows(node, self.late) and isinstance(call, ast.Call):
            node.value = ast.Call(ast.Name("__gradfix_late__", ast.Load()), [call.func, *call.args], call.keywords)
            return node
        if self._rows(node, self.leaf) and isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            if _misspelt(call.func.attr.rstrip("_")):
                call.func.attr = "requires_grad_"
            elif call.func.attr in ("append", "insert", "add") and call.args:
                call.args[-1] = _call("leaf", _thunk(call.args[-1]), ast.Constant(False), ast.Constant(()))
        return self.generic_visit(node)


class _Skips(ast.NodeTransformer):
    """Lets a statement at one of the rows, or the rest of the turn of its loop, be left out."""

    def __init__(self, rows, how: str):
        self.rows, self.how = rows, how

    def _here(self, node) -> bool:
        return any(node.lineno <= row <= node.end_lineno for row in self.rows)

    def _guard(self, body):
        caught = ast.ExceptHandler(ast.Name("__gradfix_Skip__", ast.Load()), None, [ast.Pass()])
        return [ast.copy_location(ast.Try(body, [caught], [], []), body[0])]

    def visit_For(self, node):
        if self.how == "continue" and any(self._here(s) and isinstance(s, _SIMPLE) for s in node.body):
            node.body = self._guard(node.body)
            return node
        return self.generic_visit(node)

    def visit_Return(self, node):
        return node

    def visit_ListComp(self, node):
        """Leaves out the items that need what is missing."""
        item = ast.Name("__gradfix_item__", ast.Load())
        node = super().generic_visit(node)
        if not self._here(node) or any(isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield)) for n in ast.walk(node)):
            return node
        elements = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        made = _call("attempt", _thunk(ast.Tuple(list(elements), ast.Load())), ast.Constant(None))
        clauses = [
            ast.comprehension(g.target, g.iter, [_call("attempt", _thunk(test), ast.Constant(False)) for test in g.ifs], g.is_async)
            for g in node.generators
        ]
        there = ast.Compare(item, [ast.IsNot()], [ast.Constant(None)])
        outer = [ast.comprehension(ast.Name("__gradfix_item__", ast.Store()), ast.GeneratorExp(made, clauses), [there], 0)]
        parts = [ast.Subscript(item, ast.Constant(i), ast.Load()) for i in range(len(elements))]
        if isinstance(node, ast.DictComp):
            return ast.copy_location(ast.DictComp(*parts, outer), node)
        return ast.copy_location(type(node)(parts[0], outer), node)

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def generic_visit(self, node):
        node = super().generic_visit(node)
        if isinstance(node, _SIMPLE) and self._here(node):
            return self._guard([node])
        if isinstance(node, (ast.If, ast.While)) and self._here(node.test):
            node.test = _call("attempt", _thunk(node.test), ast.Constant(False))
        return node


_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)


class Forgiving(TorchFunctionMode):
    """Retains the gradient of every tensor that comes by, and lets leaves be changed at the named rows."""

    def __init__(self, recorder: ForgivingRecorder):
        self.recorder = recorder

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        state = torch.get_rng_state() if kwargs.get("requires_grad") else None
        try:
            result = function(*args, **kwargs)
        except RuntimeError as error:
            if state is not None:
                torch.set_rng_state(state)
            result = self.instead(error, function, args, kwargs)
        if torch.is_grad_enabled():
            for group in (args, (result,)):
                self.retain(group)
        return result

    def retain(self, values, depth: int = 0) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                with torch._C.DisableTorchFunction():
                    if value.requires_grad and not value.is_leaf and not value.retains_grad:
                        self.recorder.true_retain(value)
            elif depth < 2 and isinstance(value, (list, tuple)):
                self.retain(value, depth + 1)

    def instead(self, error, function, args, kwargs):
        frame = sys._getframe(2)
        while frame is not None and self.recorder.path_of(frame.f_code.co_filename) is None:
            frame = frame.f_back
        if frame is None or not self.recorder.named_row(frame):
            raise error
        text = str(error)
        if any(part in text for part in INPLACE_ON_LEAF):
            self.recorder.note("a leaf is updated in place")
            with torch.no_grad():
                return function(*args, **kwargs)
        if NO_TRUTH in text and self.recorder.tests_truth(frame):
            self.recorder.note("a gradient that is there counts as true")
            return True
        if ONLY_FLOATS in text.lower() and args and isinstance(args[0], torch.Tensor):
            self.recorder.note("integers that require grad count as floats")
            args[0].data = args[0].data.to(torch.get_default_dtype())
            return function(*args, **kwargs)
        if ONLY_FLOATS in text.lower() and kwargs.get("requires_grad"):
            self.recorder.note("integers that require grad count as floats")
            made = function(*args, **{k: v for k, v in kwargs.items() if k not in ("requires_grad", "dtype")})
            return made.detach().to(torch.get_default_dtype()).requires_grad_()
        raise error

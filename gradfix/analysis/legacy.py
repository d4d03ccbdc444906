"""Code of PyTorch 0.2 to 1.4: where it stands, and what is known of the values in it.

The places are found by syntax and by what names are imported as.  The values come from a run of the interpreter of its
own, which notes what the expressions of those places stood for; it adds nothing to what a plain run observes.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from gradfix.analysis.facts import Fact, Observations
from gradfix.analysis.interpreter import Interpreter, run_roots
from gradfix.analysis.values import Bound, Const, External, Number, Ref, Unknown, values_of
from gradfix.old_python import PLACEHOLDER

VARIABLE = {"torch.autograd.Variable", "torch.autograd.variable.Variable"}
INIT = ("constant", "dirac", "eye", "kaiming_normal", "kaiming_uniform", "normal", "orthogonal", "sparse", "uniform", "xavier_normal",
        "xavier_uniform")
# What was renamed: {old name: new name}.  The old ones do the same, with a warning or without, or are gone.
RENAMED = {
    **{f"torch.nn.init.{name}": f"torch.nn.init.{name}_" for name in INIT},
    "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad.clip_grad_norm": "torch.nn.utils.clip_grad.clip_grad_norm_",
    "torch.nn.functional.sigmoid": "torch.sigmoid",
    "torch.nn.functional.tanh": "torch.tanh",
    "torch.nn.functional.upsample": "torch.nn.functional.interpolate",
    "torch.nn.functional.nll_loss2d": "torch.nn.functional.nll_loss",
    "torch.nn.NLLLoss2d": "torch.nn.NLLLoss",
}
STARS = {"torch.autograd": ("Variable",), "torch.nn.init": INIT, "torch.nn.utils": ("clip_grad_norm",), "torch.nn": ("NLLLoss2d",)}

# Overloads with a number first: {method: {number of positional arguments: their places and names}}.
_ALPHA, _VALUE = {2: ((0, "alpha"),)}, {3: ((0, "value"),)}
_BETA = {3: ((0, "beta"),), 4: ((0, "beta"), (1, "alpha"))}
NUMBER_FIRST = {
    **{name + end: table for end in ("", "_") for names, table in (
        (("add", "sub"), _ALPHA), (("addcmul", "addcdiv"), _VALUE), (("addmm", "addmv", "addr", "addbmm", "baddbmm"), _BETA)) for name in names}
}
_FUNCTION_BETA = {4: ((0, "beta"),), 5: ((0, "beta"), (2, "alpha"))}
NUMBER_FIRST_FUNCTIONS = {
    **dict.fromkeys(("torch.add", "torch.sub"), {3: ((1, "alpha"),)}),
    **dict.fromkeys(("torch.addcmul", "torch.addcdiv"), {4: ((1, "value"),)}),
    **dict.fromkeys(("torch.addmm", "torch.addmv", "torch.addr", "torch.addbmm", "torch.baddbmm"), _FUNCTION_BETA),
}

# In-place methods that compute the new value from the old one (those that only initialise are no updates).
UPDATES = {"add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "clamp_", "clamp_min_", "clamp_max_", "lerp_", "pow_", "sqrt_", "abs_",
           "neg_", "sign_", "renorm_", "addmm_", "addr_", "round_", "floor_"}
CONVERSIONS = {"cpu", "cuda", "numpy", "float", "double", "clone", "detach", "contiguous"}

FACTORIES = {"tensor", "Tensor", "as_tensor", "from_numpy", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm", "arange",
             "range", "linspace", "logspace", "eye", "normal", "bernoulli", "multinomial", "zeros_like", "ones_like", "rand_like",
             "randn_like", "empty_like", "full_like", "randint_like", "load", "FloatTensor", "DoubleTensor", "HalfTensor", "ByteTensor",
             "CharTensor", "ShortTensor", "IntTensor", "LongTensor", "BoolTensor", "argmax", "argmin", "eq", "ne", "gt", "lt", "ge", "le"}
# Methods whose result never requires grad, whatever they are called on.
FREE_METHODS = {"new", "new_zeros", "new_ones", "new_tensor", "new_empty", "new_full", "long", "int", "byte", "bool", "short", "char", "detach",
                "argmax", "argmin", "eq", "ne", "gt", "lt", "ge", "le", "nonzero", "size", "numel", "dim", "multinomial", "tolist", "item", "numpy"}
LOADER = re.compile(r"loader|dataset|data_?iter|iterator|batch|sampler|\bdl\b|enumerate\(\w*data", re.I)
LOSS_NAME = re.compile(r"(?:^|[_.\d])(?:\w*loss(?:es)?|\w*cost|err(?:or)?|nll|kld?|elbo|ce|mse|bce|acc(?:uracy)?)\w{0,3}$", re.I)
CRITERION = re.compile(r"(?:criterion|criteria|loss|cost|cross_?entropy|mse|bce|nll)\w*$", re.I)

# Ranks: an int, SOME (one or more), None (unknown).
SOME = "some"
REDUCTIONS = {"sum", "mean", "prod", "std", "var", "norm", "median", "max", "min", "all", "any", "logsumexp", "argmax", "argmin"}
TO_SCALAR = {"dot", "trace", "dist", "det", "logdet", "item"}
SAME_RANK = {"data", "grad", "cuda", "cpu", "float", "double", "half", "long", "int", "byte", "to", "type", "clone", "detach", "contiguous", "exp",
             "log", "sqrt", "abs", "neg", "pow", "clamp", "sigmoid", "tanh", "relu", "softmax", "log_softmax", "requires_grad_", "type_as", "log1p",
             "backward", "mul", "add", "sub", "div", "dropout", "add_", "sub_", "mul_", "div_", "sign", "round", "floor", "square", "reciprocal",
             "rsqrt", "sin", "cos", "softplus", "leaky_relu", "elu", "detach_", "cumsum", "sort", "eq", "ne", "gt", "lt", "ge", "le"}
LOSSES = {"cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
          "kl_div", "poisson_nll_loss", "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "multilabel_margin_loss",
          "soft_margin_loss", "multi_margin_loss", "multilabel_soft_margin_loss", "triplet_margin_loss", "huber_loss", "ctc_loss",
          "gaussian_nll_loss"}


# ------------------------------------------------------------------------ names


class Names:
    """What the names of a file were imported as, scope by scope; a name that is bound in another way, too, is nobody's."""

    def __init__(self, project, module, depth=0, others=None):
        self.project, self.module, self.depth = project, module, depth
        self.others: dict[tuple[str, int], Names] = {} if others is None else others  # those of files that names are imported from
        self.stars: list[tuple[str, int]] = []
        self.imports: list[tuple[ast.ImportFrom, ast.alias]] = []
        self._scopes: dict[ast.AST, dict[str, str | None]] = {}
        self._top = self.scope(module.tree)
        self._found: dict[str, str | None] = {}

    def scope(self, node) -> dict[str, str | None]:
        if node not in self._scopes:
            self._scopes[node] = self._bindings(node)
        return self._scopes[node]

    def _bindings(self, scope):
        found: dict[str, str | None] = {}

        def bind(name, dotted=None):
            found[name] = dotted if name not in found or found[name] == dotted else None

        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            a = scope.args
            for p in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]:
                if p is not None:
                    bind(p.arg)
        body = scope.body if isinstance(scope.body, list) else [scope.body]
        work, outside = list(reversed(body)), set()
        while work:
            n = work.pop()
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                bind(n.name)
                work.extend([*n.decorator_list, *(n.bases if isinstance(n, ast.ClassDef) else [])])
                if scope is self.module.tree:
                    for inner in ast.walk(n):
                        if isinstance(inner, ast.Global):
                            for name in inner.names:
                                bind(name)
                continue
            if isinstance(n, ast.Lambda):
                continue
            if isinstance(n, ast.Import):
                for alias in n.names:
                    bind(alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0])
            elif isinstance(n, ast.ImportFrom):
                for alias in n.names:
                    if alias.name == "*":
                        self.stars.append((n.module or "", n.level))
                    else:
                        bind(alias.asname or alias.name, self._origin(n, alias.name))
                        self.imports.append((n, alias))
            elif isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
                bind(n.id)
            elif isinstance(n, (ast.Global, ast.Nonlocal)):
                outside.update(n.names)
            elif isinstance(n, ast.ExceptHandler) and n.name:
                bind(n.name)
            work.extend(reversed(list(ast.iter_child_nodes(n))))
        for name in outside:
            found.pop(name, None)
        return found

    def _origin(self, statement, name):
        """`torch.autograd.Variable` also where a file of the project hands it on."""
        path = self.project.resolve(self.module.path, statement.module or "", statement.level)
        if path is None or path == self.module.path:
            return f"{statement.module}.{name}" if not statement.level else None
        return self._exported(path, name)

    def _exported(self, path, name):
        module = self.project.module(path) if self.depth < 4 else None
        if module is None:
            return None
        key = (path, self.depth + 1)
        if key not in self.others:
            self.others[key] = Names(self.project, module, self.depth + 1, self.others)
        return self.others[key].top(name)

    def top(self, name):
        if name not in self._found:
            self._found[name] = self._top[name] if name in self._top else self._from_star(name)
        return self._found[name]

    def _from_star(self, name):
        for star, level in self.stars:
            path = self.project.resolve(self.module.path, star, level)
            if path and path != self.module.path:
                if (found := self._exported(path, name)) is not None:
                    return found
            elif name in STARS.get(star, ()):
                return f"{star}.{name}"
        return None

    def lookup(self, name, scopes):
        for scope in reversed(scopes):
            if isinstance(scope, ast.ClassDef) and scope is not scopes[-1]:
                continue
            if name in self.scope(scope):
                return self.scope(scope)[name]
        return self.top(name)

    def resolve(self, node, scopes):
        """The dotted name that an expression stands for, or None."""
        if isinstance(node, ast.Name):
            return self.lookup(node.id, scopes)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value, scopes)
            return f"{owner}.{node.attr}" if owner is not None else None
        return None


# ----------------------------------------------------------------------- places


@dataclass(eq=False)
class Place:
    """One piece of legacy code: its node, its statement, and the expressions whose values count."""

    kind: str
    node: ast.AST
    stmt: ast.stmt
    roles: dict[str, ast.expr] = field(default_factory=dict)
    info: dict = field(default_factory=dict)
    seen: dict[str, list] = field(default_factory=dict)


class Places(ast.NodeVisitor):
    def __init__(self, project, module):
        self.names = Names(project, module)
        self.module = module
        self.found: list[Place] = []
        self.scopes: list = []
        self.statements: list = []
        self.parents: list = []
        self.visit(module.tree)

    def visit(self, node):
        scope = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef))
        if isinstance(node, ast.stmt):
            self.statements.append(node)
        if scope:
            self.scopes.append(node)
        method = getattr(self, "at_" + type(node).__name__, None)
        if method is not None:
            method(node)
        self.parents.append(node)
        self.generic_visit(node)
        self.parents.pop()
        if scope:
            self.scopes.pop()
        if isinstance(node, ast.stmt):
            self.statements.pop()

    def resolve(self, node):
        return self.names.resolve(node, self.scopes)

    def place(self, kind, node, roles=None, **info):
        self.found.append(place := Place(kind, node, self.statements[-1], roles or {}, info))
        return place

    @property
    def function(self):
        return next((s for s in reversed(self.scopes) if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))), None)

    # ------------------------------------------------------ Variable, volatile
    def at_Call(self, node):
        dotted = self.resolve(node.func)
        if dotted in VARIABLE:
            self.variable(node)
        elif dotted == "builtins.isinstance" or isinstance(node.func, ast.Name) and node.func.id == "isinstance" and len(node.args) == 2:
            classes = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            for c in classes:
                if self.resolve(c) in VARIABLE:
                    self.place("legacy-variable", c, form="isinstance", callee=c, function=self.function)
        else:
            self.number_first(node, dotted)
        for keyword in node.keywords:
            if keyword.arg == PLACEHOLDER:
                self.place("legacy-async", keyword)

    def variable(self, node):
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            return  # a wrapper of the project's own
        keywords = {k.arg: k.value for k in node.keywords}
        data = node.args[0] if node.args else keywords.pop("data", None)
        if data is None or not set(keywords) <= {"requires_grad", "volatile"} or len(node.args) > 2:
            return
        roles = {"data": data, "result": node}
        if isinstance(data, ast.Attribute) and data.attr == "data":
            roles["owner"] = data.value
        for name in keywords:
            roles[name] = keywords[name]
        if len(node.args) == 2:
            roles["second"] = node.args[1]
        self.place("legacy-variable", node, roles, form="call", callee=node.func, function=self.function)

    def at_Compare(self, node):
        """`type(x) == Variable`"""
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
            return
        for one, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "type" and len(one.args) == 1 and not (
                    one.keywords) and self.resolve(other) in VARIABLE:
                self.place("legacy-variable", node, form="type", callee=other, subject=one.args[0], function=self.function,
                           negative=isinstance(node.ops[0], (ast.NotEq, ast.IsNot)))

    # ------------------------------------------------------------- .data[0]
    def at_Subscript(self, node):
        if not isinstance(node.ctx, ast.Load) or not isinstance(node.slice, ast.Constant) or node.slice.value != 0 or (
                isinstance(node.slice.value, bool)):
            return
        root, through = node.value, False
        while True:
            if isinstance(root, ast.Attribute) and root.attr == "data":
                root, through = root.value, True
            elif isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute) and root.func.attr in CONVERSIONS and not root.args:
                root = root.func.value
            else:
                break
        if not through:
            return
        outer, inner, code = node, root, "__expr__.item()"
        parent = self.parents[-1] if self.parents else None
        if isinstance(parent, ast.Attribute):
            call = self.parents[-2]
            if parent.attr in ("item", "tolist") and isinstance(call, ast.Call) and call.func is parent:
                outer = call
            else:
                inner, code = node.value, "__expr__"
        self.place("legacy-scalar-index", node, {"owner": root}, outer=outer, inner=inner, code=code)

    # ------------------------------------------------------- updates by .data
    def at_AugAssign(self, node):
        owner = data_owner(node.target)
        if owner is not None:
            self.update(node, owner, "augmented")

    def at_Assign(self, node):
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Attribute) or node.targets[0].attr != "data":
            return
        owner = node.targets[0].value
        name = ast.unparse(owner)
        if any(isinstance(n, ast.Attribute) and n.attr in ("data", "grad") and ast.unparse(n.value) == name for n in ast.walk(node.value)):
            self.update(node, owner, "assigned")

    def at_Expr(self, node):
        call, methods = node.value, []
        while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_"):
            methods.append(call.func.attr)
            call = call.func.value
        if not methods:
            return
        owner = data_owner(call)
        if owner is None:
            return
        if not is_gradient(owner):
            name = ast.unparse(owner) + "."
            itself = any(name in ast.unparse(a) + " " for a in node.value.args)
            if not all(m in UPDATES or m == "copy_" and itself for m in methods):
                return
        self.update(node, owner, "method")

    def update(self, node, owner, form):
        roles = {"owner": owner}
        reads = []
        for n in ast.walk(node):
            if isinstance(n, ast.Attribute) and n.attr == "data" and n.value is not owner:
                roles[f"read{len(reads)}"] = n.value
                reads.append(n)
        name = owner
        while isinstance(name, (ast.Attribute, ast.Subscript)):
            name = name.value
        local = not isinstance(owner, ast.Name) or self.function is None or owner.id in self.names.scope(self.function)
        self.place("legacy-data", node, roles, form=form, reads=reads, owner=owner, gradient=is_gradient(owner), local=local,
                   function=self.function)

    # ------------------------------------------------------------ old overloads
    def number_first(self, node, dotted):
        if any(isinstance(a, ast.Starred) for a in node.args) or not isinstance(node.func, ast.Attribute):
            return
        given = {k.arg for k in node.keywords}
        table = NUMBER_FIRST_FUNCTIONS.get(dotted)
        roles = {}
        if table is None and (dotted is None or not dotted.startswith("torch.")):
            table = NUMBER_FIRST.get(node.func.attr)
            roles = {"owner": node.func.value}
        names = (table or {}).get(len(node.args))
        if names is None or given & {name for _, name in names} or None in given:
            return
        roles["number"] = node.args[names[0][0]]
        roles["tensor"] = node.args[-1]
        self.place("legacy-argument-order", node, roles, names=names, method=node.func.attr, certain=node.func.attr not in ("add", "sub")
                   or "owner" not in roles)

    # ------------------------------------------------------------------- names
    def at_Attribute(self, node):
        if isinstance(node.ctx, ast.Load) and (dotted := self.resolve(node)) in RENAMED:
            self.place("legacy-name", node, old=dotted, new=RENAMED[dotted], by_name=False)

    def at_Name(self, node):
        if isinstance(node.ctx, ast.Load) and (dotted := self.resolve(node)) in RENAMED:
            self.place("legacy-name", node, old=dotted, new=RENAMED[dotted], by_name=True)


def data_owner(node):
    """`x` of `x.data` and of `x.data[…]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.value if isinstance(node, ast.Attribute) and node.attr == "data" else None


def is_gradient(node):
    return isinstance(node, ast.Attribute) and node.attr == "grad"


# ----------------------------------------------------------------------- values


class LegacyInterpreter(Interpreter):
    """Notes what the expressions of legacy places stand for, and how many dimensions tensors have."""

    def __init__(self, project, out):
        super().__init__(project, out)
        self.ranks: dict[int, object] = {}
        self.last: dict[ast.AST, object] = {}
        self.watched: dict[ast.AST, list] = {}
        self.places: dict[str, list[Place]] = {}
        self.scalars: set[int] = set()  # objects on which `backward()` was called without a gradient
        self.operands_of: dict[int, set[int]] = {}  # element-wise results, and what they are computed of
        self.likely: set[int] = set()  # results of something that is called a criterion
        self.pending: list = []  # updates that ran: (place, the object, the first object made after it)
        self.wraps: dict[int, Place] = {}

    def look_into(self, module):
        if module is None or module.path in self.places:
            return
        self.places[module.path] = Places(self.project, module).found
        for place in self.places[module.path]:
            for role, node in place.roles.items():
                self.watched.setdefault(node, []).append((place, role))

    def module_frame(self, path):
        self.look_into(self.project.module(path))
        return super().module_frame(path)

    def eval(self, node):
        value = super().eval(node)
        if self.st is None:
            return value
        self.last[node] = value
        for v in values_of(value):
            if isinstance(v, Ref) and v.oid not in self.ranks:
                self.ranks[v.oid] = self.rank_of(node, v)
                if isinstance(node, (ast.BinOp, ast.UnaryOp)) and not isinstance(node.op, ast.MatMult):
                    operands = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
                    self.operands_of[v.oid] = set().union(*(oids_of(self.last.get(n)) for n in operands))
        for place, role in self.watched.get(node, ()):
            self.note(place, role, node, value)
        return value

    def note_scalars(self, loss):
        """What `backward()` is called on has one element, and so has each term of it."""
        work = [*oids_of(loss)]
        while work:
            if (oid := work.pop()) not in self.scalars:
                self.scalars.add(oid)
                work.extend(self.operands_of.get(oid, ()))

    def note(self, place, role, node, value):
        oids = tuple(v.oid for v in values_of(value) if isinstance(v, Ref))
        seen = {"state": self.state(value, node), "rank": self.rank(value), "oids": oids, "concrete": self.concrete, "kind": self.kind(value),
                "truth": value.value if isinstance(value, Const) else None, "mode": self.st.mode}
        place.seen.setdefault(role, []).append(seen)
        if place.kind == "legacy-data" and role == "owner" and oids:
            self.pending.append((place, set(oids), self.next_oid))
        if place.kind == "legacy-variable" and role == "result":
            self.wraps.update(dict.fromkeys(oids, place))

    def kind(self, value):
        """`tensor`, `parameter`, `gradient`, `other` or None (unknown)."""
        kinds = set()
        for v in values_of(value):
            obj = self.obj(v)
            if v == Const(None):
                continue
            if isinstance(v, Bound) and v.name.split(".")[0] == "grad":
                kinds.add("gradient")
            elif obj is None:
                kinds.add(None if isinstance(v, Unknown) else "other")
            elif obj.param:
                kinds.add("parameter")
            elif obj.kind == "tensor":
                kinds.add("tensor")
            else:
                kinds.add(None if obj.kind == "opaque" else "other")
        return kinds.pop() if len(kinds) == 1 else "tensor" if kinds and kinds <= {"tensor", "parameter", "gradient"} else None

    # --------------------------------------------------- requires it a gradient?
    def state(self, value, node=None):
        """`plain`, `graph`, `data` (from a loader) or `unknown`."""
        found = join_states([self.one_state(v) for v in values_of(value) if v != Const(None)])
        return self.structure(node) if found == "unknown" and node is not None else found

    def one_state(self, v):
        if isinstance(v, (Const, Number)):
            return "plain"
        if isinstance(v, Bound):
            return "plain" if v.name.split(".")[0] == "grad" else "unknown"
        obj = self.obj(v)
        if obj is None:
            return "unknown"
        if obj.kind in ("list", "tuple", "iter"):
            return join_states([self.state(i) for i in obj.items]) if obj.items else "unknown"
        if obj.kind not in ("tensor", "opaque"):
            return "unknown"
        if obj.rg is not None or obj.param:
            return "plain" if obj.rg is False else "graph"
        return "data" if self.from_loader(v.oid) else "unknown"

    def from_loader(self, oid, depth=0):
        obj = self.st.heap.get(oid)
        if obj is None or obj.kind != "opaque" or depth > 8 or not isinstance(obj.origin, tuple):
            return False
        if obj.statement is not None and obj.origin[0] == "element":
            _, stmt = obj.statement
            around = [stmt.iter] if isinstance(stmt, (ast.For, ast.AsyncFor)) else [n.iter for n in ast.walk(stmt) if isinstance(n, ast.comprehension)]
            if any(LOADER.search(ast.unparse(n)) for n in around):
                return True
        return any(self.from_loader(i, depth + 1) for i in obj.ins)

    def structure(self, node):
        """The same by the form of the expression, where its value says nothing."""
        if isinstance(node, ast.Constant):
            return "plain"
        if isinstance(node, ast.Attribute):
            if node.attr in ("data", "grad", "shape"):
                return "plain"
            return self.known(node)
        if isinstance(node, ast.Subscript):
            return self.part(node.value)
        if isinstance(node, ast.BinOp):
            return join_states([self.part(node.left), self.part(node.right)])
        if isinstance(node, ast.UnaryOp):
            return self.part(node.operand)
        if isinstance(node, ast.IfExp):
            return join_states([self.part(node.body), self.part(node.orelse)])
        if isinstance(node, ast.Compare):
            return "plain"
        if isinstance(node, ast.Call):
            name = self.last.get(node.func)
            dotted = name.name if isinstance(name, External) else None
            if any(k.arg == "requires_grad" for k in node.keywords):
                return "unknown"
            if dotted is not None and dotted.startswith("torch."):
                last = dotted.rsplit(".", 1)[-1]
                if last in FACTORIES:
                    return "plain"
                if last[:1].islower():
                    return join_states([self.part(a) for a in node.args])
            elif isinstance(node.func, ast.Attribute):
                if node.func.attr in FREE_METHODS:
                    return "plain"
                if isinstance(name, (Bound, Ref)) or name is None:
                    tensors = [a for a in node.args if not isinstance(a, (ast.Constant, ast.Starred))]
                    if self.part(node.func.value) != "unknown":
                        return join_states([self.part(node.func.value), *(s for a in tensors if (s := self.part(a)) == "graph")])
            return "unknown"
        return "unknown"

    def part(self, node):
        value = self.last.get(node)
        return self.structure(node) if value is None else self.state(value, node)

    def known(self, node):
        value = self.last.get(node)
        return "unknown" if value is None else join_states([self.one_state(v) for v in values_of(value) if v != Const(None)])

    # -------------------------------------------------------------------- ranks
    def rank(self, value):
        found = {self.ranks.get(v.oid) if isinstance(v, Ref) else 0 if isinstance(v, (Number, Const)) else None
                 for v in values_of(value) if v != Const(None)}
        if len(found) == 1:
            return found.pop()
        return SOME if found and all(r == SOME or isinstance(r, int) and r > 0 for r in found) else None

    def rank_of(self, node, ref):
        """Dimensions of what `node` was just seen to make."""
        if isinstance(node, ast.BinOp):
            return broadcast(self.rank(self.last.get(n)) if n in self.last else None for n in (node.left, node.right))
        if isinstance(node, ast.Compare):
            return broadcast(self.rank(self.last.get(n)) if n in self.last else None for n in (node.left, *node.comparators))
        if isinstance(node, ast.UnaryOp):
            return self.rank(self.last.get(node.operand))
        if isinstance(node, ast.Subscript):
            base = self.last.get(node.value)
            if self.is_collection(base):
                return None  # the rank of an item is its own
            return indexed(self.rank(base), node.slice)
        if isinstance(node, ast.Attribute):
            return self.rank(self.last.get(node.value)) if node.attr in SAME_RANK else None
        if isinstance(node, ast.Call):
            return self.call_rank(node, ref)
        return None

    def is_collection(self, value):
        kinds = {obj.kind for v in (values_of(value) if value is not None else ()) if (obj := self.obj(v)) is not None}
        return bool(kinds - {"tensor", "opaque"})

    def call_rank(self, node, ref):
        func, callee = node.func, self.last.get(node.func)
        words = {k.arg: k.value for k in node.keywords}
        if isinstance(callee, External):
            if callee.name == "builtins.sum" and node.args:
                items = self.obj(self.last.get(node.args[0]))
                return broadcast(self.rank(i) for i in items.items) if items is not None and items.kind in ("list", "tuple", "iter") and items.items else None
            if not callee.name.startswith("torch."):
                return None
            if callee.name in VARIABLE:
                return self.rank(self.last.get(node.args[0])) if node.args else None
            return self.function_rank(callee.name, node, words)
        obj = self.obj(callee)
        if obj is not None and obj.kind == "module" and obj.cls is None and obj.origin:
            if str(obj.origin).endswith("Loss") or obj.origin == "NLLLoss2d":
                made = {k.arg: k.value for k in obj.node.keywords} if isinstance(obj.node, ast.Call) else {}
                return 0 if reduces(made) else SOME
            return SOME
        if isinstance(func, ast.Attribute) and (base := self.last.get(func.value)) is not None:
            if isinstance(base, (Number, Const, External)):
                return None
            if self.kind(base) in ("tensor", "parameter", "gradient") or self.rank(base) is not None or func.attr in ("mean", "sum") and (
                    isinstance(base, Ref) and self.obj(base) is not None and self.obj(base).kind == "opaque"):
                return self.method_rank(func.attr, self.rank(base), node.args, words)
        if CRITERION.search(ast.unparse(func)) and self.obj(ref) is not None and self.obj(ref).kind == "opaque":
            self.likely.add(ref.oid)
        return None

    def function_rank(self, dotted, node, words):
        name = dotted.rsplit(".", 1)[-1]
        first = self.rank(self.last.get(node.args[0])) if node.args else None
        if name in LOSSES:
            return 0 if reduces(words) else SOME
        if name in ("rand", "randn", "zeros", "ones", "empty", "Tensor", "FloatTensor", "LongTensor", "DoubleTensor", "IntTensor", "ByteTensor"):
            args = [a for a in node.args if not isinstance(a, ast.Starred)]
            if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)):
                return SOME if name[0].isupper() else len(args[0].elts)
            if len(args) != len(node.args) or len(args) == 1 and not (isinstance(args[0], ast.Constant) and isinstance(args[0].value, int)):
                return None if len(args) == 1 else SOME
            return len(args) if args else None
        if name in ("randint", "full") and any(isinstance(a, (ast.Tuple, ast.List)) for a in node.args):
            return len(next(a for a in node.args if isinstance(a, (ast.Tuple, ast.List))).elts)
        if name in ("arange", "linspace", "randperm", "range"):
            return 1
        if name in ("cat", "mm", "bmm", "stack", "conv2d", "linear", "embedding", "eye"):
            return SOME
        if name == "matmul":
            return None
        return self.method_rank(name, first, node.args[1:], words)

    def method_rank(self, name, rank, args, words):
        if name in TO_SCALAR:
            return 0
        if name in REDUCTIONS:
            if not args and not {"dim", "axis", "keepdim"} & set(words) or name == "norm" and len(args) == 1 and not {"dim"} & set(words):
                return 0
            if name in ("max", "min") and args and not isinstance(args[0], ast.Constant):
                return None
            keep = words.get("keepdim") or (args[-1] if len(args) > 1 else None)
            if isinstance(keep, ast.Constant) and keep.value is True:
                return rank if rank is not None else SOME
            dim = words.get("dim") or words.get("axis") or (args[0] if args else None)
            count = len(dim.elts) if isinstance(dim, (ast.Tuple, ast.List)) else 1
            if isinstance(rank, int):
                return max(rank - count, 0)
            return SOME if isinstance(dim, ast.Constant) and isinstance(dim.value, int) and dim.value > 0 else None
        if name in SAME_RANK:
            others = [self.rank(self.last.get(a)) for a in args if a in self.last and self.kind(self.last[a]) == "tensor"]
            return broadcast([rank, *others]) if name.rstrip("_") in ("add", "sub", "mul", "div") else rank
        if name in ("view", "reshape", "expand", "repeat", "permute", "new", "new_zeros", "resize_"):
            if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)):
                return len(args[0].elts)
            if any(isinstance(a, ast.Starred) for a in args) or len(args) == 1 and not isinstance(args[0], (ast.Constant, ast.UnaryOp)):
                return None
            return len(args) if args else None
        if name == "unsqueeze":
            return rank + 1 if isinstance(rank, int) else SOME
        if name in ("squeeze",):
            return 0 if rank == 0 else None
        if name in ("t", "transpose", "mm", "bmm", "topk", "gather", "index_select", "masked_select", "nonzero", "expand_as", "view_as", "unfold"):
            return SOME
        return None

    def do_AugAssign(self, s):
        old = self.st.frame.vars.get(s.target.id) if isinstance(s.target, ast.Name) else None
        before, terms = self.rank(old) if old is not None else None, oids_of(old)
        super().do_AugAssign(s)
        if self.st is None or not isinstance(s.target, ast.Name):
            return
        value = self.st.frame.vars.get(s.target.id)
        if isinstance(value, Ref) and value.oid not in self.ranks:
            self.ranks[value.oid] = broadcast([before, self.rank(self.last.get(s.value))])
            if not isinstance(s.op, ast.MatMult):
                self.operands_of[value.oid] = terms | oids_of(self.last.get(s.value))

    # ----------------------------------------------------------------- backward
    def backward(self, node, loss, kwargs):
        before = len(self.st.backwards)
        result = super().backward(node, loss, kwargs)
        if self.st is None or len(self.st.backwards) == before:
            return result
        given = node.args if isinstance(node, ast.Call) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not given and not {"gradient", "grad_tensors"} & set(kwargs):
            self.note_scalars(loss)
        reached = self.st.backwards[-1].reached
        for place, oids, mark in self.pending:
            if place.info.get("again") or not oids & set(reached):
                continue
            # Was something that leads to the updated tensor computed before the update?
            old = [i for i in reached if i < mark and i not in oids and (o := self.st.heap.get(i)) is not None and o.kind in ("tensor", "opaque")
                   and o.leaf is not True and not o.param and (o.computed or o.origin == "result")]
            if any(self.below(i) & oids for i in old):
                place.info["again"] = True
        trained = [i for i in reached if i not in self.wraps and (o := self.st.heap.get(i)) is not None and (
            o.rg is True and o.leaf is True or o.param or o.kind == "module" and o.open or o.kind == "opaque" and o.rg is not False and o.origin == "result")]
        for oid in reached:
            place = self.wraps.get(oid)
            if place is not None:
                place.info["severs"] = place.info.get("severs", True) and not trained
        return result


def oids_of(value):
    return {v.oid for v in values_of(value) if isinstance(v, Ref)} if value is not None else set()


def join_states(states):
    states = set(states)
    if "graph" in states:
        return "graph"
    if not states or "unknown" in states:
        return "unknown"
    return "data" if "data" in states else "plain"


def broadcast(ranks):
    ranks = list(ranks)
    if all(isinstance(r, int) for r in ranks):
        return max(ranks, default=None)
    return SOME if any(r == SOME or isinstance(r, int) and r > 0 for r in ranks) else None


def indexed(rank, index):
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if any(isinstance(p, ast.Constant) and p.value is None for p in parts):
        return SOME
    taken = 0
    for p in parts:
        if isinstance(p, ast.Slice):
            continue
        if isinstance(p, ast.Constant) and isinstance(p.value, int) or isinstance(p, ast.UnaryOp):
            taken += 1
        else:
            return None
    if isinstance(rank, int):
        return max(rank - taken, 0)
    return SOME if taken == 0 and rank == SOME else None


def reduces(words):
    """Does a loss with these keywords give one number?"""
    reduction, reduce = words.get("reduction"), words.get("reduce")
    if reduction is not None and not (isinstance(reduction, ast.Constant) and reduction.value in ("mean", "sum", "elementwise_mean", "batchmean")):
        return False
    return reduce is None or isinstance(reduce, ast.Constant) and reduce.value is not False


# ------------------------------------------------------------------------ facts


def observe(project, module, out):
    scratch = Observations()
    made = []

    def make(project, scratch):
        interpreter = LegacyInterpreter(project, scratch)
        interpreter.look_into(module)
        made.append(interpreter)
        return interpreter

    # The places of this file say which functions are worth a run; made ahead, because the run wants them.
    rows = sorted(p.node.lineno for p in Places(project, module).found if p.roles)
    if rows:
        run_roots(project, module, scratch, None, make, rows)
    else:
        make(project, scratch)
    interpreter = made[0]
    out.problems.extend(p for p in scratch.problems if p not in out.problems)
    for path, places in interpreter.places.items():
        where = project.module(path)
        if where is None:
            continue
        for place in places:
            if path == module.path or place.seen:
                out.facts.append(fact_of(interpreter, where, place))


def fact_of(interpreter, module, place):
    info = {**place.info, "form": place.info.get("form"), "torch": module.torch_name()}
    concrete = [s for seen in place.seen.values() for s in seen if s["concrete"]]
    for role, node in place.roles.items():
        seen = place.seen.get(role, [])
        seen = [s for s in seen if s["concrete"]] or seen
        info[role] = {
            "span": module.span(node),
            "state": join_states([s["state"] for s in seen]) if seen else interpreter.structure(node),
            "ranks": {s["rank"] for s in seen},
            "kinds": {s["kind"] for s in seen},
            "truths": {repr(s["truth"]) for s in seen},
            "modes": {s["mode"] for s in seen},
            "scalar": bool(seen) and all(s["oids"] and set(s["oids"]) <= interpreter.scalars | zero_ranked(interpreter, s) for s in seen),
            "likely": bool(seen) and all(s["oids"] and set(s["oids"]) <= interpreter.likely for s in seen),
            "seen": bool(seen),
        }
    for name in ("callee", "subject", "owner_node"):
        if isinstance(info.get(name), ast.AST):
            info[name] = module.span(info[name])
    info["names"] = place.info.get("names")
    span = module.span(place.node) if hasattr(place.node, "lineno") else None
    portable = {k: v for k, v in info.items() if not contains_node(v)}
    if "reads" in place.info:
        portable["reads"] = [(module.span(n), module.span(n.value)) for n in place.info["reads"]]
    for name in ("outer", "inner"):
        if isinstance(place.info.get(name), ast.AST):
            portable[name] = module.span(place.info[name])
    return Fact(place.kind, module.path, span, module.span(place.stmt), True, portable, bool(concrete))


def zero_ranked(interpreter, seen):
    return {oid for oid in seen["oids"] if interpreter.ranks.get(oid) == 0}


def contains_node(value):
    return isinstance(value, ast.AST) or isinstance(value, (list, tuple)) and any(map(contains_node, value))

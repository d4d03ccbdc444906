"""What torch does to the abstract heap: creation, operations, cuts, modules, optimizers, backward, gradients."""

from __future__ import annotations

import ast

from gradfix.analysis import operations
from gradfix.analysis.classes import CONTAINERS, Classes
from gradfix.analysis.cuts import SOFT, UNSEEN, Cuts, capped
from gradfix.analysis.distributions import Distributions
from gradfix.analysis.training import Training, is_tensor_method
from gradfix.analysis.values import (
    PLAIN, UNKNOWN, Bound, Class, Const, External, Function, ModuleValue, Multi, Number, Obj, Ref, join_values, values_of,
)

# Methods of strings that choose parameters by their names.
TEXT = {"startswith", "endswith", "lower", "upper", "strip", "split", "rsplit", "replace", "removeprefix", "removesuffix", "isdigit", "find", "count"}
# What returns (values, indices): always, or where a dimension is given.
PAIRED = {"sort", "topk", "kthvalue", "mode", "cummax", "cummin"}
PAIRED_ALONG = {"max", "min", "median", "nanmedian"}
INDICES = {"max": "argmax", "min": "argmin", "sort": "argsort"}
# What overwrites a tensor with values that depend on no other tensor.
FILLS = {"zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "geometric_", "log_normal_", "fill_diagonal_"}
# Factories that are Python functions or classes, and so not in the table of operations.
FACTORIES = {"tensor", "Tensor", "FloatTensor", "DoubleTensor", "LongTensor", "IntTensor", "as_tensor", "asarray", "from_numpy", "normal",
             "multinomial", "bernoulli"}
# Of one tensor, these keep its history; of a list of tensors, they copy values, as the others do.
KEEPING = {"as_tensor", "from_numpy", "Tensor", "asarray", "FloatTensor", "DoubleTensor"}
REWRAPPING = {"tensor", "as_tensor", "asarray", "Tensor", "FloatTensor", "DoubleTensor", "LongTensor", "IntTensor", "full"}
INTEGER_FACTORIES = {"randint", "randperm", "LongTensor", "IntTensor", "multinomial"}
CONVERSIONS = {"to", "cuda", "cpu", "float", "double", "half", "bfloat16", "type", "type_as", "clone", "contiguous"}
# What returns the very tensor where there is nothing to do.
IDENTITIES = {"atleast_1d", "atleast_2d", "atleast_3d", "conj", "conj_physical", "dequantize", "positive", "real", "resolve_conj", "resolve_neg",
              "to_dense", "as_tensor", "asarray"}
DEVICE_MOVES = {"cuda", "to", "cpu", "double", "half", "float", "bfloat16", "type"}
KEEPING_ZEROS = {"detach_", "requires_grad_", "mul_", "div_", "clamp_", "clip_"}  # in-place methods that leave a gradient of zero what it is
# Of what may be given a model or an optimizer, those that run no backward.
LEAVES_GRADIENTS = {"unscale_", "clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "step", "update", "watch", "log", "print", "len", "save"}
CUTS = {"detach", "data", "numpy", "item", "tolist"}
INTEGER_CASTS = {"long", "int", "bool", "short", "char", "byte"}
NUMBERS = {"size", "dim", "numel", "ndim", "shape", "dtype", "device", "is_leaf", "requires_grad", "nelement", "stride", "is_cuda",
           "element_size", "data_ptr", "get_device", "is_contiguous", "names", "layout", "grad_fn", "retains_grad", "__len__"}
LINEAR = {"mean", "sum", "neg", "view", "reshape", "squeeze", "unsqueeze", "clone", "to", "float", "double", "add", "sub", "stack", "cat", "nansum",
          "flatten", "contiguous", "cpu", "cuda", "nanmean", "hstack", "vstack", "concat"}
NO_PARAMETERS = {
    "ReLU", "Tanh", "Sigmoid", "GELU", "SiLU", "Softmax", "LogSoftmax", "Dropout", "Flatten", "Identity", "MSELoss", "L1Loss",
    "CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss", "SmoothL1Loss", "HuberLoss", "KLDivLoss", "MaxPool2d", "AvgPool2d",
    "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "Upsample", "ELU", "LeakyReLU", "Softplus", "Hardtanh", "Unflatten", "ZeroPad2d",
    "MaxPool1d", "AvgPool1d", "AdaptiveAvgPool1d", "Dropout2d", "PixelShuffle", "CosineSimilarity", "Softmax2d", "LogSigmoid",
    "ReLU6", "Mish", "Hardswish", "GaussianNLLLoss", "PoissonNLLLoss", "CosineEmbeddingLoss", "TripletMarginLoss", "CTCLoss",
}
BIASED = {"Linear": 2, "Conv1d": 3, "Conv2d": 3, "Conv3d": 3, "ConvTranspose1d": 3, "ConvTranspose2d": 3, "LayerNorm": 1,
          "BatchNorm1d": 1, "BatchNorm2d": 1, "BatchNorm3d": 1, "GroupNorm": 1, "Bilinear": 3, "InstanceNorm2d": 1}
WEIGHTED = {name for name in BIASED if "Norm" not in name} | {"Embedding"}  # each has a parameter `weight`
TYPO = ("require_grad", "requires_grads", "requres_grad", "require_grads", "required_grad", "requires_gard", "require_gradient",
        "requires_gradient", "reqires_grad", "requries_grad", "requiers_grad", "requieres_grad", "requirs_grad", "need_grad_",
        "requires_gradients", "requiregrad", "requiresgrad", "requires_grd", "requires_garad", "requiresGrad", "required_grads",
        "requires_grad_fn", "requiers_grads", "reuires_grad", "require_gard", "requred_grad", "requires_gradd", "request_grad")


def is_view(name):
    table = operations.lookup(name)
    return table is not None and table.view


def is_typo(name):
    """Is `name` `requires_grad` with one or two slips of the keyboard?"""
    if name in ("requires_grad", "requires_grad_", "retain_grad", "retains_grad", "zero_grad", "require_backward_grad_sync"):
        return False
    return name in TYPO or (name.startswith("req") and "gr" in name and _distance(name, "requires_grad") <= 2)


def _distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


class TorchModel(Classes, Cuts, Distributions, Training):
    # ------------------------------------------------------------- tensors
    def tensor(self, node, ins=(), rg=None, leaf=None, **kw):
        kw.setdefault("grad", "none" if leaf or leaf is False else "unknown")
        ref = self.new("tensor", node=node, ins=tuple(ins), rg=rg, leaf=leaf, mode=self.st.mode, **kw)
        base = kw.get("view") or (ins[0] if ins and kw.get("conversion") not in (None, "clone") else None)
        if base is not None:
            while (obj := self.st.heap.get(base)) is not None and obj.view is not None:
                base = obj.view
            self.viewed.setdefault(base, []).append(ref.oid)
        return ref

    def operands(self, values):
        out = []
        for v in values:
            for part in self.likely_parts(v):
                obj = self.obj(part)
                if obj is None:
                    if isinstance(part, Number):
                        out.append(part)
                    continue
                if obj.kind in ("list", "tuple", "iter"):
                    out.extend(self.operands(obj.items))
                elif obj.kind == "dict":
                    out.extend(self.operands(obj.items.values()))
                else:
                    out.append(part)
        return out

    def alternatives(self, values):
        """The oids of values of which only one is used, where some require grad and others don't."""
        out = set()
        for v in self.flat(values):
            if isinstance(v, Multi):
                objs = [self.obj(p) for p in v.values]
                if any(o is not None and o.rg is True for o in objs) and not all(o is not None and o.rg is True for o in objs):
                    out.update(p.oid for p in v.values if isinstance(p, Ref))
        return out

    def likely_parts(self, value):
        """Of a tensor or its detached copy, depending on what can't be decided, the tensor: a cut must be certain."""
        parts = values_of(value)
        if not isinstance(value, Multi) or value.each:
            return parts
        objs = [self.obj(p) for p in parts]
        if not any(o is not None and o.kind in ("tensor", "opaque") and o.rg is not False for o in objs):
            return parts
        return tuple(p for p, o in zip(parts, objs) if o is None or not o.dead or o.rg is not False)

    def operation(self, node, values, name="", linear=False, view=None, partial=False, additive=None):
        """The result of a torch operation: recorded where grad mode is on and an operand requires grad.

        `linear`: it is the sum of its operands (of `additive` alone, where that is given) up to plain factors.
        """
        parts = self.operands(values)
        rgs, ins, numbers = [], [], set()
        for part in parts:
            if isinstance(part, Number):
                numbers |= part.cuts
                if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id == "sum"):
                    self.bend(part.cuts, node)
                continue
            obj = self.obj(part)
            if obj.kind in ("tensor", "opaque", "module", "instance"):
                rgs.append(obj.rg if obj.kind in ("tensor", "opaque") else None)
                ins.append(part.oid)
        alternatives = self.alternatives(values)
        table = operations.lookup(name) if name else None
        if partial:  # an operand that we know nothing of may be a tensor, too
            rgs.append(None)
        if name in INTEGER_CASTS or table is not None and table.cut == "integer":
            return self.tensor(node, ins, rg=False, leaf=True, dtype="int", dead=self.leaving(node, parts, "op", name), computed=True)
        if self.st.mode is False:
            rg = False
        elif self.st.mode is None:
            rg = None if any(r is not False for r in rgs) else False
        else:
            rg = True if True in rgs else (False if all(r is False for r in rgs) else None)
            if rg and alternatives and not any(self.st.heap[i].rg for i in ins if i not in alternatives):
                rg = None  # it depends on which of several values it is
        lost = None
        live = [i for i in ins if self.st.heap[i].rg]
        if len(live) == 1:
            source = self.st.heap[live[0]]
            lost = live[0] if source.leaf else source.lost
        dead = self.leaving(node, parts, "no-grad") if rg is False else frozenset()
        if rg is False and any(r is not False for r in rgs) and (
                view is not None or table is not None and table.view or name in IDENTITIES or name in CONVERSIONS and name != "clone"):
            rg = None  # a view of a base that requires grad says that it does, too, although nothing is recorded; so does the base itself
        if not linear and rg is not False and len([i for i in ins if self.st.heap[i].rg is not False or self.st.heap[i].dead]) == 1 and name in ("mul", "div", "matmul"):
            linear, additive = True, tuple(i for i in ins if self.st.heap[i].rg is not False)
        unsure = frozenset(p.oid for v in self.flat(values) if one_of_several(v) for p in v.values if isinstance(p, Ref))
        ref = self.tensor(node, tuple(ins), rg=rg, leaf=None if rg is None else not rg, dead=dead, lost=lost, view=view, unsure=unsure,
                          cold=frozenset(i for i in ins if self.st.heap[i].rg is False),
                          conversion=name if name in CONVERSIONS or name in IDENTITIES else None, computed=True, partial=partial)
        obj = self.st.heap[ref.oid]
        if linear:
            obj.linear = tuple(ins) if additive is None else additive
        if numbers and rg is not False:
            obj.numeric = capped(numbers)
        if table is not None and rg is not False and ins:
            if table.zero_gradient:
                obj.flat = self.cut(node, "op", ref.oid, name)
            elif table.cut == "raises":
                obj.raises = (self.statements[-1], node, name)
        obj.grads = self.grad_sources(values) or None
        return ref

    def factory(self, node, name, args, kwargs):
        rg = kwargs.get("requires_grad", Const(False))
        rg = bool(rg.value) if isinstance(rg, Const) else None
        if isinstance(rg, bool) and rg and self.st.mode is None:
            pass
        dtype = self.dtype_of(name, args, kwargs)
        cuts = self.rewrapped(node, name, args)
        if name in KEEPING and args and self.obj(args[0]) is not None and self.obj(args[0]).kind in ("tensor", "opaque"):
            return self.operation(node, [args[0]], "as_tensor")
        if name in ("bernoulli", "normal") and any(isinstance(p, Ref) for p in self.operands(args)):
            return self.operation(node, args, name)  # recorded, with a derivative of zero
        ref = self.tensor(node, (), rg=rg, leaf=True, dtype=dtype, dead=cuts)
        if dtype == "int" and rg:
            self.fact("integer-requires-grad", node, True, created=self.here(node))
        elif rg:
            self.fact("integer-requires-grad", node, False)
        self.keyword_typos(node, ref)
        return ref

    def rewrapped(self, node, name, args):
        """The cuts of what a factory makes of numbers and of graph tensors: it copies their values."""
        values = args[:1] if name not in ("full", "arange", "linspace") else args
        parts = self.operands(values)
        flags = tuple(isinstance(p, Ref) for p in self.flat(values))
        op = ("list" if values and self.obj(values[0]) is not None and self.obj(values[0]).kind in ("list", "tuple", "iter") else "tensor", flags)
        if name.endswith("_like") or name not in REWRAPPING and name not in FACTORIES:
            parts = [p for p in parts if isinstance(p, Number)]
        return self.leaving(node, parts, "rewrap", op)

    def keyword_typos(self, node, ref):
        for k in node.keywords:
            if k.arg and is_typo(k.arg):
                self.fact("requires-grad-typo", node, True, keyword=k.arg, statement_only=False)

    def here(self, node):
        module, stmt = self.statements[-1]
        return (module.path, module.span(node), module.span(stmt))

    def dtype_of(self, name, args, kwargs):
        if "dtype" in kwargs:
            d = kwargs["dtype"]
            if isinstance(d, External):
                last = d.name.rsplit(".", 1)[-1]
                return "int" if last in ("int", "long", "int32", "int64", "int8", "int16", "uint8", "bool", "short") else (
                    "float" if last.startswith(("float", "double", "half", "bfloat")) else "complex" if "complex" in last else None)
            return None
        if name in INTEGER_FACTORIES:
            return "int"
        if name == "tensor" and args:
            return self.literal_dtype(args[0])
        if name == "arange":
            kinds = [self.literal_dtype(a) for a in args]
            return "int" if kinds and all(k == "int" for k in kinds) else ("float" if "float" in kinds else None)
        if name == "full" and len(args) > 1:
            return self.literal_dtype(args[1])
        if name in ("randn", "rand", "zeros", "ones", "empty", "linspace", "eye", "normal", "FloatTensor", "DoubleTensor", "Tensor"):
            return "float"
        if name.endswith("_like") and args and self.obj(args[0]) is not None:
            return self.obj(args[0]).dtype
        return None

    def literal_dtype(self, value):
        if isinstance(value, Const):
            if isinstance(value.value, (bool, int)):
                return "int"
            if isinstance(value.value, float):
                return "float"
            return "complex" if isinstance(value.value, complex) else None
        obj = self.obj(value)
        if obj is not None and obj.kind in ("list", "tuple") and not obj.open and obj.items:
            kinds = {self.literal_dtype(i) for i in obj.items}
            if None in kinds:
                return None
            return "float" if "float" in kinds else "complex" if "complex" in kinds else "int"
        return None

    # ----------------------------------------------------------- grad mode
    def grad_mode_of(self, node, value):
        if isinstance(value, Bound) and value.name == "grad-mode":
            return value.node
        called = self.lookup(node.func.id) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        if isinstance(called, Function):
            return self.mode_of_manager(called)
        return "same"

    def mode_of_manager(self, fn):
        """The grad mode in which a `@contextmanager` of the program yields."""
        if not any(ast.unparse(d).endswith("contextmanager") for d in getattr(fn.node, "decorator_list", ())):
            return "same"
        inner = next((n for n in ast.walk(fn.node) if isinstance(n, (ast.With, ast.AsyncWith)) and any(isinstance(s, ast.Expr) and isinstance(s.value, ast.Yield) for s in n.body)), None)
        modes = [self.decorator_mode(item.context_expr) for item in inner.items] if inner is not None else []
        return next((m for m in modes if m != "same"), "same")

    def decorator_mode(self, decorator):
        text = ast.unparse(decorator)
        if text.endswith(("inference_mode(False)", "inference_mode(mode=False)")):
            return True
        if text.split("(")[0].endswith(("no_grad", "inference_mode")):
            return False
        if text.split("(")[0].endswith("enable_grad"):
            return True
        return "same"

    # ---------------------------------------------------------- attributes
    def on_Attribute(self, node):
        value = self.eval(node.value)
        # One of several objects: what is wrong of one of them may never be what runs.
        self.doubtful = isinstance(value, Multi) and not value.each and sum(self.obj(v) is not None for v in value.values) > 1
        results = [self.attribute(v, node.attr, node) for v in values_of(value) if not (isinstance(value, Multi) and v == Const(None))]
        if not results:
            return UNKNOWN
        out = results[0]
        for r in results[1:]:
            out = r if out == r else Multi(tuple(dict.fromkeys(values_of(out) + values_of(r)))[:24])
        if isinstance(out, Multi) and isinstance(value, Multi) and value.each:
            out = Multi(out.values, True)
        return out

    def attribute(self, value, name, node):
        if isinstance(value, External):
            return External(f"{value.name}.{name}")
        if isinstance(value, ModuleValue):
            frame = self.module_frame(value.path)
            if frame is not None and name in frame.vars:
                return self.force(frame.vars[name])
            path = self.project.resolve(value.path, name, 1) if value.path.endswith("__init__.py") else None
            return ModuleValue(path) if path else UNKNOWN
        if isinstance(value, Class):
            found = self.class_attribute(value, name)
            return found if found is not None else UNKNOWN
        if isinstance(value, Bound) and value.name == "grad" and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self.grad_read(value.receiver, node.value, value.node)
        if isinstance(value, Bound) and value.name.startswith("grad"):
            return Bound(value.receiver, f"{value.name}.{name}", value.node)
        if isinstance(value, Const) and isinstance(value.value, str) and name in TEXT:
            return Bound(value, name, node)
        if isinstance(value, Number):
            return PLAIN if name in NUMBERS else value if name in ("T", "real", "flat") else Bound(value, name, node)
        obj = self.obj(value)
        if obj is None:
            return self.opaque_attribute(value, name, node)
        if obj.kind in ("tensor", "opaque") and name == "grad" and name not in obj.attrs:
            self.wanted.add(value.oid)
            if self.grad_state(value) == "set":
                if obj.kind == "tensor":
                    self.fact("retain-grad", node, False)
                    self.fact("missing-requires-grad", node, False)
                return self.tensor(node, (), rg=False, leaf=True, dtype=obj.dtype, grads=(value.oid,))
            self.grad_seen(value, node)
            return Bound(value, "grad", node)
        if name in obj.attrs:
            return obj.attrs[name]
        if obj.kind == "tensor":
            if name in ("data",):
                return self.cut_tensor(value, node, "data")
            if name in ("T", "mT", "H", "real", "imag"):
                return self.operation(node, [value], "t", linear=True, view=value.oid)
            if name in NUMBERS:
                if name == "requires_grad" and obj.rg is not None:
                    return Const(obj.rg)
                if name == "is_leaf" and (leaf := self.leaf_of(obj)) is not None:
                    return Const(leaf)
                return PLAIN if name in ("ndim", "is_cuda") else UNKNOWN
            return Bound(value, name, node)
        if obj.kind == "tuple" and name in ("values", "indices") and len(obj.items) == 2:
            return obj.items[name == "indices"]
        if obj.kind in ("instance", "module") and obj.cls is not None:
            found = self.class_attribute(obj.cls, name)
            if isinstance(found, Function):
                decorators = {ast.unparse(d) for d in getattr(found.node, "decorator_list", ())}
                if any(d.rsplit(".", 1)[-1].endswith(("property", "lazy_attribute")) for d in decorators):
                    return self.call_function(found, [], {}, node, receiver=value)
                return Bound(value, name, node, found)
            if found is not None:
                return found
        if obj.kind == "module" and obj.cls is None and name in ("weight", "bias") and obj.origin in BIASED or (
                obj.kind == "module" and obj.origin == "Embedding" and name == "weight"):
            return UNKNOWN
        if name == "training" and obj.kind == "module":
            return Const(True) if self.concrete else PLAIN  # until `eval()`
        if obj.kind in ("instance", "module", "opaque") and name not in METHODS:
            # An attribute that we can't see: remembered, so that it is the same object at the next read.
            ref = self.new("opaque", origin=("attr", name, value.oid), node=node, ins=(value.oid,) if obj.kind == "opaque" else (), made_after=0)
            fresh = self.st.heap[value.oid].copy()
            fresh.attrs[name] = ref
            self.st.heap[value.oid] = fresh
            self.st.heap[ref.oid].alive = False  # may be a method: becomes data when used as data
            return ref
        return Bound(value, name, node)

    def opaque_attribute(self, value, name, node):
        """An attribute of a value that nothing is known of: something of its own, which use may tell more about."""
        if value == UNKNOWN:
            return self.attribute(self.new("opaque", origin="unknown", made_after=0), name, node)
        return UNKNOWN

    def class_attribute(self, cls, name, depth=0):
        if name in cls.attrs:
            return cls.attrs[name]
        if depth < 8:
            for base in cls.bases:
                if isinstance(base, Class):
                    found = self.class_attribute(base, name, depth + 1)
                    if found is not None:
                        return found
        return None

    def is_module_class(self, cls, depth=0):
        for base in cls.bases:
            if isinstance(base, External):
                last = base.name.rsplit(".", 1)[-1]
                if last in ("Parameter", "Buffer", "UninitializedParameter"):
                    return False
                if base.name.startswith("torch.nn") or last in ("Module", "LightningModule", "PreTrainedModel"):
                    return True
                if "forward" in cls.attrs or last.endswith(("Module", "Model", "Layer")):
                    return True
            elif isinstance(base, Class) and depth < 8 and self.is_module_class(base, depth + 1):
                return True
        return False

    def cut_tensor(self, value, node, kind):
        obj = self.obj(value)
        return self.tensor(node, (), rg=False, leaf=True, dtype=obj.dtype, grads=obj.grads, dead=self.leaving(node, [value], kind))

    # ----------------------------------------------------------- operators
    def on_BinOp(self, node):
        left, right = self.eval(node.left), self.eval(node.right)
        if isinstance(left, Const) and isinstance(right, Const):
            try:
                result = ARITHMETIC[type(node.op)](left.value, right.value)
                return Const(result) if not isinstance(result, (str, bytes)) or len(result) < 200 else UNKNOWN
            except Exception:
                return UNKNOWN
        self.use_grad(left, node.left)
        self.use_grad(right, node.right)
        lists = [self.obj(v) for v in (left, right)]
        if isinstance(node.op, ast.Add) and any(o is not None and o.kind in ("list", "tuple") for o in lists):
            items = tuple(i for o in lists if o is not None and o.kind in ("list", "tuple", "iter") for i in o.items)
            return self.new(next(o.kind for o in lists if o is not None and o.kind in ("list", "tuple")), items=items,
                            open=any(o is None or o.open for o in lists))
        return self.arithmetic(node, node.op, left, right)

    def arithmetic(self, node, op, left, right):
        additive = isinstance(op, (ast.Add, ast.Sub))
        scale = isinstance(op, (ast.Mult, ast.Div))
        sides = [left, right]
        nothing = isinstance(op, ast.Mult) and any(isinstance(v, Const) and v.value in (0, 0.0) for v in sides)  # `0 * x`: no cut of it matters
        numbers = [v for v in sides for p in values_of(v) if isinstance(p, Number)]
        tensors = [v for v in sides if any(self.obj(p) is not None and self.obj(p).kind in ("tensor", "opaque") for p in values_of(v))]
        # `args.weight`, `self.c`: beside a tensor or a number that was read from one, a setting.
        settings = [v for v in tensors if (o := self.obj(v)) is not None and o.kind == "opaque" and not o.param and o.rg is None
                    and isinstance(o.origin, tuple) and o.origin[0] == "attr"]
        if len(settings) == len(tensors) and (numbers or len(tensors) == 2):
            tensors = []
            if not numbers:
                return self.new("opaque", origin=("attr", "arithmetic", 0), ins=tuple(v.oid for v in settings))
        elif settings:
            tensors = [v for v in tensors if v not in settings]
        if not tensors:
            cuts = frozenset(c for v in sides for p in values_of(v) if isinstance(p, Number) for c in p.cuts) if not nothing else frozenset()
            if cuts or all(isinstance(p, Number) or isinstance(p, Const) and isinstance(p.value, (int, float)) for v in sides for p in values_of(v)):
                return Number(cuts)
            return self.grad_arithmetic(node, sides)
        linear = additive or (scale and len(tensors) == 1 and UNKNOWN not in sides)
        name = "floor_divide" if isinstance(op, ast.FloorDiv) else "mul" if scale else ""
        result = self.operation(node, sides, name, linear=linear, partial=UNKNOWN in sides)
        made = self.st.heap[result.oid]
        if nothing:
            made.dead, made.numeric, made.linear = frozenset(), None, None
        if additive and numbers and made.rg is not False:
            made.added, made.numeric = made.numeric or frozenset(), None
        self.st.heap[result.oid].grads = tuple(v.receiver.oid for v in sides for p in values_of(v) if isinstance(p, Bound) and p.name.startswith("grad")
                                              for v in (p,)) or self.grad_sources(sides)
        return result

    def grad_sources(self, sides):
        """Objects whose `.grad` went into a value."""
        out = []
        for v in sides:
            for p in values_of(v):
                if isinstance(p, Bound) and p.name.startswith("grad"):
                    out.append(p.receiver.oid)
                obj = self.obj(p)
                if obj is not None and obj.kind == "tensor" and obj.grads:
                    out.extend(obj.grads)
        return tuple(dict.fromkeys(out))

    def grad_arithmetic(self, node, sides):
        sources = self.grad_sources(sides)
        if sources:
            ref = self.tensor(node, (), rg=False, leaf=True)
            self.st.heap[ref.oid].grads = sources
            return ref
        return UNKNOWN

    def on_UnaryOp(self, node):
        value = self.eval(node.operand)
        if isinstance(value, Const):
            try:
                return Const({ast.USub: lambda v: -v, ast.UAdd: lambda v: +v, ast.Not: lambda v: not v, ast.Invert: lambda v: ~v}[type(node.op)](value.value))
            except Exception:
                return UNKNOWN
        self.use_grad(value, node.operand)
        if isinstance(value, Number):
            return value
        if any(self.obj(v) is not None and self.obj(v).kind in ("tensor", "opaque") for v in values_of(value)):
            return self.operation(node, [value], "neg", linear=True)
        return self.grad_arithmetic(node, [value])

    def compare_values(self, node, values):
        if len(values) == 2 and isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
            return UNKNOWN
        for v, n in zip(values, [node.left, *node.comparators]):
            if not (isinstance(n, ast.Constant)) and not any(isinstance(c, ast.Constant) and c.value is None for c in node.comparators):
                self.use_grad(v, n)
        if any(self.obj(v) is not None and self.obj(v).kind == "tensor" for v in values):
            return self.operation(node, values, "eq")
        cuts = frozenset().union(*(v.cuts for v in values if isinstance(v, Number)))
        self.bend(cuts, node)
        return Number(cuts) if cuts else UNKNOWN

    def on_Subscript(self, node):
        value = self.eval(node.value)
        index = self.eval(node.slice)
        self.use_grad(value, node.value)
        results = [self.item(v, index, node) for v in values_of(value)]
        out = results[0]
        for r in results[1:]:
            out = join_values(out, r)
        return out

    def item(self, value, index, node):
        obj = self.obj(value)
        if obj is None:
            if isinstance(value, Number):
                return value
            return self.grad_arithmetic(node, [value]) if isinstance(value, Bound) else UNKNOWN
        if obj.kind in ("list", "tuple", "iter"):
            if isinstance(index, Const) and isinstance(index.value, int) and -len(obj.items) <= index.value < len(obj.items):
                if not obj.open or index.value < 0:
                    return obj.items[index.value]
            if isinstance(node.slice, ast.Slice):
                return self.new(obj.kind, items=obj.items, open=True)
            return self.each(obj.items) if obj.items else UNKNOWN
        if obj.kind == "dict":
            if (key := dict_key(index)) is not None and key in obj.items:
                return obj.items[key]
            if (keys := constant_keys(index)) and all(k in obj.items for k in keys):
                each = self.each([obj.items[k] for k in keys])
                return each if index.each or not isinstance(each, Multi) else Multi(each.values)
            each = self.each(obj.items.values()) if obj.items else UNKNOWN
            return Multi(each.values) if isinstance(each, Multi) and any(str(k).startswith("*") for k in obj.items) else each
        if obj.kind == "tensor":
            return self.operation(node, [value, index], "", linear=True, additive=(value.oid,), view=value.oid)
        if obj.kind == "module" and obj.items:
            if isinstance(obj.items, dict):
                return obj.items.get(index.value, UNKNOWN) if isinstance(index, Const) else self.each(obj.items.values())
            if isinstance(index, Const) and isinstance(index.value, int) and -len(obj.items) <= index.value < len(obj.items):
                return obj.items[index.value]
            return self.each(obj.items)
        if obj.kind == "opaque":
            key = ("item", index.value) if isinstance(index, Const) else ("item", ast.dump(node.slice))
            if key in obj.attrs:
                return obj.attrs[key]
            origin = ("item", obj.origin, index.value if isinstance(index, Const) else None)
            ref = self.new("opaque", origin=origin, ins=(value.oid,), node=node, rg=obj.rg if obj.origin == "result" else None)
            self.st.heap[value.oid] = self.st.heap[value.oid].copy()
            self.st.heap[value.oid].attrs[key] = ref
            return ref
        return UNKNOWN

    def element_of(self, value, again=None):
        """A value of unknown iteration: `for x in value`."""
        obj = self.obj(value)
        if obj is None:
            if isinstance(value, Number):
                return value
            # What another package holds was not made by this program, as what is lost may have been.
            source = "result" if isinstance(value, External) else "unknown"
            return self.new("opaque", origin=("element", source), made_after=0) if not isinstance(value, Const) else UNKNOWN
        if obj.kind == "parameters":
            return obj.items[0] if obj.items else self.new("opaque", origin="parameter", rg=None, leaf=True, param=True, ins=obj.ins, made_after=0)
        if obj.kind == "tensor":
            return self.operation(None, [value], "", linear=True, view=value.oid)
        if obj.kind == "module" and obj.items:
            return self.each(obj.items)
        of_group = isinstance(obj.origin, tuple) and obj.origin[-1] == "params"  # `for p in group["params"]`
        return self.new("opaque", origin=("element", obj.origin), ins=(value.oid,), made_after=len(self.st.backwards), param=of_group)

    def part_of(self, value, i):
        obj = self.obj(value)
        if obj is not None and obj.kind == "opaque":
            if obj.origin == "named-parameter":
                return UNKNOWN if i == 0 else obj.attrs["parameter"]
            key = ("item", i)
            if key not in obj.attrs:
                ref = self.new("opaque", origin=("item", obj.origin), ins=(value.oid,))
                self.st.heap[value.oid] = self.st.heap[value.oid].copy()
                self.st.heap[value.oid].attrs[key] = ref
                return ref
            return obj.attrs[key]
        if isinstance(value, Number):
            return value
        if obj is not None and obj.kind == "tensor":
            return self.operation(None, [value], "", linear=True, view=value.oid)
        return UNKNOWN

    # --------------------------------------------------------------- calls
    def on_Call(self, node):
        func = self.eval(node.func)
        args, open_args = [], False
        for a in node.args:
            if isinstance(a, ast.Starred):
                value = self.eval(a.value)
                obj = self.obj(value)
                if obj is not None and obj.kind in ("list", "tuple", "iter") and (obj.items or not obj.open):
                    args.extend(obj.items)
                    open_args |= obj.open
                else:
                    open_args = True
                    args.append(self.element_of(value))
            else:
                args.append(self.eval(a))
        kwargs = {}
        for k in node.keywords:
            value = self.eval(k.value)
            if k.arg is None:
                obj = self.obj(value)
                if obj is not None and obj.kind == "dict":
                    kwargs.update({key: v for key, v in obj.items.items() if isinstance(key, str) and not key.startswith("*")})
                open_args = True
            else:
                kwargs[k.arg] = value
        outer, self.weak = self.weak, func if one_of_several(func) else None
        results = [self.call(f, args, kwargs, node, open_args) for f in values_of(func)]
        self.weak = outer
        out = results[0]
        for r in results[1:]:
            out = join_values(out, r)
        return out

    weak = None  # where what is done now is done to one of several objects, and it is not known to which: all of them

    def call(self, f, args, kwargs, node, open_args):
        if isinstance(f, Function):
            return self.call_function(f, args, kwargs, node, open_args=open_args)
        if isinstance(f, Class):
            return self.instantiate(f, args, kwargs, node, open_args)
        if isinstance(f, External):
            return self.call_external(f.name, args, kwargs, node, open_args)
        if isinstance(f, Bound):
            return self.call_method(f, args, kwargs, node, open_args)
        obj = self.obj(f)
        if obj is not None and obj.kind == "partial":
            bound = {k: v for k, v in obj.attrs.items() if k != "*callee"}
            return self.call(obj.attrs["*callee"], [*obj.items, *args], {**bound, **kwargs}, node, open_args)
        if obj is not None and obj.origin == "namedtuple":
            return self.named_tuple(obj.items, args, kwargs, open_args)
        if obj is not None and obj.kind in ("module", "opaque") and (args or kwargs):
            self.callees.add(f.oid)
        if obj is not None and obj.kind == "module":
            return self.call_module(f, args, kwargs, node, open_args)
        if obj is not None and obj.kind == "instance" and obj.cls is not None:
            fn = self.class_attribute(obj.cls, "__call__") or None
            if isinstance(fn, Function):
                return self.call_function(fn, args, kwargs, node, receiver=f, open_args=open_args)
        if obj is not None and obj.kind == "opaque":
            return self.call_opaque(f, obj, args, kwargs, node)
        result = self.unknown_result(node, args, kwargs)
        if self.obj(result) is not None:
            self.update(result, partial=True)  # the callee may hold anything: it may be a method of what we lost
        return result

    def unknown_result(self, node, args, kwargs, receiver=None):
        parts = self.operands([*args, *kwargs.values()])
        self.fed.update((receiver.oid if receiver is not None else None, p.oid) for p in parts if isinstance(p, Ref))
        ins = [p.oid for p in parts if isinstance(p, Ref)] + ([receiver.oid] if receiver is not None else [])
        numbers = frozenset(c for p in parts if isinstance(p, Number) for c in p.cuts)
        self.bend(numbers, node)
        if called_name(node) not in LEAVES_GRADIENTS and any(self.may_train(p) or self.obj(p).grads for p in parts if isinstance(p, Ref)):
            self.filled_at = self.steps
        if numbers and not ins:
            return Number(numbers)
        result = self.new("opaque", origin="result", ins=tuple(ins), node=node, mode=self.st.mode, callee=receiver.oid if receiver is not None else None)
        if self.st.mode is False and any(isinstance(p, Ref) and self.obj(p).kind in ("tensor", "opaque") for p in parts):
            source = self.new("opaque", origin="result", ins=tuple(ins), node=node)
            self.st.heap[result.oid].dead = frozenset({self.cut(node, "no-grad", source.oid, UNSEEN)})
        return result

    def may_train(self, ref):
        """Could code out of sight that is given this run backward: an optimizer, or a model?"""
        return self.obj(ref).kind == "optimizer" or self.is_model(ref)

    def is_model(self, ref):
        return self.obj(ref).kind == "module" or ref.oid in self.modules or ref.oid in self.callees

    def call_opaque(self, f, obj, args, kwargs, node):
        origin = obj.origin
        if isinstance(origin, tuple) and origin[0] == "attr":
            # A method of an object that we can't see.
            owner = origin[2]
            if owner in self.st.heap:
                return self.call_method(Bound(Ref(owner), origin[1], node), args, kwargs, node, False)
        outputs = self.run_forward_hooks(f, args, kwargs, node)
        return self.unknown_result(node, [*args, *outputs], kwargs, f)

    def can_be_followed(self, f):
        obj = self.obj(f)
        return isinstance(f, Function) or isinstance(f, Bound) and f.function is not None or obj is not None and (
            obj.kind == "instance" and obj.cls is not None and isinstance(self.class_attribute(obj.cls, "__call__"), Function))

    def run_forward_hooks(self, model, args, kwargs, node):
        """The outputs of those parts of a model out of sight that have forward hooks: each hook is called with one."""
        outputs = []
        for part, hook in self.forward_hooks:
            if part.oid in self.st.heap and model.oid in self.below(part.oid):
                output = self.unknown_result(node, args, kwargs, model)
                self.call(hook, [part, self.new("opaque", origin="hooked"), output], {}, node, False)
                self.fired.add(part.oid)
                outputs.append(output)
        return outputs

    def instantiate(self, cls, args, kwargs, node, open_args):
        module = self.is_module_class(cls)
        fields = cls.attrs.get("__fields__")
        if fields and any(isinstance(b, External) and b.name == "typing.NamedTuple" for b in cls.bases):
            return self.named_tuple([name for name, _ in fields], args, {**{n: cls.attrs[n] for n, d in fields if d is not None}, **kwargs}, open_args)
        ref = self.new("module" if module else "instance", cls=cls, node=node)
        if module and (layer := self.layer_class(cls)):
            self.inherit_layer(ref, layer, args, kwargs, node)
        init = self.class_attribute(cls, "__init__")
        if isinstance(init, Function):
            self.handed |= {p.oid for p in self.operands([*args, *kwargs.values()]) if isinstance(p, Ref)}
            self.call_function(init, args, kwargs, node, receiver=ref, open_args=open_args)
            self.check_registered(ref)
        elif fields and any("dataclass" in ast.unparse(d) for d in cls.node.decorator_list):
            obj = self.st.heap[ref.oid].copy()
            for (name, default), value in zip(fields, args):
                obj.attrs[name] = value
            for name, default in fields[len(args):]:
                obj.attrs[name] = kwargs.get(name, cls.attrs.get(name, UNKNOWN))
            self.st.heap[ref.oid] = obj
        return ref

    def call_module(self, ref, args, kwargs, node, open_args):
        self.called_modules.add(ref.oid)
        self.fed.update((ref.oid, p.oid) for p in self.operands(args) if isinstance(p, Ref))
        result = self.forward_of(ref, args, kwargs, node, open_args)
        hooks = self.obj(self.obj(ref).attrs.get("*hooks")) if self.st is not None and self.obj(ref) is not None else None
        for hook in hooks.items if hooks is not None else ():
            returned = self.call(hook, [ref, self.new("tuple", items=tuple(args)), result], {}, node, False)
            if self.obj(returned) is not None and self.obj(returned).kind in ("tensor", "tuple", "dict", "list"):
                result = returned
        return result

    def forward_of(self, ref, args, kwargs, node, open_args):
        obj = self.obj(ref)
        self.used_in_forward(ref)
        if obj.cls is not None:
            forward = self.class_attribute(obj.cls, "forward") or self.class_attribute(obj.cls, "__call__")
            if isinstance(forward, Function):
                result = self.call_function(forward, args, kwargs, node, receiver=ref, open_args=open_args)
                return result
            return self.unknown_result(node, args, kwargs, ref)
        if obj.origin == "Sequential":
            value = args[0] if args else UNKNOWN
            if ref.oid in self.running:  # it holds itself
                return self.unknown_result(node, args, kwargs, ref)
            self.running.add(ref.oid)
            try:
                for item in obj.items.values() if isinstance(obj.items, dict) else obj.items:
                    value = self.call(item, [value], {}, node, False)
            finally:
                self.running.discard(ref.oid)
            return value
        for a, n in zip(args, node.args):
            self.use_grad(a, n)
        parameters = [v for v in obj.attrs.values() if self.obj(v) is not None and self.obj(v).param]
        if obj.open:
            result = self.unknown_result(node, args, kwargs, ref)
            return result
        name = "sum" if obj.origin and str(obj.origin).endswith("Loss") else ""
        result = self.operation(node, [*parameters, *args, *kwargs.values()], name)
        if obj.origin in ("LSTM", "GRU", "RNN", "MultiheadAttention", "LSTMCell"):
            state = [self.operation(node, [*parameters, *args], "") for _ in range(2)]
            second = self.new("tuple", items=tuple(state)) if obj.origin == "LSTM" else state[0]
            return self.new("tuple", items=(result, second))
        return result

    def build_module(self, name, args, kwargs, node):
        ref = self.new("module", origin=name, node=node)
        obj = self.st.heap[ref.oid]
        if name in CONTAINERS:
            source = args
            if name in ("ModuleList", "ParameterList", "ModuleDict", "ParameterDict") and args:
                inner = self.obj(args[0])
                source = inner.items if inner is not None and inner.kind in ("list", "tuple", "iter", "dict") else ()
                obj.open = inner is None or inner.open or inner.kind not in ("list", "tuple", "iter", "dict")
            obj.items = dict(source) if isinstance(source, dict) else tuple(source)
            obj.open = obj.open or any(a is UNKNOWN for a in args)
            return ref
        if name in NO_PARAMETERS or Const(False) in (kwargs.get("affine"), kwargs.get("elementwise_affine")) or name.startswith("InstanceNorm") and "affine" not in kwargs:
            return ref
        self.note_layer(ref, node)
        names = ["weight"]
        if name in BIASED and kwargs.get("bias") != Const(False):
            names.append("bias")
        if name in ("LSTM", "GRU", "RNN"):
            names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
        elif name in ("LSTMCell", "GRUCell", "RNNCell"):
            names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
        elif name not in BIASED and name != "Embedding":
            obj.open = True
            return ref
        for attr in names:
            obj.attrs[attr] = self.tensor(node, (), rg=True, leaf=True, dtype="float", param=True)
        return ref

    def parameters_of(self, value, seen=None):
        """(parameters, open): the parameters of a module; `open` where it holds some that we can't see."""
        seen = set() if seen is None else seen
        obj = self.obj(value)
        if obj is None:
            return [], True
        if value.oid in seen:
            return [], False
        seen.add(value.oid)
        if obj.kind == "tensor":
            return ([value], False) if obj.param else ([], False)
        if obj.kind == "opaque":
            return [], obj.origin == "result" or obj.kind == "opaque"
        if obj.kind != "module":
            return [], False
        out, open_ = [], obj.open
        items = obj.items.values() if isinstance(obj.items, dict) else obj.items
        for child in [*obj.attrs.values(), *items]:
            for v in values_of(child):
                child_obj = self.obj(v)
                if child_obj is None:
                    continue
                if child_obj.kind in ("module", "opaque") or child_obj.param:
                    if child_obj.kind == "opaque" and child_obj.alive is False:
                        continue
                    more, o = self.parameters_of(v, seen)
                    out += more
                    open_ |= o
        if obj.cls is not None and any(isinstance(b, External) and not b.name.startswith("torch") for b in obj.cls.bases):
            open_ = True
        return out, open_

    def call_external(self, name, args, kwargs, node, open_args):
        last = name.rsplit(".", 1)[-1]
        root = name.split(".", 1)[0]
        if root == "builtins":
            return self.call_builtin(last, args, kwargs, node)
        if root == "torch":
            if name == "torch.is_grad_enabled" and self.concrete and self.st.mode is not None:
                return Const(self.st.mode)
            if last == "no_grad":
                return Bound(UNKNOWN, "grad-mode", False)
            if last == "inference_mode":  # `inference_mode(False)` turns grad mode on
                flag = args[0] if args else kwargs.get("mode", Const(True))
                return Bound(UNKNOWN, "grad-mode", not flag.value if isinstance(flag, Const) else None)
            if last == "enable_grad":
                return Bound(UNKNOWN, "grad-mode", True)
            if last == "set_grad_enabled":
                mode = bool(args[0].value) if args and isinstance(args[0], Const) else None
                self.st.mode = mode  # at once; as a context, it puts back what was
                if isinstance(self.statements[-1][1], ast.Expr):
                    self.global_switch = (*self.statements[-1], node) if mode is False else self.global_switch
                return Bound(UNKNOWN, "grad-mode", mode)
            if last == "Parameter":
                return self.parameter(node, args, kwargs)
            if last == "Variable" and args:
                return self.variable(node, args, kwargs)
            if name.startswith("torch.optim.") or ".optim." in name and last[:1].isupper():
                return self.optimizer(node, args, kwargs) if "lr_scheduler" not in name else UNKNOWN
            if name in ("torch.autograd.backward",):
                return self.backward(node, args[0] if args else kwargs.get("tensors", UNKNOWN), kwargs)
            if name == "torch.utils.checkpoint.checkpoint" and args:
                return self.checkpoint(node, args, kwargs, open_args)
            if name == "torch.autograd.grad":
                self.differentiate(node, args, kwargs)
                create = kwargs.get("create_graph", Const(False)) != Const(False)
                ins = [p.oid for p in self.operands(args[:1]) if isinstance(p, Ref)] if create else ()
                return self.new("opaque", origin="gradients", rg=None if create else False, ins=tuple(ins), made_after=0)
            if name.startswith("torch.nn.") and last[:1].isupper() and "functional" not in name and "utils" not in name and "init" not in name:
                return self.build_module(last, args, kwargs, node)
            if name.startswith("torch.nn.init") or name.startswith("torch.nn.utils"):
                return args[0] if args and name.startswith("torch.nn.init") else UNKNOWN
            if name.startswith(("torch.func.", "torch._functorch.")) or name == "torch.vmap":
                # Transforms make functions of functions, whose results have the shape of the arguments: tensors, dicts, tuples.
                ins = [p.oid for p in self.operands([*args, *kwargs.values()]) if isinstance(p, Ref)]
                return self.new("opaque", origin="result", ins=tuple(ins), node=node, mode=self.st.mode)
            table = operations.lookup(last)
            if name.count(".") == 1 and (last in FACTORIES or table is not None and table.factory):
                if last.endswith("_like") and args:
                    self.use_grad(args[0], node.args[0])
                return self.factory(node, last, args, kwargs)
            if name.startswith("torch.distributions.") and (args or kwargs) and "transforms" not in name and "constraint" not in name:
                return self.distribution(node, last, [*args, *kwargs.values()], open_args)
            if name.startswith(("torch.distributions", "torch.utils.data")):
                return self.unknown_result(node, args, kwargs)
            for a, n in zip(args, node.args):
                self.use_grad(a, n)
            if args and table is None and isinstance(args[0], (Ref, Function)) and (isinstance(args[0], Function) or self.is_model(args[0])):
                return args[0]  # `torch.compile(model)`, `torch.jit.script(model)`: the model, wrapped
            if name.count(".") == 1 and last in ("manual_seed", "device", "save", "compile", "set_num_threads", "is_tensor", "Generator", "Size"):
                return args[0] if last == "compile" and args else UNKNOWN
            if last[:1].isupper() or not (args or kwargs):
                return UNKNOWN
            if "out" in kwargs:
                self.filled_at = self.steps  # perhaps a gradient
                return kwargs["out"]
            if table is not None and table.cut == "number" and name.count(".") == 1:
                return UNKNOWN  # `torch.equal(a, b)`
            if last == "detach" and args and self.obj(args[0]) is not None and self.obj(args[0]).kind in ("tensor", "opaque"):
                return self.cut_tensor(args[0], node, last)
            inputs = [*args, *kwargs.values()]
            if self.grad_sources(self.flat(inputs)) and not any(self.obj(v) is not None and self.obj(v).kind == "tensor" and self.obj(v).rg is not False for v in self.flat(inputs)):
                return self.grad_arithmetic(node, self.flat(inputs))
            if not self.operands(inputs) and name.count(".") > 1 and not name.startswith("torch.nn.functional"):
                return UNKNOWN
            pair = self.paired(last, args[1:], kwargs) if name.count(".") == 1 and args else False
            if pair is not False:
                return self.values_and_indices(node, last, args[0]) if pair else self.unknown_result(node, args[:1], {})
            return self.operation(node, inputs, last, linear=last in LINEAR, partial=bool(inputs) and inputs[0] == UNKNOWN)
        if root in ("math", "numpy"):
            for a, n in zip(args, node.args):
                self.use_grad(a, n)
        if root in ("math", "cmath") or (root == "numpy" and args):
            return self.escape(args, node, "math" if root != "numpy" else "numpy", last)
        if name in ("itertools.chain", "itertools.chain.from_iterable"):
            return self.chained(args if name.endswith("chain") else self.flat_once(args[:1]))
        if name in ("asyncio.run", "anyio.run", "trio.run") and args:
            return self.awaited(args[0])
        if name in ("asyncio.create_task", "asyncio.ensure_future", "asyncio.wait_for", "asyncio.shield") and args:
            return args[0]
        if name == "asyncio.gather":
            return self.new("opaque", origin="coroutine", attrs={"*awaited": self.new("list", items=tuple(map(self.awaited, args)), open=open_args)})
        if name in ("sys.exit", "os._exit"):
            self.leave()
        if name == "copy.copy" and args and self.obj(args[0]) is not None and self.obj(args[0]).kind in ("instance", "list", "dict", "tuple"):
            ref = self.new(self.obj(args[0]).kind)
            self.st.heap[ref.oid] = self.obj(args[0]).copy()
            return ref
        if name in ("copy.deepcopy", "copy.copy") and args:
            return self.deepcopy(args[0])
        if name == "functools.partial" and args and len(values_of(args[0])) == 1:
            return self.new("partial", items=tuple(args[1:]), attrs={**kwargs, "*callee": args[0]})
        if name in ("collections.namedtuple", "typing.NamedTuple") and len(args) == 2:
            return self.new("opaque", origin="namedtuple", items=self.field_names(args[1]))
        if last == "Variable" and args:
            return UNKNOWN
        return self.unknown_result(node, args, kwargs)

    def leave(self):
        from gradfix.analysis.interpreter import Unreachable

        raise Unreachable

    def chained(self, parts):
        """The items of several iterables, one after the other."""
        objs = [self.obj(p) for p in parts]
        known = [o for o in objs if o is not None and o.kind in ("list", "tuple", "iter") and not isinstance(o.items, dict)]
        return self.new("iter", items=tuple(i for o in known for i in o.items), open=len(known) < len(objs) or any(o.open for o in known))

    def flat_once(self, values):
        """The items of a list of iterables."""
        obj = self.obj(values[0]) if values else None
        return obj.items if obj is not None and obj.kind in ("list", "tuple", "iter") and not obj.open else (UNKNOWN,)

    def flat(self, values):
        out = []
        for v in values:
            obj = self.obj(v)
            out.extend(self.flat(obj.items)) if obj is not None and obj.kind in ("list", "tuple", "iter") else out.append(v)
        return out

    def deepcopy(self, value, memo=None):
        memo = {} if memo is None else memo
        obj = self.obj(value)
        if obj is None:
            return value
        if value.oid in memo:
            return memo[value.oid]
        ref = self.new(obj.kind)
        memo[value.oid] = ref
        self.copies[ref.oid] = value.oid
        new = obj.copy()
        new.statement = self.statements[-1] if self.statements else new.statement
        new.attrs = {k: self.deepcopy(v, memo) for k, v in obj.attrs.items()}
        if obj.param:  # a copy of a parameter starts without a gradient; that of another leaf has a copy of it
            new.grad = "none" if obj.kind == "tensor" else "unknown"
        if isinstance(obj.items, dict):
            new.items = {k: self.deepcopy(v, memo) for k, v in obj.items.items()}
        elif obj.kind != "range":
            new.items = tuple(self.deepcopy(v, memo) for v in obj.items)
        self.st.heap[ref.oid] = new
        return ref

    def escape(self, args, node, kind, op=""):
        """A Python number of a tensor: a cut."""
        cuts = set()
        for v in self.operands(args):
            if isinstance(v, Number):
                self.bend(v.cuts, node)
                cuts |= v.cuts
                continue
            obj = self.obj(v)
            if obj.kind in ("tensor", "opaque") and obj.rg is not False:
                cuts.add(self.cut(node, kind, v.oid, op))
            for cut in obj.dead:  # a number read from a detached value
                named = self.cut(node, kind, cut.source, op) if cut.kind in SOFT else cut
                if named is not cut:
                    self.bend([named], (cut.path, cut.span))
                cuts.add(named)
        if self.st.mode is not True:
            self.bend(cuts, self.statements[-1][1])
        return Number(capped(cuts)) if cuts else PLAIN

    def variable(self, node, args, kwargs):
        """`Variable(x)`: today a detached tensor, or a new leaf."""
        flag = kwargs.get("requires_grad", args[1] if len(args) > 1 else Const(False))
        data = self.obj(args[0])
        if data is not None and data.kind in ("list", "tuple", "dict"):
            return args[0]
        ref = self.cut_tensor(args[0], node, "variable") if data is not None and data.kind in ("tensor", "opaque") else self.tensor(node, (), rg=False, leaf=True)
        new = self.st.heap[ref.oid]
        new.dead = frozenset(self.cut(node, "variable", c.source) if c.kind == "data" else c for c in new.dead)
        if isinstance(args[0], Number):
            new.dead = args[0].cuts
        return self.update(ref, rg=bool(flag.value) if isinstance(flag, Const) else None) and ref

    def parameter(self, node, args, kwargs):
        rg = kwargs.get("requires_grad", args[1] if len(args) > 1 else Const(True))
        rg = bool(rg.value) if isinstance(rg, Const) else None
        self.keyword_typos(node, None)
        dtype = self.obj(args[0]).dtype if args and self.obj(args[0]) is not None else None
        if dtype == "int" and rg:
            self.fact("integer-requires-grad", node, True, created=self.place(self.obj(args[0])))
        dead = self.leaving(node, self.operands(args[:1]), "parameter") if args else frozenset()
        return self.tensor(node, (), rg=rg, leaf=True, param=True, dtype=dtype, dead=dead)

    # ------------------------------------------------------------ builtins
    def call_builtin(self, name, args, kwargs, node):
        first = args[0] if args else UNKNOWN
        obj = self.obj(first)
        if name == "range":
            if args and all(isinstance(a, Const) and isinstance(a.value, int) for a in args):
                r = range(*[a.value for a in args])
                return self.new("range", items=(r.start, len(r)))
            return self.new("range", items=(args[0].value if len(args) > 1 and isinstance(args[0], Const) else 0, None))
        if name == "enumerate":
            turns = self.turns(first)
            exact = obj is not None and obj.kind in ("list", "tuple", "iter") and not obj.open and len(obj.items) <= 8
            return self.new("iter", items=tuple(self.new("tuple", items=(Const(i) if exact or i == 0 else UNKNOWN, v)) for i, v in enumerate(turns)),
                            open=not exact)
        if name == "zip":
            columns = [self.turns(a) for a in args]
            exact = all((o := self.obj(a)) is not None and o.kind in ("list", "tuple", "iter", "dict") and not o.open for a in args)
            return self.new("iter", items=tuple(self.new("tuple", items=row) for row in zip(*columns)), open=not exact)
        if name in ("list", "tuple", "sorted", "reversed", "iter", "set"):
            kind = "tuple" if name == "tuple" else "iter" if name in ("iter", "reversed") else "list"
            if not args:
                return self.new(kind)
            if obj is not None and obj.kind in ("list", "tuple", "iter"):
                items = tuple(reversed(obj.items)) if name == "reversed" else obj.items
                return self.new(kind, items=items, open=obj.open)
            if obj is not None and obj.kind == "dict":
                return self.new(kind, items=tuple(Const(k) if not str(k).startswith("*") else UNKNOWN for k in obj.items), open=obj.open)
            if isinstance(first, Number):
                return first
            return self.new(kind, items=tuple(self.turns(first)), open=True)
        if name == "filter" and len(args) == 2:
            inner = self.obj(args[1])
            items = inner.items if inner is not None and inner.kind in ("list", "tuple", "iter") else tuple(self.turns(args[1]))
            decided = [self.truth(self.call(args[0], [i], {}, node, False)) if len(values_of(i)) == 1 else None for i in items]
            exact = None not in decided and inner is not None and inner.kind in ("list", "tuple", "iter") and not inner.open
            items = tuple(i for i, keep in zip(items, decided) if keep is not False)
            if isinstance(node.args[0], ast.Lambda):
                for item in items:
                    for v in values_of(item):
                        frame_vars = self.st.frame.vars
                        frame_vars[node.args[0].args.args[0].arg] = v
                        self.assume(node.args[0].body, True)
                        frame_vars.pop(node.args[0].args.args[0].arg, None)
            return self.new("iter", items=tuple(items), open=not exact)
        if name == "map" and len(args) == 2:
            return self.new("iter", items=tuple(self.call(args[0], [v], {}, node, False) for v in self.turns(args[1])), open=True)
        if name == "dict":
            if obj is not None and obj.kind == "dict":
                return self.new("dict", items={**obj.items, **kwargs}, open=obj.open)
            if obj is not None and obj.kind in ("iter", "list"):
                items = {}
                for pair in obj.items:
                    k, v = self.unpack(pair, 2)
                    items[k.value if isinstance(k, Const) else f"*{len(items)}"] = v
                return self.new("dict", items=items, open=obj.open)
            return self.new("dict", items=dict(kwargs), open=bool(args))
        if name in ("float", "int", "bool", "complex", "round"):
            if isinstance(first, Const):
                try:
                    return Const({"float": float, "int": int, "bool": bool, "complex": complex, "round": round}[name](first.value))
                except Exception:
                    return UNKNOWN
            self.use_grad(first, node.args[0]) if args else None
            return self.escape(args, node, name)
        if name == "len":
            if obj is not None and obj.kind in ("list", "tuple", "module") and not obj.open:
                return Const(len(obj.items))
            return PLAIN
        if name in ("sum", "max", "min", "abs"):
            for a, n in zip(args, node.args):
                self.use_grad(a, n)
            items = obj.items if obj is not None and obj.kind in ("list", "tuple", "iter") else args
            parts = self.operands(items)
            if any(isinstance(p, Ref) for p in parts):
                return self.operation(node, list(items), "sum", linear=True)
            cuts = frozenset(c for p in parts if isinstance(p, Number) for c in p.cuts)
            return Number(cuts) if cuts else UNKNOWN
        if name in ("getattr",) and len(args) >= 2 and isinstance(args[1], Const) and isinstance(args[1].value, str):
            return self.attribute(first, args[1].value, node)
        if name == "setattr" and len(args) == 3 and isinstance(args[1], Const) and self.obj(first) is not None:
            at, items = str(args[1].value), obj.items
            if obj.kind == "module" and at.isdigit() and not isinstance(items, dict) and int(at) < len(items):  # of a Sequential
                self.update(first, items=(*items[:int(at)], args[2], *items[int(at) + 1:]))
            else:
                self.store_attribute(first, args[1].value, args[2])
            return Const(None)
        if name == "next" and obj is not None:
            turns = self.turns(first)
            return values_of(turns[0])[0] if turns else UNKNOWN
        if name == "isinstance":
            return self.is_instance(args)
        if name in ("print", "str", "repr", "format", "type", "id", "hasattr", "vars", "dir"):
            return UNKNOWN
        if name == "super":
            frame = self.st.frame
            self_value = next(iter(frame.vars.values()), UNKNOWN)
            return Bound(self_value, "super", frame.owner)
        if name in ("exit", "quit"):
            self.leave()
        if name[:1].isupper() and name.endswith(("Error", "Exception", "Warning", "Exit", "Interrupt")):
            return UNKNOWN
        return UNKNOWN

    def is_instance(self, args):
        """Decided where the kind of object is known and the classes are built-in containers, numbers, or torch's tensor."""
        obj = self.obj(args[0]) if len(args) == 2 else None
        if obj is None or obj.kind == "opaque":
            return UNKNOWN
        classes = self.flat([args[1]])
        if obj.kind == "module":
            decided = self.instance_of(args[0], classes)
            return UNKNOWN if decided is None else Const(decided)
        names = {c.name.rsplit(".", 1)[-1] for c in classes if isinstance(c, External)}
        if len(names) != len(classes) or not names <= {"list", "tuple", "dict", "set", "str", "int", "float", "bool", "Tensor", "Parameter", "Number"}:
            return UNKNOWN
        kinds = {"tensor": {"Tensor", "Parameter"} if obj.param else {"Tensor"}, "list": {"list"}, "tuple": {"tuple"}, "dict": {"dict"}}
        if obj.kind not in kinds:
            return Const(False) if obj.kind in ("instance", "optimizer") else UNKNOWN
        return Const(bool(names & kinds[obj.kind]))

    # ------------------------------------------------------------- methods
    def call_method(self, bound, args, kwargs, node, open_args):
        receiver, name = bound.receiver, bound.name
        if name == "grad-mode":
            return UNKNOWN
        if isinstance(receiver, Const):
            if not all(isinstance(a, Const) for a in args) or kwargs:
                return UNKNOWN
            try:
                result = getattr(receiver.value, name)(*[a.value for a in args])
            except Exception:
                return UNKNOWN
            return self.new("list", items=tuple(map(Const, result))) if isinstance(result, list) else Const(result)
        if isinstance(receiver, Number):
            if name == "backward":
                return self.backward(node, receiver, kwargs)
            if name in ("append", "items", "keys", "values"):
                return UNKNOWN
            cuts = receiver.cuts.union(*(p.cuts for p in self.operands([*args, *kwargs.values()]) if isinstance(p, Number)))
            self.bend(cuts, node)
            return Number(capped(cuts)) if cuts else PLAIN
        if bound.function is not None:
            return self.call_function(bound.function, args, kwargs, node, receiver=receiver, open_args=open_args)
        if name.startswith("grad."):
            if name.endswith("zero_"):
                self.zeroed.add(receiver.oid)
                self.emptied_by_hand(receiver, node)
            elif name.endswith("_") and name.rsplit(".", 1)[-1] not in KEEPING_ZEROS:
                self.filled_at = self.steps
            self.use_grad(Bound(receiver, "grad", bound.node), node.func.value if isinstance(node.func, ast.Attribute) else node)
            if name.endswith("item"):
                return UNKNOWN
            ref = self.tensor(node, (), rg=False, leaf=True)
            self.st.heap[ref.oid].grads = (receiver.oid,)
            return ref
        if name.startswith("super"):
            return UNKNOWN
        obj = self.obj(receiver)
        if obj is None:
            return UNKNOWN
        if obj.kind == "tensor" or name in NEEDS_VALUES or name.endswith("_"):
            for a, n in zip(args, node.args):
                self.use_grad(a, n)
        if obj.kind == "opaque" and obj.alive is False:
            self.update(receiver, alive=True)
        if obj.kind == "opaque" and not is_tensor_method(name) and name not in ("requires_grad_", "retain_grad", "backward", "register_hook"):
            self.called_methods.add(receiver.oid)
        if name == "backward" and obj.kind in ("tensor", "opaque"):
            if args and obj.kind == "opaque" and self.obj(args[0]) is not None and self.obj(args[0]).kind in ("tensor", "opaque") and not self.obj(receiver).ins:
                return self.backward(node, args[0], kwargs)
            return self.backward(node, receiver, kwargs)
        if name in ("backward", "manual_backward") and args:
            return self.backward(node, args[0], kwargs)
        if name == "manual_backward":
            return UNKNOWN
        if obj.kind == "optimizer" or name in ("step", "zero_grad") and obj.kind in ("opaque", "module", "instance"):
            return self.optimizer_method(receiver, name, args, kwargs, node)
        if obj.kind == "tensor":
            return self.tensor_method(receiver, obj, name, args, kwargs, node)
        if obj.kind in ("list", "tuple", "dict", "iter"):
            return self.container_method(receiver, obj, name, args, kwargs, node)
        if obj.kind == "module" or obj.kind == "opaque" and name in MODULE_METHODS:
            return self.module_method(receiver, obj, name, args, kwargs, node)
        if obj.kind == "opaque":
            return self.opaque_method(receiver, obj, name, args, kwargs, node)
        return self.unknown_result(node, args, kwargs)

    def opaque_method(self, ref, obj, name, args, kwargs, node):
        if obj.origin == "distribution":
            return self.distribution_method(ref, obj, name, args, kwargs, node)
        if name in ("requires_grad_",):
            flag = args[0] if args else kwargs.get("requires_grad", Const(True))
            flag = bool(flag.value) if isinstance(flag, Const) else None
            # Only a leaf may be told to: on a computed tensor it says nothing new.
            self.update(ref, rg=flag, leaf=True if flag and obj.leaf is None else obj.leaf, flagged=(node, self.statements[-1]))
            return ref
        if name == "retain_grad":
            self.update(ref, retained=True)
            return Const(None)
        if name in ("item", "tolist", "numpy"):
            return self.escape([ref], node, name)
        if name == "detach":
            return self.cut_tensor(ref, node, "detach")
        if name in ("requires_grad", "is_leaf"):
            return UNKNOWN
        tensor = obj.param or obj.rg is True and operations.lookup(name) is not None and name not in CONVERSIONS
        if tensor and name not in ("to", "cuda", "cpu"):  # a parameter is a tensor for certain, so is what requires grad and is reshaped
            return self.tensor_method(ref, obj, name, args, kwargs, node)
        if name == "run_until_complete" and args:
            return self.awaited(args[0])
        if name in ("prepare", "setup"):
            return args[0] if len(args) == 1 else self.new("tuple", items=tuple(args))
        if name in ("to", "cuda", "cpu", "float", "double"):
            return self.new("opaque", origin=obj.origin if obj.origin != "result" else "result", ins=(ref.oid,), node=node, rg=obj.rg,
                            attrs=dict(obj.attrs) if obj.origin == "result" else {})
        if name == "scale" and len(args) == 1:
            return self.operation(node, args, "mul", linear=True)
        return self.unknown_result(node, args, kwargs, ref)

    def tensor_method(self, ref, obj, name, args, kwargs, node):
        if name == "requires_grad_":
            flag = args[0] if args else kwargs.get("requires_grad", Const(True))
            flag = bool(flag.value) if isinstance(flag, Const) else None
            if obj.dtype == "int" and flag and obj.leaf:
                self.fact("integer-requires-grad", node, True, created=self.place(obj))
            self.flag(ref, obj, flag, node)
            if flag is not False and obj.leaf is not False:
                self.update(ref, flagged=(node, self.statements[-1]))
            return ref
        if name == "retain_grad":
            self.update(ref, retained=True)
            return Const(None)
        if name == "register_hook" or name == "register_post_accumulate_grad_hook":
            self.update(ref, hooked=True)
            self.backward_hooks.update(id(f.node) for f in args if isinstance(f, Function))
            return UNKNOWN
        if name in ("detach_",):
            self.update(ref, leaf=True, rg=False, ins=(), grad=obj.grad)
            self.forget_aliases(ref)
            return ref
        if name in ("detach", "numpy"):
            if name == "numpy":
                return self.escape([ref], node, name)
            return self.cut_tensor(ref, node, name)
        if name in ("item", "tolist"):
            return self.escape([ref], node, name)
        if name in NUMBERS or name in ("size", "dim"):
            return PLAIN
        if name in ("new_tensor", "new_zeros", "new_ones", "new_empty", "new_full"):
            return self.factory(node, "zeros", args, kwargs)
        if obj.grads and reads_gradient(obj.node) and (name == "zero_" or name in ("fill_", "mul_") and args[:1] in ([Const(0)], [Const(0.0)])):
            self.zeroed.update(obj.grads)
            for oid in obj.grads:
                self.emptied_by_hand(Ref(oid), node)
        elif obj.grads and name.endswith("_") and not name.endswith("__") and name not in KEEPING_ZEROS:
            self.filled_at = self.steps
        if name.endswith("_") and not name.endswith("__"):
            return self.inplace(ref, obj, name, args, kwargs, node)
        if (table := operations.lookup(name)) is not None and table.cut == "number":
            return UNKNOWN
        pair = self.paired(name, args, kwargs)
        if pair is not False:
            return self.values_and_indices(node, name, ref) if pair else self.unknown_result(node, [ref], {})
        if name in ("cuda", "to", "cpu", "float", "double", "half", "type") and obj.rg is False:
            new = self.operation(node, [ref], name, linear=True)
            self.st.heap[new.oid].dtype = "float" if name in ("float", "double", "half") else obj.dtype
            return new
        result = self.operation(node, [ref, *args, *kwargs.values()], name, linear=name in LINEAR, view=ref.oid if is_view(name) and name not in CONVERSIONS else None)
        out = self.st.heap[result.oid]
        if name == "float" or name == "double":
            out.dtype = "float"
        if name in ("chunk", "split", "unbind", "tensor_split", "hsplit", "vsplit"):
            return self.new("tuple", items=(result, self.operation(node, [ref], name, linear=True, view=ref.oid)), open=True)
        return result

    def paired(self, name, rest, kwargs):
        """Does a reduction return (values, indices)?  None where that depends on what can't be seen."""
        if name in PAIRED:
            return True
        if name not in PAIRED_ALONG:
            return False
        if "dim" in kwargs or "axis" in kwargs:
            return True
        if not rest:
            return False
        if isinstance(rest[0], Number) or isinstance(rest[0], Const) and isinstance(rest[0].value, int):
            return True
        obj = self.obj(rest[0])
        return False if obj is not None and obj.kind == "tensor" and obj.dtype != "int" else None

    def values_and_indices(self, node, name, value):
        """Indices are integers: a cut of the graph."""
        indices = self.tensor(node, (), rg=False, leaf=True, dtype="int", computed=True, dead=self.leaving(node, self.operands([value]), "op", INDICES.get(name, name)))
        return self.new("tuple", items=(self.operation(node, [value], name), indices))

    def container_method(self, ref, obj, name, args, kwargs, node):
        if obj.kind == "dict":
            if name == "items":
                return self.new("iter", items=tuple(self.new("tuple", items=(Const(k) if not str(k).startswith("*") else UNKNOWN, v)) for k, v in obj.items.items()), open=obj.open)
            if name == "values":
                return self.new("iter", items=tuple(obj.items.values()), open=obj.open)
            if name == "keys":
                return self.new("iter", items=tuple(Const(k) if not str(k).startswith("*") else UNKNOWN for k in obj.items), open=obj.open)
            if name in ("get", "pop", "setdefault") and args and isinstance(args[0], Const):
                found = obj.items.get(args[0].value, args[1] if len(args) > 1 else Const(None))
                if name == "setdefault" and args[0].value not in obj.items and not obj.open:
                    self.update(ref, items={**obj.items, args[0].value: found})
                return found
            if name == "update":
                other = self.obj(args[0]) if args else None
                known = other is not None and other.kind == "dict"
                self.update(ref, items={**obj.items, **(other.items if known else {}), **kwargs}, open=obj.open or bool(args) and (not known or other.open))
                return Const(None)
            if name == "clear":
                self.update(ref, items={}, open=False)
            if name == "copy":
                return self.new("dict", items=obj.items, open=obj.open)
            return UNKNOWN
        if name in ("append", "add") and args:
            self.update(ref, items=obj.items + (args[0],) if len(obj.items) < 24 else obj.items, open=obj.open or len(obj.items) >= 24 or any(not l[4] for l in self.loops))
            return Const(None)
        if name in ("extend", "update") and args:
            other = self.obj(args[0])
            known = other is not None and other.kind in ("list", "tuple", "iter", "parameters") and not isinstance(other.items, dict)
            more = tuple(other.items if known else self.turns(args[0]))
            self.update(ref, items=obj.items + more if len(obj.items) < 24 else obj.items,
                        open=obj.open or not known or other.open or len(obj.items) >= 24 or any(not l[4] for l in self.loops))
            return Const(None)
        if name == "insert" and len(args) == 2:
            self.update(ref, items=(args[1],) + obj.items, open=obj.open)
        if name == "clear":
            self.update(ref, items=(), open=False)
        if name == "pop" and obj.items:
            return obj.items[-1]
        if name == "copy":
            return self.new(obj.kind, items=obj.items, open=obj.open)
        return UNKNOWN

    def module_method(self, ref, obj, name, args, kwargs, node):
        self.modules.add(ref.oid)
        if name == "optimizers" and not args and (built := self.configured_optimizers(ref)):
            return built[0] if len(built) == 1 else self.new("list", items=tuple(built))
        if name in ("parameters", "named_parameters"):
            params, open_ = self.parameters_of(ref)
            items = tuple(params)
            if open_ or not params:
                items += (self.hidden_parameter(ref),)
            if name == "named_parameters":
                known = self.parameter_names(ref)
                items = tuple(self.new("tuple", items=(Const(known[p.oid]) if p.oid in known else UNKNOWN, p)) for p in items)
            return self.new("iter", items=items, open=open_)
        if name in ("modules", "children", "named_modules", "named_children"):
            if name.endswith("children"):
                named = self.children_of(obj)
                children = [self.new("tuple", items=(Const(k), c)) for k, c in named] if name.startswith("named") else [c for _, c in named]
                return self.new("iter", items=tuple(children), open=obj.open or obj.kind == "opaque")
            children = self.submodules(ref)
            if name.startswith("named"):
                children = [self.new("tuple", items=(UNKNOWN, c)) for c in children]
            return self.new("iter", items=tuple(children), open=True)
        if name == "requires_grad_":
            flag = args[0] if args else kwargs.get("requires_grad", Const(True))
            flag = bool(flag.value) if isinstance(flag, Const) else None
            for p in self.parameters_of(ref)[0]:
                if flag is False:
                    self.freeze(p, node)
                else:
                    self.update(p, rg=flag, frozen=None)
            return ref
        if name in ("to", "cuda", "cpu", "train", "eval", "float", "double", "half", "apply", "share_memory", "to_empty", "compile"):
            if name == "eval":
                self.called_methods.add(ref.oid)
            if name in ("train", "eval") and obj.kind == "module":
                mode = Const(False) if name == "eval" else args[0] if args else kwargs.get("mode", Const(True))
                for m in self.submodules(ref):
                    self.store_attribute(m, "training", mode)
            return ref
        if name == "load_state_dict":
            self.update(ref, loaded=True)
        if name == "zero_grad":
            return self.optimizer_method(ref, name, args, kwargs, node)
        if name in ("add_module", "register_module", "register_parameter", "register_buffer") and len(args) >= 2:
            if obj.origin == "Sequential" and name in ("add_module", "register_module") and not isinstance(obj.items, dict):
                self.update(ref, items=(*obj.items, args[1]))
            else:
                self.store_attribute(ref, args[0].value if isinstance(args[0], Const) else f"*{len(obj.attrs)}", args[1])
            return Const(None)
        if name.startswith("register_"):
            if "backward" in name:
                self.backward_hooks.update(id(a.node) for a in args if isinstance(a, Function))
            if name == "register_forward_hook" and args and obj.kind == "module":
                before = self.obj(obj.attrs.get("*hooks"))
                self.store_attribute(ref, "*hooks", self.new("list", items=(*(before.items if before is not None else ()), args[0])))
            if name == "register_forward_hook" and args and obj.kind == "opaque" and self.can_be_followed(args[0]):
                self.forward_hooks.append((ref, args[0]))
                return UNKNOWN
            for m in self.submodules(ref):
                if isinstance(m, Ref):
                    self.update(m, hooked=True)
            self.update(ref, hooked=True)
            self.hooks = True  # a hook may retain or capture gradients of what we can't see
            return UNKNOWN
        if name == "update" and obj.kind == "module" and isinstance(obj.items, dict):
            return self.container_method(ref, Obj("dict", items=obj.items, open=obj.open), name, args, kwargs, node)
        if name == "append" and obj.kind == "module" and args:
            self.update(ref, items=tuple(obj.items) + (args[0],))
            return Const(None)
        if name in ("values", "items", "keys") and isinstance(obj.items, dict):
            return self.container_method(ref, Obj("dict", items=obj.items, open=obj.open), name, args, kwargs, node)
        if name == "state_dict" and obj.kind == "module" and not args and not kwargs:
            names = self.parameter_names(ref)
            return self.new("dict", items={full: self.cut_tensor(Ref(oid), node, name) for oid, full in names.items()}, open=True)
        if obj.kind == "module" and name not in ("state_dict", "load_state_dict", "buffers", "named_buffers", "get_parameter", "get_submodule"):
            return self.unknown_result(node, args, kwargs, ref)
        return UNKNOWN

    def parameter_names(self, ref, prefix="", seen=None):
        """{parameter's oid: its name in `named_parameters()`}"""
        seen = set() if seen is None else seen
        obj, out = self.obj(ref), {}
        if obj is None or ref.oid in seen or obj.kind not in ("module", "tensor"):
            return out
        seen.add(ref.oid)
        if obj.kind == "tensor":
            return {ref.oid: prefix[:-1]} if obj.param else out
        children = list(obj.attrs.items()) + list(obj.items.items() if isinstance(obj.items, dict) else enumerate(obj.items))
        for name, child in children:
            if isinstance(child, Ref):
                for oid, full in self.parameter_names(child, f"{prefix}{name}.", seen).items():
                    out.setdefault(oid, full)
        return out

    def children_of(self, obj):
        """[(name, module)] of a module's own children."""
        items = obj.items.items() if isinstance(obj.items, dict) else enumerate(obj.items)
        named = [*((k, v) for k, v in obj.attrs.items() if isinstance(k, str)), *((str(k), v) for k, v in items)]
        return [(k, c) for k, c in named if self.obj(c) is not None and self.obj(c).kind == "module"]

    def submodules(self, ref, seen=None):
        seen = set() if seen is None else seen
        obj = self.obj(ref)
        if obj is None or ref.oid in seen:
            return []
        seen.add(ref.oid)
        out = [ref]
        items = obj.items.values() if isinstance(obj.items, dict) else obj.items
        for child in [*obj.attrs.values(), *items]:
            for v in values_of(child):
                if self.obj(v) is not None and self.obj(v).kind == "module":
                    out += self.submodules(v, seen)
        return out

    def opaque_parts(self, oid):
        """A module, and those in it whose parameters we can't see."""
        return {oid, *(m.oid for m in self.submodules(Ref(oid)) if self.obj(m).open)}

    def hidden_parameter(self, ref):
        """One object for the parameters of a module that we can't see: the same one in every branch."""
        known = self.obj(ref).attrs.get("*parameter")
        p = values_of(known)[0] if known is not None else self.hidden.get(ref.oid)
        if p is None or p.oid not in self.st.heap:
            made = self.new("opaque", origin="parameter", param=True, ins=(ref.oid,), made_after=0)
            if p is not None:
                self.st.heap[p.oid] = self.st.heap[made.oid]
            p = self.hidden.setdefault(ref.oid, p or made)
        if known != p:
            self.st.heap[ref.oid] = self.st.heap[ref.oid].copy()
            self.st.heap[ref.oid].attrs["*parameter"] = p
        return p

    def flag(self, ref, obj, flag, node):
        """`requires_grad` of a tensor is set: to True, to False, or to what is not known."""
        if self.weak:
            if obj.leaf is not False and obj.rg is not flag:
                self.update(ref, rg=None)
            return
        if obj.leaf is False:
            if obj.conversion is not None and self.leaf_of(obj) is None and flag is not True:  # perhaps the leaf itself
                for oid in {ref.oid, obj.ins[0]}:
                    self.update(Ref(oid), rg=None)
            return
        if flag is False and obj.view is None:
            self.freeze(ref, node)
        else:
            self.update(ref, rg=flag or None, frozen=None)
            if flag and ref.oid in self.derived:
                self.derived[ref.oid]["flagged"] = True  # the new tensor is made a leaf, if only in the next turn
        if obj.conversion not in (None, "clone") and obj.ins and (source := self.obj(Ref(obj.ins[0]))) is not None and source.rg is not flag:
            self.update(Ref(obj.ins[0]), rg=None)
        self.forget_aliases(ref)

    def forget_aliases(self, ref):
        """A view says what its base says; a conversion may be the tensor itself."""
        for oid in self.viewed.get(ref.oid, ()):
            view = self.st.heap.get(oid)
            if view is not None and (view.leaf is not False or view.conversion is not None):
                self.update(Ref(oid), rg=None, leaf=None)

    # ---------------------------------------------------------- assignment
    def store_attribute(self, ref, name, value):
        obj = self.st.heap[ref.oid].copy()
        obj.attrs[name] = value
        self.st.heap[ref.oid] = obj
        for v in values_of(value):
            if isinstance(v, Ref):
                self.throwaway.pop(v.oid, None)

    def set_attribute(self, target, owner, value, stmt):
        name, self.weak = target.attr, owner if one_of_several(owner) else None
        for v in values_of(owner):
            obj = self.obj(v)
            if isinstance(v, Bound) and v.name == "grad":
                self.use_grad(v, target.value)
                continue
            if obj is None:
                continue
            if obj.kind in ("tensor", "opaque") and (is_typo(name) or name == "requires_grad_" and isinstance(value, Const)):
                if obj.kind == "tensor" or obj.param or obj.origin == "parameter":
                    self.fact("requires-grad-typo", target, True, attribute=name)
                    self.update(v, misspelt=True)
                continue
            if name == "requires_grad" and obj.kind in ("tensor", "opaque"):
                flag = bool(value.value) if isinstance(value, Const) else None
                if flag and obj.kind == "tensor" and obj.rg is False and obj.computed and not obj.dead:
                    module, _ = self.statements[-1]
                    self.workarounds.append({"target": target, "module": module, "stmt": stmt, "below": self.below(v.oid), "leaves": {},
                                             "name": module.source(target.value)})
                if flag and obj.kind == "tensor" and obj.dtype == "int":
                    self.fact("integer-requires-grad", target, True, created=self.place(obj))
                self.flag(v, obj, flag, target)
                if obj.kind == "opaque" and not obj.param:
                    self.flag_on_module(target, v, value, stmt)
                continue
            if name == "requires_grad" and obj.kind == "module":
                self.flag_on_module(target, v, value, stmt)
                continue
            if name in ("grad", "_grad") and obj.kind in ("tensor", "opaque"):
                self.zeroed.add(v.oid)
                empty = value == Const(None) or isinstance(stmt, ast.Assign) and isinstance(stmt.value, ast.Call) and called_name(stmt.value) in (
                    "zeros_like", "zeros")
                if empty:
                    self.emptied_by_hand(v, target)
                else:
                    self.filled_at = self.steps
                self.update(v, grad="unknown" if self.weak else "none" if value == Const(None) else "set", cleared=None)
                continue
            if name == "data" and obj.kind == "tensor":
                self.update(v, filled=True)
                continue
            if obj.kind in ("instance", "module", "opaque"):
                self.replaced_parameter(target, obj.attrs.get(name), value, stmt)
                self.rebound(target, obj.attrs.get(name), value, stmt, module=obj.kind == "module")
                if obj.kind == "module":
                    self.assigned.setdefault((v.oid, name), (self.statements[-1][0], stmt, target))
                if self.obj(value) is not None and self.obj(value).kind == "module":
                    self.replacements.append((v.oid, name, value, self.statements[-1]))
                self.store_attribute(v, name, value)

        self.weak = None

    def set_item(self, target, owner, index, value, stmt):
        for v in values_of(owner):
            obj = self.obj(v)
            if obj is None:
                continue
            if obj.kind == "tensor":
                if not isinstance(owner, Multi) or owner.each or all(self.is_trained_leaf(x) for x in owner.values):
                    self.inplace_update(target, v, value, stmt)
                if obj.grads:
                    self.filled_at = self.steps
                self.written(v, obj, value)
                continue
            if obj.kind == "dict" or obj.kind == "module" and isinstance(obj.items, dict):
                key = dict_key(index)
                if (keys := constant_keys(index)) and all(k in obj.items for k in keys):  # `for name in …: d[name] = …`
                    self.rebound(target, self.each([obj.items[k] for k in keys]), value, stmt)
                    self.update(v, items={**obj.items, **{k: value if index.each else join_values(obj.items[k], value) for k in keys}})
                elif key is not None:
                    self.rebound(target, obj.items.get(key), value, stmt)
                    self.update(v, items={**obj.items, key: value})
                elif obj.items and self.textual_update(target, stmt):  # `d[k] = d[k] - …`: each of them in turn
                    self.rebound(target, self.each(obj.items.values()), value, stmt)
                    self.update(v, items=dict.fromkeys(obj.items, value))
                elif len(obj.items) < 24:
                    self.update(v, items={**obj.items, f"*{len(obj.items)}": value}, open=True)
            elif obj.kind == "list" or obj.kind == "module" and not isinstance(obj.items, dict):
                items = list(obj.items)
                if isinstance(index, Const) and isinstance(index.value, int) and -len(items) <= index.value < len(items):
                    self.rebound(target, items[index.value], value, stmt)
                    items[index.value] = value
                elif items:
                    self.rebound(target, self.each(items), value, stmt)
                    items = [value] * len(items)
                self.update(v, items=tuple(items))

    def rebound(self, target, old, value, stmt, module=False, container=False):
        """A name, attribute or item that held a leaf gets a tensor computed from that leaf and its gradient."""
        if old is None or not isinstance(stmt, (ast.Assign, ast.AnnAssign)):
            return
        lists = self.obj(old), self.obj(value)
        if all(o is not None and o.kind in ("list", "tuple") for o in lists) and len(lists[0].items) == len(lists[1].items):
            for o, v in zip(lists[0].items, lists[1].items):
                self.rebound(target, o, v, stmt, container=True)
            return
        if all(o is not None and o.kind == "dict" for o in lists):
            for key in lists[0].items.keys() & lists[1].items.keys():
                self.rebound(target, lists[0].items[key], lists[1].items[key], stmt, container=True)
            return
        for o in values_of(old):
            before = self.obj(o)
            for v in values_of(value):
                after = self.obj(v)
                if before is None or after is None or after.kind != "tensor" or before.kind not in ("tensor", "opaque") or o == v:
                    continue
                sources = after.grads or ()
                if not (self.textual_update(target, stmt) or self.uses(stmt.value, o)):
                    continue
                if v.oid in self.derived and self.derived[v.oid]["old"] == o.oid:
                    continue  # a helper's own rebinding, handed back
                if o.oid in self.derived:  # a further update of what was bound already
                    entry = self.derived[o.oid]
                    entry["new"] = v.oid
                    if self.lost_at_once(after):
                        continue  # made a leaf anew, and lost again: that is what is wrong
                    self.derived[v.oid] = entry
                    if entry["module"] is self.statements[-1][0] and entry["frame"] == self.st.frame.name:
                        entry["last"] = stmt
                    entry["family"].add(v.oid)
                    continue
                if o.oid not in sources or o.oid not in self.values_behind(v.oid):
                    continue
                if not (after.statement and after.statement[1] is stmt or after.node is not None and "grad" in ast.unparse(after.node)):
                    continue
                if before.kind == "tensor" and not (before.leaf and before.rg):
                    continue
                module_, _ = self.statements[-1]
                self.rebindings.append(entry := {"module": module_, "stmt": stmt, "target": target, "new": v.oid, "old": o.oid,
                                        "mode": self.st.mode, "attribute": module, "container": container, "frame": self.st.frame.name,
                                        "loop": self.loops[-1][2] if self.loops else None, "backwards": len(self.st.backwards), "last": stmt, "family": {o.oid, v.oid}})
                self.derived[v.oid] = entry

    def values_behind(self, oid):
        """All whose values went into the object, recorded or not."""
        seen, work = set(), [oid]
        while work:
            i = work.pop()
            obj = self.st.heap.get(i)
            if obj is not None and i not in seen:
                seen.add(i)
                work.extend((*obj.ins, *(c.source for c in obj.dead)))
        return seen

    def uses(self, node, value):
        """Does a name in the expression stand for the object (`params[i] = p - lr * p.grad`)?"""
        return any(value in values_of(self.find(n.id)) for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))

    def replaced_parameter(self, target, old, value, stmt):
        """`self.scale = nn.Parameter(…)` while an optimizer holds the parameter that was there."""
        before, after = self.obj(old), self.obj(value)
        if before is None or after is None or not before.param or not after.param or old == value or not isinstance(stmt, ast.Assign):
            return
        holders = {o.oid for o in self.optimizers if self.obj(o) is not None and old in self.obj(o).items}
        if holders and isinstance(stmt.value, ast.Call) and stmt.value.args:
            self.replaced.add(value.oid)
            self.swapped.append((holders, value.oid, self.statements[-1][0], stmt, target, self.st.mode))

    def step_of_replaced(self, ref):
        """The optimizer steps a parameter that is no longer there, and nobody was given the one that took its place."""
        for entry in [e for e in self.swapped if ref.oid in e[0]]:
            _, new, module, stmt, target, mode = entry
            self.swapped.remove(entry)
            if new not in self.held():
                self.fact("parameter-rebinding", stmt, True, module=module, stmt=stmt, target=module.source(target), mode=mode,
                          value=module.span(stmt.value.args[0]), loop_variable=False, replaced=True)

    def textual_update(self, target, stmt):
        name = ast.unparse(target)
        return any(ast.unparse(n) == name for n in ast.walk(stmt.value) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)))

    def augmented(self, s, target, value):
        self.use_grad(value, s.value)
        for v in values_of(target):
            obj = self.obj(v)
            if isinstance(v, Bound) and v.name.startswith("grad"):
                self.use_grad(Bound(v.receiver, "grad", v.node), s.target)
                return
            if obj is not None and obj.kind in ("tensor", "opaque") and isinstance(s.target, (ast.Name, ast.Attribute, ast.Subscript)):
                if obj.leaf is True and obj.rg is True or obj.view is not None or obj.param:
                    self.inplace_update(s, v, value, s)
                    if obj.leaf is True and obj.rg is True or obj.param:
                        continue
                    if obj.view is not None:
                        continue
        if isinstance(target, Multi) and any(self.obj(v) is not None and self.obj(v).param for v in target.values):
            return
        parts = [self.obj(v) for v in values_of(target)]
        if one_of_several(target) and all(o is not None and o.kind == "tensor" for o in parts) and not isinstance(s.op, ast.MatMult):
            self.weak = target
            for v, o in zip(target.values, parts):
                self.rewritten(v, o, lambda old: self.arithmetic(s, s.op, old, value))
            self.weak = None
            return
        obj = self.obj(target)
        if obj is not None and (obj.leaf is True and obj.rg is True or obj.param):
            return
        if isinstance(target, Const) and isinstance(value, Const):
            try:
                result = Const(ARITHMETIC[type(s.op)](target.value, value.value))
            except Exception:
                result = UNKNOWN
        elif obj is not None and obj.kind in ("list",) and isinstance(s.op, ast.Add):
            self.container_method(target, obj, "extend", [value], {}, s)
            return
        elif obj is not None and obj.kind == "tensor" and not isinstance(s.op, ast.MatMult):
            self.rewritten(target, obj, lambda old: self.arithmetic(s, s.op, old, value))
            return
        else:
            result = self.arithmetic(s, s.op, target, value)
        if isinstance(s.target, ast.Name):
            self.st.frame.vars[s.target.id] = result
        elif isinstance(s.target, ast.Attribute):
            for v in values_of(self.eval(s.target.value)):
                if self.obj(v) is not None and self.obj(v).kind in ("instance", "module", "opaque"):
                    self.store_attribute(v, s.target.attr, result)

    def inplace(self, ref, obj, name, args, kwargs, node):
        self.inplace_update(node, ref, args[0] if args else UNKNOWN, self.statements[-1][1])
        if name not in FILLS:
            self.rewritten(ref, obj, lambda old: self.operation(node, [old, *args, *kwargs.values()], name[:-1]))
        return ref

    def rewritten(self, ref, obj, operate):
        """The object's value becomes what `operate` makes of the old one, under the same identity: aliases see it, too."""
        if obj.leaf is True and obj.rg is True or self.st.mode is False and obj.rg is not False:
            return  # it raises, or nothing is recorded of it
        old = self.new(obj.kind)
        self.st.heap[old.oid] = obj
        made = self.obj(operate(old))
        if made is None or made.kind != "tensor":
            return
        if made.rg is False:
            self.update(ref, dead=capped(obj.dead | made.dead))
            return
        if self.weak and made.rg is not obj.rg:
            return self.update(ref, rg=None, leaf=None)
        self.update(ref, leaf=made.leaf, rg=made.rg, ins=made.ins, cold=made.cold, unsure=made.unsure, dead=made.dead, linear=made.linear, numeric=made.numeric, added=made.added,
                    flat=made.flat, raises=made.raises, grads=made.grads, lost=None, conversion=None, computed=True,
                    grad=obj.grad if obj.grad != "unknown" else made.grad)
        self.share_write(ref, made.rg)

    def share_write(self, ref, rg):
        """A write into a tensor that shares its storage with others: its base has the same history, its views may."""
        base = ref
        while (obj := self.obj(base)) is not None and obj.view is not None and obj.view in self.st.heap:
            base = Ref(obj.view)
            below = self.obj(base)
            if below.kind == "tensor" and not (below.leaf and below.rg):
                self.update(base, rg=rg, leaf=False if rg else None, ins=(*below.ins, ref.oid), computed=True, lost=None)
        for oid in self.viewed.get(base.oid, ()):
            obj = self.st.heap.get(oid)
            if oid != ref.oid and obj is not None and obj.rg is False:
                self.update(Ref(oid), rg=None, leaf=None)

    def is_trained_leaf(self, value):
        obj = self.obj(value)
        return obj is not None and (obj.leaf is True and obj.rg is True or obj.view is not None or obj.param)

    def written(self, ref, obj, value):
        """Part of a tensor is overwritten: what was written is recorded into it."""
        if any(isinstance(p, Ref) and self.obj(p).kind in ("tensor", "opaque") for p in self.operands([value])):
            node = self.statements[-1][1]
            self.rewritten(ref, obj, lambda old: self.operation(node, [old, value], "", linear=True))

    def uses_own_gradient(self, ref, value, stmt):
        values = self.flat([value]) + [self.find(n.id) for n in ast.walk(stmt) if isinstance(n, ast.Name)]
        return ref.oid in self.grad_sources(values) or any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(stmt))

    def updates_by_gradient(self, ref, value, stmt):
        """In a function that nobody is seen to call: does the statement use the parameter's own gradient, or is it the step of
        an optimizer, and does nothing around it speak of grad mode, which a caller may hold?"""
        module, _ = self.statements[-1]
        fn = self.stack[0] if self.stack else None
        owner = self.calls[0][3].owner if self.calls else None
        around = module.source(owner.node if owner is not None else fn) if fn is not None else module.text
        own = self.uses_own_gradient(ref, value, stmt)
        own = own or owner is not None and fn.name == "step" and self.is_optimizer(owner)
        return own and "no_grad" not in around and "inference_mode" not in around

    def constructing(self):
        """Does a constructor run?  What other functions do to a module they may be asked to do under `no_grad`."""
        return any(fn.name == "__init__" for _, _, _, fn, _ in self.calls)

    def inplace_update(self, node, ref, value, stmt):
        """In-place change of a leaf that requires grad, or of a view of one: raises while grad mode is on."""
        obj = self.obj(ref)
        base = obj
        while base is not None and base.view is not None and not (base.leaf and base.rg):
            base = self.st.heap.get(base.view)
        if base is None or not (base.leaf is True and base.rg is True or base.kind == "opaque" and base.param):
            return
        if self.weak is not None and not all(self.is_trained_leaf(v.receiver if isinstance(v, Bound) else v) for v in self.weak.values):
            return
        bad = self.st.mode is True and base.alive is not None
        reaches = any(isinstance(p, Ref) and self.obj(p) is not None and self.obj(p).kind == "tensor" and self.obj(p).rg for p in self.operands([value]))
        certain = base.leaf is True and base.rg is True and base.kind == "tensor"
        sure = certain and (not base.param or self.constructing() or self.uses_own_gradient(ref, value, stmt))
        if bad and not self.concrete and not sure and not self.updates_by_gradient(ref, value, stmt):
            return
        self.fact("inplace-leaf-update", stmt if isinstance(stmt, ast.stmt) else node, bad, certain=certain, reaches=reaches,
                  loop=bool(self.loops))

    # ----------------------------------------------------------- optimizers
    def optimizer(self, node, args, kwargs):
        given = args[0] if args else kwargs.get("params", UNKNOWN)
        params, open_ = [], False
        for v in self.flat([given]):
            obj = self.obj(v)
            if obj is not None and obj.kind == "dict":
                inner = obj.items.get("params")
                params += self.flat([inner]) if inner is not None else []
            elif obj is not None:
                params.append(v)
        obj = self.obj(given)
        open_ = obj is None or obj.open
        for p in params:
            o = self.obj(p)
            if o is not None and o.kind == "tensor" and o.leaf is False and o.lost is not None:
                self.leaf_lost(p, o, "optimizer", node)
        for p in params:
            o = self.obj(p)
            if o is not None and o.kind == "opaque" and o.param:
                self.trained.update(*map(self.opaque_parts, o.ins))
        ref = self.new("optimizer", items=tuple(params), open=open_, node=node)
        self.note_built(ref, params, node)
        self.optimizers.append(ref)
        return ref

    def optimizer_method(self, ref, name, args, kwargs, node):
        obj = self.obj(ref)
        if name == "zero_grad":
            if obj.kind != "optimizer":
                self.modules.add(ref.oid)
            if obj.kind == "optimizer":
                params, open_ = list(obj.items), obj.open
            else:
                params, open_ = self.parameters_of(ref)
                if open_:
                    params = params + [self.hidden_parameter(ref)] if obj.kind in ("module", "opaque") else params
            to_none = kwargs.get("set_to_none", args[0] if args else Const(self.project.target_torch >= (2, 0)))
            at = (*self.statements[-1], node)
            for module, stmt, call, fn, _ in reversed(self.calls):  # `def zero_grad(self): self.inner.zero_grad()`
                if fn.name != "zero_grad" or module is None or not isinstance(call, ast.Call):
                    break
                at = (module, stmt, call)
            cleared = (*at, ref.oid, len(self.loops), self.loops[-1][2] if self.loops else None, self.steps)
            for p in params:
                o = self.obj(p)
                if isinstance(p, Ref) and o is not None:
                    self.zeroed.add(p.oid)
                    o = self.update(p, emptied=(cleared, len(self.st.backwards)))
                if o is not None and o.kind in ("tensor", "opaque"):
                    if to_none == Const(False):
                        continue
                    if o.grad in ("set", "maybe"):
                        self.update(p, grad="cleared" if o.grad == "set" else "maybe", cleared=cleared)
                    elif o.kind == "tensor" and o.grad != "none":
                        self.update(p, grad="none")
            self.update(ref, cleared=(cleared, len(self.st.backwards)), reached=False)
            return UNKNOWN
        if name == "step" and args and (given := self.obj(args[0])) is not None and given.kind in ("optimizer", "opaque") and given.cleared is not None:
            return self.optimizer_method(args[0], name, [], {}, node)  # `scaler.step(optimizer)`
        if name == "step":
            closure = args[0] if args else kwargs.get("closure")
            if isinstance(closure, Function) or isinstance(closure, Bound) and closure.function is not None:
                self.call(closure, [], {}, node, False)
                obj = self.obj(ref)
            self.stepped.add(ref.oid)
            self.ever_stepped.add(ref.oid)
            self.step_of_replaced(ref)
            if obj.kind == "optimizer":
                self.step_of_frozen(obj)
            if obj.cleared is not None and obj.kind in ("optimizer", "opaque"):
                (module, stmt, call, *_rest), at = obj.cleared
                if at == len(self.st.backwards) and at > 0 and self.filled_at < _rest[-1]:
                    last = self.st.backwards[-1]
                    if last.path and obj.reached is not True:
                        step_module, step_stmt = self.statements[-1]
                        self.fact("zero-grad-order", call, True, module=module, stmt=stmt, use="step",
                                  use_path=step_module.path, use_span=step_module.span(step_stmt), backward=(last.path, last.span))
                        obj = self.update(ref, reached=True)
            if obj.reached is not True and obj.kind == "optimizer":
                self.step_without_gradients(obj)
            self.update(ref, reached=True)
            self.modular_step(ref, node)
            return UNKNOWN
        if name == "add_param_group":
            given = self.obj(args[0]) if args else None
            more = [v for v in self.flat([given.items.get("params")]) if isinstance(v, Ref)] if given is not None and given.kind == "dict" else []
            self.update(ref, open=obj.open or not more, items=(*obj.items, *more))
        return UNKNOWN

    def emptied_by_hand(self, ref, node):
        """`p.grad.zero_()`, `p.grad = None`: perhaps in a loop over parameters, which clears them all."""
        if self.weak or self.obj(ref) is None:
            return
        where = next(((m, s) for m, s in self.statements if isinstance(s, ast.For) and not any(
            isinstance(n, ast.Attribute) and n.attr in ("backward", "step") for n in ast.walk(s))), self.statements[-1])
        self.update(ref, emptied=((*where, node, None, len(self.loops), None, self.steps), len(self.st.backwards)))

    def step_without_gradients(self, obj):
        """All parameters were cleared, by whomever, after the last backward and before this step."""
        now = len(self.st.backwards)
        held = [self.obj(p) for p in obj.items]
        if not held or not now or any(p is None or p.emptied is None or p.emptied[1] != now for p in held):
            return
        (module, stmt, call, whole, *_), _ = held[0].emptied
        if self.filled_at > max(p.emptied[0][-1] for p in held):
            return
        last = self.st.backwards[-1]
        step_module, step_stmt = self.statements[-1]
        self.fact("zero-grad-order", call, True, module=module, stmt=stmt, use="step", use_path=step_module.path,
                  use_span=step_module.span(step_stmt), backward=(last.path, last.span), by_hand=whole is None, at_once=all(p.emptied[0][1] is stmt for p in held))

    def modular_step(self, ref, node):
        """`if (i + 1) % k == 0: opt.step()` while `opt.zero_grad()` runs every turn: see `accumulation`."""
        if not self.loops:
            return
        loop = self.loops[-1][2]
        branch = next((s for _, s in reversed(self.statements) if isinstance(s, ast.If)), None)
        if branch is None or branch not in loop.body or not any(isinstance(n, ast.Mod) for n in ast.walk(branch.test)):
            return
        if any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(branch)):
            return  # the gradients of this step are made in the branch, too
        module = self.statements[-1][0]
        backward = next((s for s in loop.body for n in ast.walk(s) if not isinstance(s, ast.If) and isinstance(n, ast.Call)
                         and isinstance(n.func, ast.Attribute) and n.func.attr == "backward"), None)
        if backward is None:
            return
        for s in loop.body:
            if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and isinstance(s.value.func, ast.Attribute) and s.value.func.attr == "zero_grad":
                if self.eval(s.value.func.value) == ref:
                    self.fact("zero-grad-order", s.value, True, module=module, stmt=s, use="accumulation", branch=module.span(branch),
                              use_path=module.path, use_span=module.span(self.statements[-1][1]), backward=(module.path, module.span(backward)))

    # ------------------------------------------------------------- backward
    def backward(self, node, loss, kwargs):
        from gradfix.analysis.interpreter import Backward

        event = Backward()
        module, stmt = self.statements[-1]
        event.path, event.span, event.statement, event.loss = module.path, module.span(node), module.span(stmt), loss
        event.inputs, event.started = kwargs.get("inputs"), self.started.get(id(stmt), 0)
        for v in self.flat([loss]):
            for p in values_of(v):
                if self.obj(p) is not None and self.obj(p).kind == "opaque":
                    self.update(p, rg=True)
        self.note_loss(loss, node, module)
        self.raising(loss, node, module)
        self.frozen_loss(loss, event)
        reached, through = self.reach(loss)
        event.reached = reached
        event.frame, event.heap = self.st.frame.fork(deep=True), self.st.heap.fork()
        event.in_loop = [l[2] for l in self.loops]
        self.st.backwards += (event,)
        loss_parts = [p for v in self.flat([loss]) for p in values_of(v)]
        blind = not all(isinstance(p, (Ref, Number)) for p in loss_parts) or any(self.st.heap[i].kind == "opaque" or self.st.heap[i].partial for i in reached)
        if blind:  # part of the graph is out of sight: what was handed to unknown code may have got a gradient
            fed = {a for _, a in self.fed}
            anything = any(self.st.heap[i].partial or self.from_nowhere(self.st.heap[i]) for i in reached) or any(not isinstance(p, (Ref, Number)) or isinstance(p, Ref) and self.obj(p).kind == "opaque" and self.obj(p).origin != "result"
                           for p in loss_parts)
            for oid, obj in self.st.heap.objects():
                if obj.kind == "tensor" and obj.grad == "none" and obj.leaf and obj.rg is not False and oid not in reached and (
                        anything or oid in fed):
                    self.update(Ref(oid), grad="unknown")
        if event.inputs is not None:
            for v in self.flat([event.inputs]):
                if self.obj(v) is not None:
                    self.update(v, grad="set", cleared=None)
            return Const(None)
        for oid in reached:
            obj = self.st.heap[oid]
            certain = reached[oid]
            if obj.kind == "tensor" and obj.leaf and obj.rg:
                self.update(Ref(oid), grad="set" if certain else ("unknown" if obj.grad != "set" else "set"), cleared=None)
            elif obj.kind == "tensor" and obj.leaf is not False and obj.rg is None and obj.grad == "none":
                self.update(Ref(oid), grad="unknown")
            elif obj.kind == "tensor" and obj.leaf is not True and obj.retained:
                self.update(Ref(oid), grad="set")
            elif obj.kind == "module":
                pass
        return Const(None)

    def differentiate(self, node, args, kwargs):
        """`torch.autograd.grad(loss, inputs)`: each input must be on the recorded path."""
        loss, inputs = (args[i] if len(args) > i else kwargs.get(k, UNKNOWN) for i, k in enumerate(("outputs", "inputs")))
        module, _ = self.statements[-1]
        wanted = {p.oid for v in self.flat([inputs]) for p in values_of(v) if isinstance(p, Ref)}
        self.note_loss(loss, node, module, wanted if "allow_unused" not in kwargs else None)
        self.inputs_without_flag(loss, inputs, node)
        if "allow_unused" in kwargs or not self.concrete:
            return
        here = self.terms[len(self.terms) - self.last_terms:]
        if not here or any(not isinstance(p, Ref) for v in self.flat([loss]) for p in values_of(v)):
            return
        if any(t.blind for t in here) or any(o is not None and o.kind == "opaque" for o in map(self.st.heap.get, set().union(*(t.live for t in here)))):
            return
        reached = set().union(*(t.live for t in here), *(b for t in here for _, b in t.cuts)) if here else set()
        for oid in sorted(wanted - reached):
            obj = self.st.heap[oid]
            if obj.kind == "tensor" and obj.leaf is True and obj.rg is True and (branch := self.untaken(Ref(oid))):
                return self.fact("untaken-branch", node, True, holder=None, certain=True, branch=branch[:2], names=self.names_of({oid}))

    def inputs_without_flag(self, loss, inputs, node):
        """`torch.autograd.grad` raises where an input does not require grad."""
        where = argument(node, 1, "inputs")
        below = set().union(*(self.below(p.oid) for v in self.flat([loss]) for p in values_of(v) if isinstance(p, Ref)))
        for value, shown in zip(self.flat([inputs]), where.elts if isinstance(where, (ast.List, ast.Tuple)) else [where]):
            obj = self.obj(value)
            if shown is not None and obj is not None and obj.kind == "tensor" and not obj.param and obj.leaf is True and obj.rg is False and value.oid in below:
                name = self.statements[-1][0].source(shown)
                self.missing_flag(value, obj, shown, shown, f"`torch.autograd.grad` raises: `{name}` does not require grad")

    def checkpoint(self, node, args, kwargs, open_args):
        """A re-entrant checkpoint whose inputs need no gradient returns what needs none, whatever the block trains."""
        given = {k: v for k, v in kwargs.items() if k not in ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug")}
        reentrant = kwargs.get("use_reentrant", Const(True)) == Const(True)
        mode = self.st.mode
        if reentrant:  # the block runs with grad mode off, and once more with it on
            self.st.mode = None
        result = self.call(args[0], args[1:], given, node, open_args)
        self.st.mode = mode
        inputs = [self.obj(p) for p in self.operands([*args[1:], *given.values()]) if isinstance(p, Ref)]
        if reentrant and any(o.rg is True for o in inputs) and mode is True and self.obj(result) is not None and self.obj(result).kind == "tensor":
            return self.tensor(node, (result.oid,), rg=True, leaf=False, computed=True)
        if not reentrant or open_args or not inputs or any(o.rg is not False for o in inputs) or self.obj(result) is None:
            return result
        return self.tensor(node, (result.oid,), rg=False, leaf=True, dead=self.leaving(node, [result], "checkpoint"), computed=True)

    def from_nowhere(self, obj):
        """A value whose making was not seen, and which may therefore hold anything that the program made before."""
        if obj.kind != "opaque" or obj.ins:
            return False
        root = obj.origin
        while isinstance(root, tuple):
            if root[0] == "attr":
                return True
            root = root[1]
        return root == "unknown"

    def reach(self, loss):
        """{oid: certainly} of what the recorded path below the loss holds; `certainly` is False behind opaque calls."""
        reached: dict[int, bool] = {}
        through: set = set()
        roots = [p.oid for v in self.flat([loss]) for p in values_of(v) if isinstance(p, Ref)]
        work = [(p.oid, not one_of_several(v)) for v in self.flat([loss]) for p in values_of(v) if isinstance(p, Ref)]
        while work:
            oid, certain = work.pop()
            obj = self.st.heap.get(oid)
            if obj is None or reached.get(oid) is True or (oid in reached and not certain):
                continue
            reached[oid] = certain
            if obj.kind == "tensor" and (obj.rg is False or obj.leaf is True):
                continue  # what it was computed from was not recorded
            certain = certain and obj.kind == "tensor" and obj.rg is True
            work.extend((i, certain and i not in obj.unsure) for i in obj.ins if i not in obj.cold)
            if obj.kind in ("module", "opaque"):
                work.extend((p.oid, False) for p in self.parameters_of(Ref(oid))[0])
        # Cuts count wherever they lie below the loss, recorded or not.
        seen, below = set(), list(roots)
        while below:
            oid = below.pop()
            obj = self.st.heap.get(oid)
            if oid in seen or obj is None:
                continue
            seen.add(oid)
            below.extend(obj.ins)
        live = frozenset(o for o in reached if self.st.heap[o].rg is not False)
        self.cut_reach.append((live, frozenset(through), set(seen)))
        return reached, through

    def trains(self, oid):
        """Does the value depend, by recorded path, on something that certainly trains?"""
        work, seen = [oid], set()
        while work:
            i = work.pop()
            if i in seen:
                continue
            seen.add(i)
            obj = self.st.heap.get(i)
            if obj is None:
                continue
            if obj.rg is True or i in self.trained or obj.kind == "module" and obj.open:
                return True
            work.extend(obj.ins)
        return False

    # ------------------------------------------------------------ gradients
    def use_grad(self, value, node):
        """The value of `X.grad` is used as a tensor."""
        for v in values_of(value):
            if isinstance(v, Bound) and v.name.split(".")[0] == "grad" and isinstance(v.receiver, Ref):
                if v.name == "grad" or v.name.startswith("grad."):
                    self.grad_read(v.receiver, node, v.node)

    def grad_read(self, ref, node, read):
        obj = self.obj(ref)
        if obj is None or obj.kind not in ("tensor", "opaque"):
            return
        where = read if isinstance(read, ast.Attribute) else node
        if not (isinstance(where, ast.Attribute) and where.attr == "grad"):
            return
        if not self.is_local(where):
            if obj.leaf is False and obj.rg is True and obj.lost is not None and obj.retained is False and not obj.hooked and self.st.backwards:
                self.leaf_lost(ref, obj, "read", where)
            return
        state = self.grad_state(ref)
        if state == "set" or obj.retained is not False or obj.hooked:
            return self.fact("grad-read", where, False)
        holder = where.value if isinstance(where, ast.Attribute) else where
        if obj.kind == "tensor" and obj.leaf is False and obj.rg is True and self.st.backwards:
            return self.nonleaf_read(ref, obj, where, holder)
        if obj.kind == "tensor" and obj.leaf is True and obj.rg is False and not obj.param and self.st.backwards and (
                obj.grads is None or ref.oid in self.derived):
            return self.missing_flag(ref, obj, where, holder)
        if obj.kind == "tensor" and obj.leaf and obj.rg and state in ("none", "cleared", "maybe"):
            if obj.cleared is not None and state in ("cleared", "maybe") and self.st.backwards:
                module, stmt, call, *_ = obj.cleared
                use_module, use_stmt = self.statements[-1]
                return self.fact("zero-grad-order", call, True, module=module, stmt=stmt, use="read", use_path=use_module.path,
                                 use_span=use_module.span(use_stmt), read=use_module.source(where), backward=None,
                                 filled=(self.st.backwards[-1].path, self.st.backwards[-1].span))
            return self.none_use(ref, obj, where, holder, state)
        if obj.kind == "tensor" and obj.rg is False and obj.frozen is not None and state == "none" and self.st.backwards and self.concrete and (
                not self.is_loop_variable(holder) and not self.caught()):
            module, stmt = self.statements[-1]
            return self.frozen_fact(obj, "read", module.path, module.span(where), holder=module.source(holder))
        if obj.kind == "tensor" and obj.param and obj.rg is False and state == "none" and self.st.backwards:
            return self.none_use(ref, obj, where, holder, state)
        if obj.kind == "opaque" and state in ("unknown", "none") and (obj.param or self.iterated_argument(obj, holder)):
            return self.none_use(ref, obj, where, holder, state)
        self.fact("grad-read", where, False)

    def nonleaf_read(self, ref, obj, where, holder):
        if ref.oid in self.derived:
            self.derived[ref.oid]["confirmed"] = True
            return
        if obj.lost is not None:
            if self.leaf_lost(ref, obj, "read", where):
                return
        if obj.conversion in ("to", "cpu", "cuda", "float", "type", "contiguous") or obj.conversion in IDENTITIES:
            return  # where there is nothing to convert it is the leaf itself
        last = self.st.backwards[-1]
        module, stmt = self.statements[-1]
        fill = next((b for b in reversed(self.st.backwards) if ref.oid in b.reached), None)
        self.fact("retain-grad", where, True, holder=module.source(holder), backward=(last.path, last.span, last.statement),
                  place=self.retain_place(ref, fill or last, module, holder), together=ref.oid >= (fill or last).started, reached=fill is not None,
                  certain=obj.rg is True and fill is not None, caller=self.caller(holder), **self.creation(obj))

    def place(self, obj):
        if obj.statement is None or obj.node is None:
            return None
        module, stmt = obj.statement
        return (module.path, module.span(obj.node), module.span(stmt))

    def names_at(self, event):
        """The scopes that a name is looked up in where backward ran, as they were then, inner first."""
        scopes, frame = [], event.frame
        module_scope = None
        while frame is not None:
            if frame.name == "<module>" and frame.module.path == event.path:
                module_scope = frame.vars
            frame = frame.parent
        frame = event.frame
        while frame is not None:
            if frame.name != "<module>":
                scopes.append(frame.vars)
            frame = frame.closure
        if module_scope is None and (top := self.globals.get(event.path)) is not None:
            module_scope = top.vars
        if module_scope is not None:
            scopes.append(module_scope)
        return scopes

    def retain_place(self, ref, event, module, holder):
        """How the program names the tensor where backward runs: an expression, a collection that holds it, or nothing."""
        scopes = self.names_at(event)

        def evaluate(node):
            if isinstance(node, ast.Name):
                return next((self.force(names[node.id]) for names in scopes if node.id in names), None)
            if isinstance(node, ast.Attribute):
                owner = evaluate(node.value)
                obj = event.heap.get(owner.oid) if isinstance(owner, Ref) else None
                return obj.attrs.get(node.attr) if obj is not None else None
            if isinstance(node, ast.Subscript):
                owner = evaluate(node.value)
                obj = event.heap.get(owner.oid) if isinstance(owner, Ref) else None
                key = node.slice.value if isinstance(node.slice, ast.Constant) else None
                if isinstance(node.slice, ast.UnaryOp) and isinstance(node.slice.operand, ast.Constant):
                    key = -node.slice.operand.value
                if obj is not None and obj.kind in ("list", "tuple") and isinstance(key, int) and -len(obj.items) <= key < len(obj.items):
                    return obj.items[key]
                if obj is not None and obj.kind == "dict":
                    return obj.items.get(key)
                if obj is not None and obj.kind == "opaque":
                    return obj.attrs.get(("item", key))
            return None

        if holder is not None and evaluate(holder) == ref:
            return ("name", ast.unparse(holder))
        # A loop variable stands for all of a collection: name the collection, so that one loop serves all of them.
        forms = (self.named_collection, self.plain_name) if self.is_loop_variable(holder) else (self.plain_name, self.named_collection)
        return next((place for form in forms if (place := form(ref, event, scopes)) is not None), None)

    def is_loop_variable(self, holder):
        if not isinstance(holder, ast.Name):
            return False
        _, stmt = self.statements[-1]
        targets = [n.target for n in ast.walk(stmt) if isinstance(n, ast.comprehension)]
        targets += [s.target for _, s in self.statements if isinstance(s, (ast.For, ast.AsyncFor))]
        return any(isinstance(n, ast.Name) and n.id == holder.id for t in targets for n in ast.walk(t))

    def plain_name(self, ref, event, scopes):
        return next((("name", name) for names in scopes for name, value in names.items() if value == ref and name.isidentifier()), None)

    def named_collection(self, ref, event, scopes):
        for names in scopes:
            for name, value in names.items():
                obj = event.heap.get(value.oid) if isinstance(value, Ref) else None
                if obj is None:
                    continue
                if obj.kind in ("list", "tuple") and ref in obj.items:
                    return ("loop", name, "")
                if obj.kind == "dict" and ref in obj.items.values():
                    return ("loop", name + ".values()", "")
                for attr, inner in obj.attrs.items():
                    if not isinstance(attr, str) or attr.startswith("*"):
                        continue
                    if inner == ref:
                        return ("name", f"{name}.{attr}")
                    held = event.heap.get(inner.oid) if isinstance(inner, Ref) else None
                    if held is not None and held.kind in ("list", "tuple") and ref in held.items:
                        return ("loop", f"{name}.{attr}", "")
                    if held is not None and held.kind == "dict" and ref in held.items.values():
                        return ("loop", f"{name}.{attr}.values()", "")
                    if held is not None and held.kind == "module" and held.origin in ("ModuleList", "Sequential"):
                        for child in held.items:
                            c = event.heap.get(child.oid) if isinstance(child, Ref) else None
                            for a, x in (c.attrs.items() if c is not None else ()):
                                if x == ref and isinstance(a, str):
                                    return ("loop", f"{name}.{attr}", a)
        return None

    def iterated_argument(self, obj, holder):
        """A loop variable over something handed in or kept (`for p in params`), in a file that works with torch."""
        root = obj.origin
        if not (isinstance(root, tuple) and root[0] == "element") or not isinstance(holder, ast.Name):
            return False
        while isinstance(root, tuple):
            if root[0] == "attr":
                break
            root = root[1]
        module, _ = self.statements[-1]
        return (root == "argument" or isinstance(root, tuple)) and module.imports_torch()

    def missing_flag(self, ref, obj, where, holder, message=None):
        module, stmt = self.statements[-1]
        if obj.frozen is not None:
            if self.concrete and not self.is_loop_variable(where.value if isinstance(where, ast.Attribute) else where):
                self.frozen_fact(obj, "read", module.path, module.span(where), holder=module.source(holder))
            return
        if ref.oid in self.derived:
            self.derived[ref.oid]["confirmed"] = True
            return
        if obj.misspelt:
            return
        for w in self.workarounds:
            if ref.oid in w["below"]:
                w["leaves"][ref.oid] = obj
                return
        if message is None and not any(ref.oid in seen for _, _, seen in self.cut_reach):
            return  # no loss of the program has to do with it
        self.fact("missing-requires-grad", where, True, holder=module.source(holder), message=message, **self.creation(obj))

    def creation(self, obj):
        """Where and how a tensor was made, and the name that its statement gives it."""
        info = {"created": self.place(obj), "float": obj.dtype == "float", "factory": obj.kind == "tensor" and not obj.computed
                and isinstance(obj.node, ast.Call), "created_name": None}
        if obj.statement is not None:
            module, stmt = obj.statement
            if isinstance(stmt, ast.Assign) and len(stmt.targets) == 1 and stmt.value is obj.node and isinstance(
                    stmt.targets[0], (ast.Name, ast.Attribute)):
                info["created_name"] = module.source(stmt.targets[0])
        return info

    def below(self, oid):
        seen, work = set(), [oid]
        while work:
            i = work.pop()
            if i not in seen and i in self.st.heap:
                seen.add(i)
                work.extend(self.st.heap[i].ins)
        return seen

    def grad_seen(self, ref, node):
        """`X.grad` was evaluated, for whatever use, outside a test for `None`."""
        obj = self.obj(ref)
        if self.doubtful:
            return
        if obj.kind == "tensor" and obj.retained is False and not obj.hooked and self.st.backwards:
            if obj.leaf is False and obj.rg is True:
                self.nonleaf_read(ref, obj, node, node.value if isinstance(node, ast.Attribute) else None)
            elif obj.leaf is True and obj.rg is False and not obj.param and (obj.grads is None or ref.oid in self.derived):
                self.missing_flag(ref, obj, node, node.value if isinstance(node, ast.Attribute) else node)
        elif obj.kind == "opaque" and self.st.backwards and isinstance(node, ast.Attribute):
            self.opaque_read(ref, obj, node)

    doubtful = False

    def opaque_read(self, ref, obj, node):
        """`.grad` of something that came out of a model, or that was fed to one, neither of which we can read."""
        if obj.retained is not False or obj.hooked or obj.param or self.hooks or obj.rg is False:
            return
        if any(part.oid not in self.fired for part, _ in self.forward_hooks):
            return  # of a model that we did not see run: it may retain what is read here
        module, _ = self.statements[-1]
        holder = module.source(node.value)
        last = self.st.backwards[-1]
        root = obj.origin
        while isinstance(root, tuple):
            if root[0] == "element":
                break
            root = root[1]
        if isinstance(root, tuple):  # an element of what a call returned: a batch of a loader
            fed = any(a == ref.oid and (m in self.modules or m in self.trained or m in self.called_modules) for m, a in self.fed)
            if obj.rg is None and root[1] == "result" and fed and any(ref.oid in seen for _, _, seen in self.cut_reach):
                self.fact("missing-requires-grad", node, True, holder=holder, **self.batch_repair(obj, holder, module))
            return
        holders = set().union(*map(self.below, self.callees | self.modules | self.trained))  # `prepare(model, optimizer)` hands out the model
        outputs = [i for i in self.below(ref.oid) if i in last.reached and self.st.heap[i].origin == "result"
                   and (any(m in self.modules or m in self.trained for m in self.st.heap[i].ins) or self.part_of_model(self.st.heap[i].callee))
                   and i not in self.modules and i not in self.trained and i not in self.callees and (self.st.heap[i].callee is not None or i not in holders)]
        if outputs and ref.oid not in self.modules and obj.leaf is not True and obj.rg is not True:
            self.fact("retain-grad", node, True, holder=holder, backward=(last.path, last.span, last.statement),
                      place=self.retain_place(ref, last, module, node.value), together=ref.oid >= last.started, reached=False, certain=False, caller=self.caller(node.value),
                      **{**self.creation(obj), "created": None})

    def part_of_model(self, callee):
        """`model.encoder`, `model.get_input_embeddings()`: something that came out of an object which is called as a model is."""
        return callee is not None and bool((self.below(callee) - {callee}) & (self.modules | self.trained | self.callees))

    def batch_repair(self, obj, holder, module):
        from gradfix.findings import InsertInBody, ReplaceExpression

        info = {"created": None, "edits": None}
        if isinstance(obj.node, ast.Call) and obj.statement is not None:
            where, stmt = obj.statement
            info["created"] = (where.path, where.span(obj.node), where.span(stmt))
            info["edits"] = [ReplaceExpression(where.path, where.span(obj.node), "__expr__.requires_grad_()")]
        elif holder.isidentifier():
            loop = next((s for m, s in reversed(self.statements) if m is module and isinstance(s, (ast.For, ast.AsyncFor)) and any(
                isinstance(n, ast.Name) and n.id == holder for n in ast.walk(s.target))), None)
            if loop is not None:
                info["edits"] = [InsertInBody(module.path, module.span(loop), f"{holder}.requires_grad_()")]
        return info

    def is_local(self, node):
        """Does the read stand in the function that runs now?  Else it came from afar, and may have been sorted out there."""
        scope = self.stack[-1] if self.stack else self.st.frame.module.tree
        return id(node) in attributes_in(scope)

    def caught(self):
        """Does the code stand in a `try` whose handlers take what a `None` raises?"""
        _, here = self.statements[-1]
        for _, s in self.statements[:-1]:
            if isinstance(s, ast.Try) and s.body[0].lineno <= here.lineno <= s.body[-1].end_lineno:
                for handler in s.handlers:
                    names = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)} if handler.type is not None else {"Exception"}
                    if names & {"AttributeError", "TypeError", "Exception", "BaseException", "RuntimeError"}:
                        return True
        return False

    def none_use(self, ref, obj, where, holder, state):
        certain = state in ("none", "cleared")
        module, stmt = self.statements[-1]
        if state == "maybe" and not obj.param:
            return  # only some path through the program gives it a gradient: mostly the one that is run
        if self.caught() or not (certain and self.concrete) and (is_assertion(stmt) or ref.oid in self.tested or "set_to_none=False" in module.text
                                             or self.vouched_for(obj, holder)):
            return
        loop = next((s for _, s in reversed(self.statements) if isinstance(s, (ast.For, ast.While))), None)
        if state == "none" and obj.kind == "tensor" and obj.rg is True and self.concrete and self.st.backwards and (branch := self.untaken(ref)):
            fact = self.fact("untaken-branch", where, True, holder=module.source(holder), state=state, certain=True, param=obj.param, opaque=False,
                             loop=module.span(loop) if loop is not None else None, branch=branch[:2], names=self.names_of({ref.oid}), function=branch[2], called=True)
            self.branch_facts.append(fact)
        self.fact("none-guarded-grad", where, True, holder=module.source(holder), state=state, certain=state in ("none", "cleared"),
                  param=obj.param, opaque=obj.kind == "opaque", loop=module.span(loop) if loop is not None else None)
        proven = [ref.oid, *(obj.ins if isinstance(obj.origin, tuple) and obj.origin[0] == "element" else ())]
        self.st.known.update(dict.fromkeys(proven, "set"))  # where the program goes on, it was there
        self.proven += proven

    def vouched_for(self, obj, holder):
        """Does something else speak for the gradient: a test of its siblings, or a class that fills the gradients itself?"""
        if any(self.st.known.get(i) == "set" for i in obj.ins):
            return True
        name = root_of(holder)
        for _, s in self.statements:
            if isinstance(s, ast.If) and any(tests_gradient(n) and root_of(n.left) != name for n in ast.walk(s.test)):
                return True
        cls = self.st.frame.owner
        return obj.kind == "opaque" and isinstance(cls, Class) and self.fills_gradients(cls)

    def lost_at_once(self, obj):
        """`x.requires_grad_() * 0.1`: told to require grad, and lost in the same statement?"""
        leaf = self.st.heap.get(obj.lost) if self.st is not None else None
        return leaf is not None and leaf.flagged is not None and obj.statement is not None and leaf.flagged[1][1] is obj.statement[1]

    def leaf_lost(self, ref, obj, why, node):
        """Was the leaf made and lost in one expression (or by a conversion in a second statement)?"""
        leaf = self.st.heap.get(obj.lost)
        if leaf is None or leaf.node is None and leaf.flagged is None or obj.node is None or leaf.statement is None or obj.statement is None:
            return False
        if self.lost_at_once(obj):
            flag, _ = leaf.flagged
            module, stmt = obj.statement
            self.fact("leaf-lost-at-creation", flag, True, module=module, stmt=stmt, form="method", leaf=module.span(flag),
                      receiver=module.source(flag.func.value), outer=module.span(obj.node))
            return True
        same = leaf.statement[1] is obj.statement[1] and leaf.statement[0] is obj.statement[0]
        if not same and not leaf.param and isinstance(obj.statement[1], ast.Return) and obj.statement[1].value is obj.node and not self.names_of({obj.lost}):
            module, stmt = obj.statement  # `def weight(): w = torch.randn(3, requires_grad=True); return w * 0.1`: nobody has the leaf
            self.fact("leaf-lost-at-creation", obj.node, True, module=module, stmt=stmt, form="returned", leaf=None, outer=module.span(obj.node))
            return True
        if not same and obj.conversion not in DEVICE_MOVES:
            return False
        if leaf.param and not same:
            return False
        if not same and not self.converts_itself(obj.statement[1], obj.node):
            return False
        module, stmt = obj.statement
        kind = "parameter" if leaf.param else "factory"
        self.fact("leaf-lost-at-creation", leaf.node if same else obj.node, True, module=module, stmt=stmt, form=kind if same else "conversion",
                  leaf=module.span(leaf.node) if same else None, outer=module.span(obj.node), outer_source=module.source(obj.node),
                  leaf_source=module.source(leaf.node) if same else "", target=module.source(stmt.targets[0]) if isinstance(stmt, ast.Assign) else None)
        return True

    def converts_itself(self, stmt, node):
        """`x = x.double()`, also as one of several in a tuple assignment."""
        if not isinstance(stmt, ast.Assign) or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        receiver = ast.unparse(node.func.value)
        return any(ast.unparse(t) == receiver for target in stmt.targets for t in ([*target.elts] if isinstance(target, (ast.Tuple, ast.List)) else [target]))

    # ----------------------------------------------------------------- ends
    def caller(self, holder):
        """The argument of the innermost call that is what `holder` names in the function that runs."""
        if not self.calls or not isinstance(holder, ast.Name):
            return None
        module, stmt, node, fn, shift = self.calls[-1]
        if module is None or not isinstance(node, ast.Call):
            return None
        names = [a.arg for a in fn.node.args.posonlyargs + fn.node.args.args][shift:]
        if holder.id not in names:
            return None
        index = names.index(holder.id)
        argument = next((k.value for k in node.keywords if k.arg == holder.id), None)
        if argument is None and index < len(node.args) and not any(isinstance(a, ast.Starred) for a in node.args):
            argument = node.args[index]
        return (module.path, module.span(argument), module.span(stmt)) if argument is not None else None

    def finish(self):
        """What only the end of the program shows."""
        from gradfix.findings import AddArgument, ReplaceStatement

        for w in self.workarounds:
            edits, created = [], None
            for obj in w["leaves"].values():
                info = self.creation(obj)
                if info["factory"] and info["float"]:
                    edits.append(AddArgument(info["created"][0], info["created"][1], "requires_grad=True"))
                created = created or info["created"]
            edits.append(ReplaceStatement(w["module"].path, w["module"].span(w["stmt"]), ""))
            if w["leaves"]:
                self.fact("missing-requires-grad", w["target"], True, module=w["module"], stmt=w["stmt"], holder=w["name"], created=created,
                          edits=edits if len(edits) == len(w["leaves"]) + 1 else None,
                          message=f"`{w['name']}` does not require grad because nothing it is made of does; the flag hides that, and no leaf gets a gradient")
        self.confirm_rebindings()
        if self.st is None:
            return
        self.finish_cuts()
        self.finish_branches()
        self.finish_flags()
        self.finish_registration()
        self.finish_optimizers()

    def confirm_rebindings(self):
        for r in self.rebindings:
            heap = self.st.heap if self.st is not None else {}
            new = heap.get(r["new"])
            used = any(r["new"] in b.reached for b in (self.st.backwards if self.st is not None else ()))
            loop_variable = isinstance(r["target"], ast.Name) and isinstance(r["loop"], ast.For) and any(
                isinstance(n, ast.Name) and n.id == r["target"].id for n in ast.walk(r["loop"].target))
            old = heap.get(r["old"])
            unmoved = old is not None and old.param and not isinstance(r["target"], ast.Name)  # the module keeps the old value
            releafed = new is not None and (new.leaf and new.rg or self.lost_at_once(new)) or r.get("flagged")
            if releafed and not r.get("confirmed"):
                bad = False
            else:
                bad = bool(r.get("confirmed") or r["attribute"] or loop_variable or unmoved or used or (r["mode"] is False and new is not None and not new.rg
                           and r["loop"] is not None))
                if not bad and not isinstance(r["target"], ast.Name) and self.concrete is False:
                    bad = True
            self.fact("parameter-rebinding", r["stmt"], bad, module=r["module"], stmt=r["stmt"], target=r["module"].source(r["target"]),
                      mode=r["mode"], loop_variable=loop_variable, container=r["container"], clear=not (r["family"] & self.zeroed),
                      last=r["module"].span(r["last"].value) if r["last"] is not r["stmt"] else None)

    def run_nested(self, rows):
        """Functions inside functions that nothing was seen to call: callbacks, closures handed out."""
        import bisect

        while self.nested and self.st is not None and self.st.frame is not None:
            fn = self.nested.pop()
            node = fn.node
            at = bisect.bisect_left(rows, node.lineno)
            if (fn.module.path, node.lineno, node.col_offset) in self.visited or at == len(rows) or rows[at] > node.end_lineno:
                continue
            quiet, self.concrete = self.concrete, False
            try:
                self.call_function(fn, *self.unknown_arguments(fn), node)
            finally:
                self.concrete = quiet

    def run_root(self, fn, owner, top):
        """A function that nothing in sight calls, with unknown arguments; a method on an instance built if it can be."""

        module = self.st.frame.module
        cls = self.force(top.vars.get(owner.name)) if owner is not None else None
        receiver = None
        if isinstance(cls, Class):
            receiver = self.new("module" if self.is_module_class(cls) else "instance", cls=cls)
            init = self.class_attribute(cls, "__init__")
            if isinstance(init, Function) and fn.name != "__init__":
                quiet, self.concrete = self.concrete, False
                self.call_function(init, *self.unknown_arguments(init), fn, receiver=receiver)
                self.concrete = quiet
                self.check_registered(receiver)
        function = Function(fn, module, top, cls if isinstance(cls, Class) else None, fn.name)
        if isinstance(cls, Class) and (returned := self.framework_loss(fn, cls)) is not None:
            self.run_framework_loss(function, receiver, returned)
            return
        self.call_function(function, *self.unknown_arguments(function), fn, receiver=receiver if owner is not None else None)

    def unknown_arguments(self, fn):
        a = fn.node.args
        names = [p.arg for p in a.posonlyargs + a.args]
        if fn.owner is not None:
            names = names[1:]
        count = len(names)
        return [self.new("opaque", origin="argument", made_after=0) for _ in range(count)], {k.arg: UNKNOWN for k in a.kwonlyargs}




def dict_key(index):
    """How a key is known: by its value, else by the object that it is; None where it is unknown."""
    if isinstance(index, Const):
        try:
            hash(index.value)
        except TypeError:
            return None
        return index.value
    if isinstance(index, Multi) and all(isinstance(v, Ref) for v in index.values):
        return "*" + ",".join(str(v.oid) for v in index.values)
    return f"*{index.oid}" if isinstance(index, Ref) else None


def argument(call, index, name):
    """The expression that a call gives for a parameter, or None."""
    given = next((k.value for k in call.keywords if k.arg == name), None)
    return given or (call.args[index] if len(call.args) > index and not any(isinstance(a, ast.Starred) for a in call.args) else None)


def reads_gradient(node):
    """`p.grad`, `p.grad.data`"""
    return isinstance(node, ast.Attribute) and (node.attr == "grad" or node.attr == "data" and reads_gradient(node.value))


def called_name(node):
    func = node.func if isinstance(node, ast.Call) else None
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def one_of_several(value):
    return isinstance(value, Multi) and not value.each and sum(isinstance(v, (Ref, Bound)) for v in value.values) > 1


def constant_keys(index):
    """The values of a key that is one of several constants."""
    if isinstance(index, Multi) and all(isinstance(v, Const) and isinstance(v.value, (str, int)) for v in index.values):
        return [v.value for v in index.values]
    return []


def attributes_in(scope):
    """The ids of the attributes read in a function, or at the top level of a file; functions inside have their own."""
    if not hasattr(scope, "attributes"):
        scope.attributes, work = set(), list(ast.iter_child_nodes(scope))
        while work:
            n = work.pop()
            if isinstance(n, ast.Attribute):
                scope.attributes.add(id(n))
            if not isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                work.extend(ast.iter_child_nodes(n))
    return scope.attributes


def root_of(node):
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def tests_gradient(node):
    """`w.grad is not None`"""
    return isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "grad" and isinstance(node.ops[0], ast.IsNot)


def is_assertion(stmt):
    """`assert p.grad.norm() > 0`, `self.assertTrue(p.grad…)`: a test that is meant to fail on `None`."""
    if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call):
        name = getattr(stmt.value.func, "attr", getattr(stmt.value.func, "id", ""))
        return name.startswith("assert")
    return isinstance(stmt, ast.Assert)


# Methods of objects that we can't see which fail on `None`.
NEEDS_VALUES = {"add_histogram", "histogram", "add_image", "allreduce", "all_reduce"}
METHODS = {
    "backward", "parameters", "named_parameters", "zero_grad", "step", "to", "cuda", "cpu", "eval", "train", "requires_grad_", "retain_grad",
    "detach", "item", "tolist", "numpy", "modules", "children", "named_modules", "append", "extend", "float", "double", "register_hook",
    "register_forward_hook", "manual_backward", "prepare", "scale", "state_dict", "load_state_dict", "apply",
}
MODULE_METHODS = {"parameters", "named_parameters", "modules", "named_modules", "children", "eval", "train", "register_forward_hook",
                  "register_full_backward_hook", "register_forward_pre_hook", "register_backward_hook"}
ARITHMETIC = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b if not isinstance(a, (str, list)) else None,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a ** b if abs(b) < 50 and abs(a) < 1e6 else None,
}

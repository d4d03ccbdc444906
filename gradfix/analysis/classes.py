"""Classes of the program: what they extend, and what that gives their instances."""

from __future__ import annotations

import ast

from gradfix.analysis.values import UNKNOWN, Class, Const, External

DEEPEST = 8  # bases of bases
CONTAINERS = {"Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}


class Classes:
    def bases_of(self, cls, depth=0):
        """The bases of a class and theirs, nearest first: classes of the program, names of packages, or what is unknown."""
        for base in map(self.force, cls.bases):
            yield base
            if isinstance(base, Class) and depth < DEEPEST:
                yield from self.bases_of(base, depth + 1)

    def instance_of(self, value, classes):
        """Is the module an instance of one of the classes?  None where that can't be seen."""
        obj = self.obj(value)
        if obj is None or obj.kind != "module":
            return None
        said = [self.extends(obj.cls, c) if obj.cls is not None else isinstance(c, External) and is_kind(obj.origin, c.name) for c in classes]
        return True if True in said else None if None in said else False

    def extends(self, cls, wanted):
        """Is the class `wanted`, or has it that for a base?  None where a base can't be seen."""
        said = [cls == wanted]
        for base in self.bases_of(cls):
            if isinstance(base, External) and base.name.startswith("torch.nn"):
                said.append(isinstance(wanted, External) and is_kind(base.name.rsplit(".", 1)[-1], wanted.name))
            else:
                said.append(base == wanted if isinstance(base, Class) else None)
        return True if True in said else None if None in said else False

    def layer_class(self, cls):
        """The layer of torch.nn that a class extends (`class QLinear(nn.Linear)`), or None."""
        names = (b.name.rsplit(".", 1)[-1] for b in self.bases_of(cls) if isinstance(b, External) and b.name.startswith("torch.nn."))
        last = next(names, None)
        return last if last != "Module" and last not in CONTAINERS else None

    def inherit_layer(self, ref, layer, args, kwargs, node):
        """The parameters that the constructor of the layer gives its subclass, too."""
        made = self.obj(self.build_module(layer, args, kwargs, node))
        obj = self.st.heap[ref.oid]
        obj.attrs.update(made.attrs)
        obj.open = made.open

    def is_optimizer(self, cls):
        """Does the class extend an optimizer of torch?  What its methods are given in `param_groups` are leaves that train."""
        return any(isinstance(b, External) and b.name.startswith("torch.optim") for b in self.bases_of(cls))

    def fills_gradients(self, cls):
        """Does a method of the class, or of a base of it, give parameters their `.grad`?"""
        return any(assigns_gradients(c.node) for c in (cls, *self.bases_of(cls)) if isinstance(c, Class))

    # --------------------------------------------------------- named tuples
    def field_names(self, value):
        """Of `namedtuple("Out", "a b")` or a list of names or of (name, type)."""
        if isinstance(value, Const) and isinstance(value.value, str):
            return tuple(value.value.replace(",", " ").split())
        names = [self.obj(v).items[0] if self.obj(v) is not None and self.obj(v).items else v for v in self.obj(value).items] if self.obj(value) is not None else []
        return tuple(n.value if isinstance(n, Const) else "" for n in names)

    def named_tuple(self, names, args, kwargs, open_args):
        values = [*args, *(kwargs.get(n, UNKNOWN) for n in names[len(args):])]
        return self.new("tuple", items=tuple(values), attrs=dict(zip(names, values)), open=open_args)


def assigns_gradients(node):
    if not hasattr(node, "fills_gradients"):
        node.fills_gradients = any(
            isinstance(t, ast.Attribute) and t.attr in ("grad", "_grad") and not (isinstance(n.value, ast.Constant) and n.value.value is None)
            for n in ast.walk(node) if isinstance(n, ast.Assign) for t in n.targets)
    return node.fills_gradients


def is_kind(origin, name):
    """Is a class of torch.nn another, or a base of it?  None for those that bases are made of (`_BatchNorm`)."""
    package, _, last = name.rpartition(".")
    if not package.startswith("torch.nn") or not isinstance(origin, str) or last.startswith("_") or last.endswith("Base"):
        return None
    return last in (origin, "Module")

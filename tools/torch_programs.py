"""Random torch programs that run, for holding the analysis against torch (`tools/claims.py`, `tests/test_claims.py`).

All tensors are 2x2 where a program needs to combine them; what raises all the same ends its program early, which is no harm.
"""

from __future__ import annotations

import functools
import warnings

import hypothesis
from hypothesis import strategies as st

from gradfix.analysis import operations

FACTORIES = ["torch.randn(2, 2{})", "torch.rand(2, 2{})", "torch.ones(2, 2{})", "torch.zeros(2, 2{})", "torch.full((2, 2), 0.5{})",
             "torch.tensor([[1.0, 2.0], [3.0, 4.0]]{})", "torch.eye(2{})"]  # fmt: skip
BINARY = ["{} + {}", "{} - {}", "{} * {}", "{} / ({} + 3.0)", "{} @ {}", "torch.maximum({}, {})", "torch.where({0} > 0, {0}, {1})",
          "torch.stack([{}, {}]).sum(0)", "torch.cat([{}, {}])[:2]", "{}.mul({})", "torch.add({}, {}, alpha=2)"]  # fmt: skip
VIEWS = ["{}.view(-1).view(2, 2)", "{}.t()", "{}.T", "{}.reshape(2, 2)", "{}[:, :]", "{}.unsqueeze(0).squeeze(0)", "{}.expand(2, 2)",
         "{}.transpose(0, 1)", "{}.contiguous()", "{}.clone()", "{}.double().float()", "{}[[1, 0]]"]  # fmt: skip
SCALARS = ["{}.sum()", "{}.mean()", "({} ** 2).sum()", "{}.max()", "{}.norm()", "{}[0, 1]", "F.mse_loss({}, torch.zeros(2, 2))"]
CUTS = ["{}.detach()", "{}.data", "torch.tensor({}.tolist())", "torch.from_numpy({}.detach().numpy())", "{}.detach().clone().requires_grad_()",
        "torch.zeros_like({})", "{}.new_zeros(2, 2)", "{}.argmax(1).float().expand(2, 2)", "({} > 0).float()", "{}.long().float()",
        "copy.deepcopy({}.detach())"]  # fmt: skip
INPLACE = ["{} += {}", "{} *= {}", "{}.add_({})", "{}.copy_({})", "{}[0] = {}[1]", "{}.lerp_({}, 0.5)"]
INPLACE_ALONE = ["{}.mul_(2)", "{} -= 0.5", "{}.zero_()", "{}.clamp_(-1, 1)", "{}.t()[0] = 1.0", "{}.relu_()", "{}.uniform_()", "{}.detach_()"]
MODES = ["torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)", "torch.inference_mode(False)"]
MODULES = ["nn.Linear(2, 2)", "nn.Linear(2, 2, bias=False)", "nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))", "nn.LayerNorm(2)", "Net()",
           "nn.Tanh()"]  # fmt: skip
# Packs weights for one processor; makes a leaf that requires grad a non-leaf in place.
ODD = ("fbgemm", "dequantize")
HEAD = """\
import copy

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        self.seen = torch.tanh(self.first(x))
        return self.seen * self.scale

"""


@functools.cache
def unary() -> tuple[str, ...]:
    """The functions of the table that take one 2x2 tensor and return one."""
    import torch

    found = []
    for name in operations.names():
        table = operations.lookup(name)
        function = getattr(torch, name, None)
        if not table.function or table.factory or function is None or name.startswith("_") or "rand" in name or "empty" in name or name.startswith(ODD):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = function(torch.rand(2, 2))
        except Exception:
            continue
        if isinstance(result, torch.Tensor) and result.layout is torch.strided and not table.inplace:
            found.append(name)
    return tuple(found)


class Writer:
    """Writes statements of one program, and knows the names that stand for 2x2 float tensors."""

    def __init__(self, random):
        self.random, self.lines, self.count = random, [], 0
        self.helpers: list[str] = []

    def pick(self, options):
        return self.random.choice(options)

    def chance(self, of: int) -> bool:
        return self.random.randrange(of) == 0

    def number(self, least: int, most: int) -> int:
        return self.random.randint(least, most)

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def add(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def block(self, names: list[str], depth: int, size: int) -> list[str]:
        """Statements over `names`; the names that are certainly bound behind them."""
        start = len(self.lines)
        for _ in range(size):
            names = self.statement(names, depth)
        if len(self.lines) == start:
            self.add(depth, "pass")
        return names

    def statement(self, names: list[str], depth: int) -> list[str]:
        kinds = ["new", "unary", "binary", "binary", "view", "cut", "inplace", "backward", "read", "flag", "container", "module", "pair", "rebind"]
        if depth < 3:
            kinds += ["mode", "if", "for", "call"]
        kind = self.pick(kinds) if names else "new"
        return getattr(self, "write_" + kind)(names, depth)

    def bind(self, names, depth, value):
        target = self.pick(names) if names and self.chance(5) else self.name()
        self.add(depth, f"{target} = {value}")
        return [*names, target] if target not in names else names

    def write_new(self, names, depth):
        value = self.pick(FACTORIES).format(self.pick(["", "", ", requires_grad=True", ", requires_grad=True"]))
        return self.bind(names, depth, f"nn.Parameter({value})" if self.chance(6) and "requires" not in value else value)

    def write_unary(self, names, depth):
        function, value = self.pick(unary()), self.pick(names)
        target = self.name()  # of whatever type and shape: not used again but for its sum
        self.add(depth, f"{target} = torch.{function}({value})")
        self.add(depth, f"{target}_sum = {target}.sum()")
        return names

    def write_binary(self, names, depth):
        return self.bind(names, depth, self.pick(BINARY).format(self.pick(names), self.pick(names)))

    def write_view(self, names, depth):
        return self.bind(names, depth, self.pick(VIEWS).format(self.pick(names)))

    def write_cut(self, names, depth):
        return self.bind(names, depth, self.pick(CUTS).format(self.pick(names)))

    def write_inplace(self, names, depth):
        target = self.pick(names)
        text = self.pick(INPLACE_ALONE).format(target) if self.chance(2) else self.pick(INPLACE).format(target, self.pick(names))
        if self.chance(3):
            self.add(depth, f"if not ({target}.is_leaf and {target}.requires_grad):")
        else:
            self.add(depth, "with torch.no_grad():")
        self.add(depth + 1, text)
        return names

    def write_backward(self, names, depth):
        loss = self.name()
        self.add(depth, f"{loss} = {self.pick(SCALARS).format(self.pick(names))}")
        self.add(depth, f"if {loss}.requires_grad:")
        self.add(depth + 1, f"{loss}.backward({self.pick(['', 'retain_graph=True'])})")
        return names

    def write_read(self, names, depth):
        value = self.pick(names)
        form = self.pick(["plain", "guard", "clear", "print"])
        if form == "guard":
            self.add(depth, f"if {value}.grad is not None:")
            self.add(depth + 1, f"{self.name()} = {value}.grad * 2")
        elif form == "clear":
            self.add(depth, f"{value}.grad = None")
        elif form == "print":
            self.add(depth, f"print({value}.is_leaf, {value}.requires_grad, {value}.grad)")
        else:
            self.add(depth, f"{self.name()} = {value}.grad")
        return names

    def write_flag(self, names, depth):
        value = self.pick(names)
        self.add(depth, f"if {value}.is_leaf:")
        self.add(depth + 1, self.pick(["{}.requires_grad_()", "{}.requires_grad = True", "{}.requires_grad = False", "{}.requires_grad_(False)"]).format(value))
        if self.chance(2):
            self.add(depth, f"if {value}.requires_grad:")
            self.add(depth + 1, f"{value}.retain_grad()")
        return names

    def write_container(self, names, depth):
        some = [self.pick(names) for _ in range(self.number(1, 3))]
        held = self.name() + "_held"
        form = self.pick(["list", "dict", "append", "comprehension"])
        if form == "dict":
            self.add(depth, f"{held} = {{{', '.join(f'{i}: {n}' for i, n in enumerate(some))}}}")
            return self.bind(names, depth, f"{held}[0]")
        if form == "append":
            self.add(depth, f"{held} = []")
            for n in some:
                self.add(depth, f"{held}.append({n} * 2)")
        elif form == "comprehension":
            self.add(depth, f"{held} = [t + 1 for t in ({', '.join(some)},)]")
        else:
            self.add(depth, f"{held} = [{', '.join(some)}]")
        if self.chance(2):
            return self.bind(names, depth, f"{held}[-1]")
        total = self.name()
        self.add(depth, f"{total} = 0")
        self.add(depth, f"for each in {held}:")
        self.add(depth + 1, f"{total} = {total} + each")
        return [*names, total]

    def write_module(self, names, depth):
        layer, out = self.name() + "_layer", self.name()
        self.add(depth, f"{layer} = {self.pick(MODULES)}")
        if self.chance(5):
            self.add(depth, f"{layer}.requires_grad_(False)")
        self.add(depth, f"{out} = {layer}({self.pick(names)})")
        if self.chance(3):
            self.add(depth, f"{out}.sum().backward() if {out}.requires_grad else None")
            self.add(depth, f"{out}_gradients = [p.grad for p in {layer}.parameters()]")
            if self.chance(2):
                self.add(depth, f"{layer}.zero_grad()")
        return [*names, out]

    def write_pair(self, names, depth):
        values, indices = self.name(), self.name()
        self.add(depth, f"{values}, {indices} = {self.pick(['{}.max(1)', 'torch.min({}, dim=0)', '{}.sort(1)', '{}.topk(1)', 'torch.median({}, 1)'])}".format(self.pick(names)))
        self.add(depth, f"{values}_sum = {values}.sum() + {indices}.sum()")
        return names

    def write_rebind(self, names, depth):
        value = self.pick(names)
        self.add(depth, f"{value} = {self.pick(['{0} - 0.1 * {0}', '{0} * 1.0', '{0}.clamp(min=0)', '{0}.detach()', '-{0}']).format(value)}")
        return names

    def write_mode(self, names, depth):
        self.add(depth, f"with {self.pick(MODES)}:")
        return self.block(names, depth + 1, self.number(1, 3))

    def write_if(self, names, depth):
        tests = ["{}.requires_grad", "{}.is_leaf", "{}.sum() > 0", "{}.grad is not None", "{}.grad is None", "len([{}]) > 0", "torch.is_grad_enabled()"]
        self.add(depth, f"if {self.pick(tests).format(self.pick(names))}:")
        self.block(list(names), depth + 1, self.number(1, 3))
        if self.chance(2):
            self.add(depth, "else:")
            self.block(list(names), depth + 1, self.number(1, 2))
        return names

    def write_for(self, names, depth):
        form = self.pick(["range", "range", "while", "list"])
        if form == "while":
            counter = self.name() + "_n"
            self.add(depth, f"{counter} = 0")
            self.add(depth, f"while {counter} < {self.number(1, 4)}:")
            self.add(depth + 1, f"{counter} += 1")
        elif form == "list":
            self.add(depth, f"for item in [{self.pick(names)}, {self.pick(names)}]:")
            self.add(depth + 1, f"{self.name()} = item * 2")
        else:
            self.add(depth, f"for step in range({self.number(0, 5)}):")
        self.block(list(names), depth + 1, self.number(1, 4))
        return names

    def write_call(self, names, depth):
        if not self.helpers:
            return self.write_binary(names, depth)
        return self.bind(names, depth, f"{self.pick(self.helpers)}({self.pick(names)}, {self.pick(names)})")

    def helper(self):
        name = f"helper_{len(self.helpers)}"
        if self.chance(4):
            self.add(0, f"@{self.pick(['torch.no_grad()', 'torch.enable_grad()'])}")
        self.add(0, f"def {name}(x, y):")
        names = self.block(["x", "y"], 1, self.number(1, 4))
        self.add(1, f"return {self.pick(names)}")
        self.add(0, "")
        self.helpers.append(name)


@st.composite
def program(draw, true_random: bool = False) -> str:
    """The text of a program; with true randomness they differ more, and can't be shrunk."""
    writer = Writer(draw(st.randoms(use_true_random=true_random)))
    for _ in range(writer.number(0, 2)):
        writer.helper()
    names = writer.write_new([], 0)
    names = writer.write_new(names, 0)
    writer.block(names, 0, writer.number(2, 14))
    return HEAD + "\n" + "\n".join(writer.lines) + "\n"


def programs(count: int, seed: int) -> list[str]:
    found: list[str] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=count, phases=[hypothesis.Phase.generate], database=None, deadline=None,
                         suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
    @hypothesis.given(program(true_random=True))
    def collect(text):
        found.append(text)

    collect()
    return found

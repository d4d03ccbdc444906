"""The harness itself: rewrites that are wrong on purpose, each of which must be caught, and right ones, which must not."""

import pytest

pytest.importorskip("torch")

from fixture_support import settings  # noqa: E402
from harness_support import Verdict, prove, rewritten, runs, script, write  # noqa: E402

from gradfix.harness.align import close, of_kind  # noqa: E402
from gradfix.harness.judge import verdict  # noqa: E402
from gradfix.harness.rewrites import Rewriter, texts  # noqa: E402
from gradfix.harness.trace import Record  # noqa: E402
from gradfix.runner import Runner  # noqa: E402

RETAIN = """\
    import torch

    torch.manual_seed(0)
    w = torch.randn(3, requires_grad=True)
    h = torch.tanh(w * 2)
    other = torch.tanh(w * 3)
    loss = (h + other).sum()
    loss.backward()
    print(w.grad, h.grad)
"""
GUARD = """\
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.ModuleDict({"used": nn.Linear(2, 1), "spare": nn.Linear(2, 1)})
    norms = []
    for step in range(3):
        net["used"](torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            for p in net.parameters():
                norms.append(p.grad.norm().item())
                p -= 0.1 * p.grad
        net.zero_grad()
"""
DESCENT = """\
    import torch

    torch.manual_seed(0)
    x, y = torch.randn(8, 2), torch.randn(8)
    w = torch.randn(2, requires_grad=True)
    for step in range(3):
        loss = (x @ w - y).pow(2).mean()
        loss.backward()
        w = w - 0.1 * w.grad
    print(loss.item())
"""
IN_PLACE = DESCENT.replace("w = w - 0.1 * w.grad", "w -= 0.1 * w.grad\n        w.grad.zero_()")
LOST = """\
    import torch

    torch.manual_seed(0)
    w = torch.randn(2, 2, requires_grad=True) * 0.1
    b = torch.randn(2)
    (w @ b).sum().backward()
    print(w.grad)
"""
ORDER = """\
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        loss = net(torch.randn(4, 2)).pow(2).mean()
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
"""
LOGGED = """\
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        net(torch.randn(4, 2)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(net.weight.grad.norm())
"""
BY_HAND = """\
    import torch

    torch.manual_seed(0)
    w = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(3):
        (w ** 2).sum().backward()
        optimizer.zero_grad()
        with torch.no_grad():
            w -= 0.1 * w.grad
"""
INTEGERS = """\
    import torch

    steps = torch.tensor([1, 2, 3], requires_grad=True)
    total = (steps * 2).sum()
    total.backward()
    print(steps.grad)
"""
REWRAP = """\
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    parts = [net(torch.randn(4, 2)).pow(2).mean() for _ in range(3)]
    loss = torch.tensor(parts, requires_grad=True).sum()
    loss.backward()
    print(net.weight.grad)
"""
UNREGISTERED = """\
    import torch
    from torch import nn

    torch.manual_seed(0)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(2, 2), nn.Linear(2, 1)]
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.scale * x


    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 2)).pow(2).mean().backward()
        optimizer.step()
"""
TRUTH = """\
    import torch

    w = torch.ones(3, requires_grad=True)
    (w * w).sum().backward()
    if w.grad:
        print(w.grad.norm())
"""

TOTALS = """\
    import torch
    from torch import nn

    torch.manual_seed(0)
    used, spare = nn.Linear(4, 3), nn.Linear(3, 3)
    params = [*used.parameters(), *spare.parameters()]
    logs, norms = [], []
    for step in range(2):
        used.zero_grad()
        used(torch.randn(6, 4)).pow(2).mean().backward()
        logs.append(sum(p.grad.norm().item() ** 2 for p in params) ** 0.5)
        total = 0.0
        for p in params:
            total += p.grad.norm().item() ** 2
        norms.append(total**0.5)
"""
COLLECTED = """\
    import torch

    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.zero_grad()
    for pushed in ([torch.ones(1, 3), torch.ones(1)], [3 * torch.ones(1, 3), torch.zeros(1)]):
        for p, g in zip(net.parameters(), pushed):
            p.grad += g / 2
    optimizer.step()
"""

UNUSED = """\
    import torch

    scale, shift = torch.tensor(2.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)

    def energy(x, shifted):
        if shifted:
            return (x + shift).pow(2)
        return (x * scale).pow(2)

    value = energy(torch.tensor(3.0), shifted=False)
    grads = torch.autograd.grad(value, [scale, shift])
    print(grads)
"""

# name: (script, what of GradFix's own rewrite is changed, into what)
WRONG = {
    "retain after backward": (RETAIN, "h.retain_grad()\nloss.backward()", "loss.backward()\nh.retain_grad()"),
    "retain of another tensor": (RETAIN, "h.retain_grad()", "other.retain_grad()"),
    "the gradient set by hand": (RETAIN, "h.retain_grad()\nloss.backward()", "loss.backward(); h.grad = torch.full((3,), 2.0)"),
    "a leaf in place of a retained tensor": (
        RETAIN,
        "h.retain_grad()",
        "h = h.detach().requires_grad_(); loss = (h + other).sum()",
    ),
    "backward twice": (RETAIN, "loss.backward()", "loss.backward(retain_graph=True); loss.backward()"),
    "changed seed order": (RETAIN, "torch.manual_seed(0)", "torch.manual_seed(0); torch.rand(1)"),
    "guard that swallows a step": (GUARD, "if p.grad is None:", "if p.grad is None or step == 2:"),
    "guard that swallows everything": (GUARD, "if p.grad is None:", "if True:"),
    "guard behind a statement": (GUARD, "norms.append(p.grad.norm().item())", "norms.append(0.0)"),
    "sign flipped": (DESCENT, "w -= 0.1", "w += 0.1"),
    "wrong learning rate": (DESCENT, "w -= 0.1", "w -= 0.01"),
    "a `.data` copy that skips the update": (DESCENT, "w -= 0.1", "w.data.clone().sub_(0.1)  #"),
    "gradients accumulate": (DESCENT, "w.grad = None", "pass"),
    "dropped statement": (DESCENT, "loss.backward()", "loss.backward() if step else w.sum().backward()"),
    "the update only once": (DESCENT, "w -= 0.1 * w.grad", "w -= 0.1 * w.grad * (step == 0)"),
    "the graph is cut": (IN_PLACE, "(x @ w - y)", "(x @ w.detach() - y + 0 * w.sum())"),
    "the zeroing is dropped": (IN_PLACE, "w.grad.zero_()", "pass"),
    "another start": (LOST, "* 0.1", "* 0.2"),
    "the flag is lost": (LOST, ".requires_grad_()", ""),
    "zero_grad is dropped": (ORDER, "optimizer.zero_grad()", "pass"),
    "step is dropped": (ORDER, "optimizer.step()", "pass"),
    "gradients cleared too early once more": (ORDER, "optimizer.step()", "optimizer.zero_grad(); optimizer.step()"),
    "gradients that were used are not cleared": (LOGGED, "optimizer.zero_grad()", "pass"),
    "gradients of an update by hand are not cleared": (BY_HAND, "optimizer.zero_grad()", "pass"),
    "other numbers": (INTEGERS, "[1.0, 2.0, 3.0]", "[1.0, 2.0, 4.0]"),
    "a term is left out": (REWRAP, "torch.stack(parts)", "torch.stack(parts[1:])"),
    "the terms are cut off": (REWRAP, "torch.stack(parts)", "torch.stack([p.detach() + 0 * net.weight.sum() for p in parts])"),
    "a layer is left out": (
        UNREGISTERED,
        "nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 1)])",
        "nn.ModuleList([nn.Linear(2, 1)])",
    ),
    "layers start elsewhere": (UNREGISTERED, "self.layers = ", "torch.rand(1); self.layers = "),
    "what a sum is for is dropped": (TOTALS, "logs.append(", "str("),
    "a sum is another": (TOTALS, "total += p.grad.norm().item() ** 2", "total += p.grad.norm().item() ** 4"),
    "a sum of generated parts is another": (TOTALS, "** 2 for p in params", "** 4 for p in params"),
    "a gradient that should start is left out": (
        COLLECTED, "p.grad = g / 2 if p.grad is None else p.grad + g / 2", "p.grad is None or p.grad.add_(g / 2)",
    ),  # fmt: skip
    "the input is another": (UNUSED, "torch.tensor(3.0)", "torch.tensor(4.0)"),
    "the gradients are not printed": (UNUSED, "print(grads)", "pass"),
    "what is printed is lost": (TRUTH, "print(w.grad.norm())", "pass"),
    "what is printed is another number": (TRUTH, "w.grad.norm()", "w.grad.sum()"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rewrite_is_caught(tmp_path, name):
    source, part, instead = WRONG[name]
    path = write(tmp_path, source)
    done = rewritten(path)
    right = done.after[str(path)].decode()
    judged = prove(path, done)
    assert judged.good, (judged.reason, right)
    if part not in right:  # the lines may be indented more deeply
        part, instead = (text.replace("\n    ", "\n        ") for text in (part, instead))
    assert part in right, right
    wrong = right.replace(part, instead)
    compile(wrong, name, "exec")
    judged = prove(path, done, wrong.encode())
    assert judged.verdict in (Verdict.CHANGED, Verdict.FAILED), judged.reason


HIDDEN = """\
    import torch
    from torch.autograd import Variable

    def cut(h):
        if type(h) == Variable:
            return Variable(h.data)
        return tuple(cut(part) for part in h)

    torch.manual_seed(0)
    net = torch.nn.LSTM(3, 3)
    hidden = (Variable(torch.zeros(1, 2, 3)), Variable(torch.zeros(1, 2, 3)))
    for step in range(2):
        hidden = cut(hidden)
        out, hidden = net(torch.ones(4, 2, 3), hidden)
        out.sum().backward()
"""


def test_a_test_for_variables_means_tensors(tmp_path):
    path = write(tmp_path, HIDDEN)
    done = Rewriter([str(path)], settings(legacy=True), Runner(1)).make()
    right = done.after[str(path)].decode()
    judged = prove(path, done)
    assert judged.verdict is Verdict.GAINED and not judged.notes, (judged.reason, judged.notes)
    for part, instead in (("return tuple(", "tuple("), ("hidden = (torch.zeros(1, 2, 3), ", "hidden = None, (")):
        assert part in right
        judged = prove(path, done, right.replace(part, instead).encode())
        assert judged.verdict in (Verdict.CHANGED, Verdict.FAILED), judged.reason


def test_an_infinity_is_no_number_but_itself(tmp_path):
    source = """\
        import torch
        best = float("inf")
        loss = torch.ones(1, requires_grad=True).sum()
        loss.backward()
        if loss.data[0] < best:
            best = loss.data[0]
        print(best)
    """
    path = write(tmp_path, source)
    done = Rewriter([str(path)], settings(legacy=True), Runner(1)).make()
    assert prove(path, done).verdict is Verdict.GAINED
    wrong = done.after[str(path)].replace(b"best = loss.item()", b"pass")
    assert wrong != done.after[str(path)]
    assert prove(path, done, wrong).verdict in (Verdict.CHANGED, Verdict.FAILED)


PRESERVED = """\
    import torch
    from torch.autograd import Variable

    x = Variable(torch.ones(2))
    w = torch.ones(2, requires_grad=True)
    (w * x).sum().backward()
    count = 3
    print("done", count)
"""


@pytest.mark.parametrize("part, instead", [("count = 3", "count = 4"), ('"done"', '"gone"'), ("(w * x)", "(w * x * x.item())")])
def test_what_is_no_gradient_is_preserved_too(tmp_path, part, instead):
    path = write(tmp_path, PRESERVED)
    done = Rewriter([str(path)], settings(legacy=True), Runner(1)).make()
    assert prove(path, done).verdict is Verdict.PRESERVED
    wrong = done.after[str(path)].decode().replace(part, instead)
    assert wrong != done.after[str(path)].decode()
    assert prove(path, done, wrong.encode()).verdict in (Verdict.CHANGED, Verdict.FAILED)


def test_a_branch_that_is_gone_counts_as_run_where_it_ran(tmp_path):
    path = write(
        tmp_path,
        """\
        import torch
        from torch.autograd import Variable

        w = torch.ones(2, requires_grad=True)
        for x in torch.ones(3, 2):
            if torch.cuda.is_available() and False:
                x = Variable(x.cuda())
            else:
                x = Variable(x)
            (w * x).sum().backward()
        """,
    )
    judged = prove(path, Rewriter([str(path)], settings(legacy=True), Runner(1)).make())
    assert judged.verdict is Verdict.PRESERVED, judged.reason


# name: (script, its verdict, what the reason says); all fixes are made, safe and unsafe
RIGHT = {
    "the script ends in a recursion without end": (
        """\
        import torch
        w = torch.ones(2, requires_grad=True)
        h = w * 2
        h.sum().backward()
        print(h.grad)
        def deeper(n):
            return deeper(n + 1)
        deeper(0)
        """,
        Verdict.GAINED,
        "`h.grad` is gained",
    ),
    "the work is done in a thread": (
        """\
        import threading, torch
        seen = []
        def work():
            a = torch.tensor(2.0, requires_grad=True)
            b = a * 3
            (b ** 2).sum().backward()
            seen.append(b.grad.item())
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print(seen)
        """,
        Verdict.GAINED,
        "`b.grad` is gained",
    ),
    "only one of two names becomes a leaf": (
        """\
        import torch
        x, y = torch.randn(3, 4), torch.randn(3, 1)
        (x * y).sum().backward()
        print(x.grad.norm())
        [p, q] = (torch.ones(2, requires_grad=True) * 2, torch.ones(2))
        (p * q).sum().backward()
        print(p.grad)
        """,
        Verdict.GAINED,
        "no longer raises",
    ),
    "the script gets on, to a mistake that is not repaired": (
        """\
        import torch
        steps = torch.tensor([1, 2], requires_grad=True)
        steps.sum().backward()
        print(torch.zeros(2).grad.norm())  # gradfix: ignore
        """,
        Verdict.GAINED,
        "no longer raises RuntimeError: Only Tensors of floating point",
    ),
    "two gradients of one line are missing, and one stays so": (
        """\
        import torch
        w = torch.ones(2, requires_grad=True)
        h = w * 2
        x = torch.zeros(2)  # gradfix: ignore
        (h * x).sum().backward()
        print(h.grad.norm(), x.grad.norm())  # gradfix: ignore[missing-requires-grad]
        """,
        Verdict.GAINED,
        "`h.grad` is gained (script.py:6)",
    ),
    "a name is bound again and nothing is said of it": (
        """\
        import torch
        offset, gain = torch.zeros(1, requires_grad=True), torch.ones(1, requires_grad=True)
        for step in range(2):
            (gain * 2 + offset).sum().backward()
            offset -= 0.1 * offset.grad
            offset.grad = None
            gain = gain - 0.1  # gradfix: ignore
        """,
        Verdict.GAINED,
        "no longer raises",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_rewrite_is_not_blamed(tmp_path, name):
    source, verdict, reason = RIGHT[name]
    judged = prove(write(tmp_path, source))
    assert judged.verdict is verdict and reason in judged.reason, (judged.reason, judged.notes)


REENTRANT = """\
    import torch
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    x = torch.randn(4, 3, requires_grad=True)
    h = x * 2
    out = checkpoint(net, h, use_reentrant=True) + checkpoint_sequential(net, 2, h, use_reentrant=True)
    dead = checkpoint(net, torch.ones(4, 3), use_reentrant=True)
    (out.sum() + dead.sum()).backward()
    print(h.grad)
"""


def second_judge(path, done, after: bytes):
    """The verdict where the original on a forgiving autograd has nothing to say."""
    mine = script(path)
    names = {str(path): after}
    lines = texts(mine, done.before, names)
    watched = {p: rows.changed for p, rows in lines.rows.items()}
    before, seen = runs().run(mine), runs().run(mine, {mine.path: after}, watched=watched)
    reference = runs().run(mine, {mine.path: after}, mode="reference")
    silent = Record(stopped="died", detail="nothing is known of it")
    return verdict(before, seen, reference, silent, lines, done.rewrites, mine)


def test_the_second_computation_leaves_retained_gradients_alone(tmp_path):
    path = write(tmp_path, RETAIN)
    right = rewritten(path).after[str(path)]
    mine = script(path)
    seen, reference = runs().run(mine, {mine.path: right}), runs().run(mine, {mine.path: right}, mode="reference")
    assert reference.stdout == seen.stdout
    (event,) = of_kind(reference, "backward")
    (read,) = [e.values["h"] for e in reference.events if e.kind == "read" and "h" in e.values]
    assert event.expected["h"].numbers() == event.values["h"].numbers() == read.numbers() == [1.0] * 3


def test_gradients_behind_a_reentrant_checkpoint_are_computed_a_second_time(tmp_path):
    """`torch.autograd.grad` refuses to run there: without the checkpoint, the gradients are the same and it does."""
    path = write(tmp_path, REENTRANT)
    done = rewritten(path)
    right = done.after[str(path)]
    inside = {f"net.{i}.{name}" for i in (0, 3) for name in ("weight", "bias")}
    mine = script(path)
    seen, reference = runs().run(mine, {mine.path: right}), runs().run(mine, {mine.path: right}, mode="reference")
    (event,), (other,) = (of_kind(record, "backward") for record in (seen, reference))
    assert set(event.values) == inside | {"x"} and set(event.retained) == {"h"} and set(other.expected) == inside | {"x", "h"}
    for name, value in {**event.values, **event.retained}.items():
        assert close(other.expected[name], value) and any(value.numbers())
    assert prove(path, done).good and second_judge(path, done, right).good
    # In silence the checkpoint runs the layers again with what they hold by then.
    wrong = right.replace(b"h.retain_grad()", b"h.retain_grad(); net[0].weight.data.mul_(2)")
    judged = second_judge(path, done, wrong)
    assert judged.verdict is Verdict.CHANGED and "autograd.grad says otherwise" in judged.reason, judged.reason
    assert prove(path, done, wrong).verdict is Verdict.CHANGED


def test_rows_are_those_of_the_original(tmp_path):
    path = write(
        tmp_path,
        """\
        import torch
        w = torch.ones(2, requires_grad=True)
        h = w * 2
        h.sum().backward()
        print(h.grad)
        print(torch.zeros(2).grad.norm())  # gradfix: ignore
        """,
    )
    done = rewritten(path)
    broken = done.after[str(path)].replace(b"h.retain_grad()\n", b"h.retain_grad()\nassert w is h\n")
    judged = prove(path, done, broken)
    assert judged.verdict is Verdict.FAILED and judged.reason.endswith("(script.py:4)"), judged.reason
    broken = done.after[str(path)].replace(b"print(h.grad)", b"print(h.grad)\nassert w is h\n")
    judged = prove(path, done, broken)
    assert judged.verdict is Verdict.FAILED and judged.reason.endswith("(script.py:6)"), judged.reason

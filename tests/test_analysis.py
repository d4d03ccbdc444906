"""The analysis on small programs: what it reports, and what it must not."""

import textwrap

import pytest

from gradfix.analysis import Facts, Project, observe


def bad(tmp_path, kind, program):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    project = Project((str(path),))
    observations = observe(project, [str(path)])
    assert not observations.problems
    return sorted({fact.span.row for fact, _ in Facts(project, [observations]).bad(kind)})


def test_a_read_of_a_non_leaf_after_backward_is_seen(tmp_path):
    program = """\
    import torch
    x = torch.randn(3, requires_grad=True)
    y = x * 2
    y.sum().backward()
    print(y.grad.norm())
    """
    assert bad(tmp_path, "retain-grad", program) == [5]


@pytest.mark.parametrize("keep", ["y.retain_grad()", "y.register_hook(print)"])
def test_a_retained_non_leaf_is_right(tmp_path, keep):
    program = f"""\
    import torch
    x = torch.randn(3, requires_grad=True)
    y = x * 2
    {keep}
    y.sum().backward()
    print(y.grad.norm())
    """
    assert bad(tmp_path, "retain-grad", program) == []


@pytest.mark.parametrize(("decorator", "rows"), [("", [14]), ("@torch.no_grad()", [])])
def test_the_step_of_an_optimizer_that_nothing_here_runs(tmp_path, decorator, rows):
    program = f"""\
    import torch
    from torch.optim import Optimizer
    class Momentum(Optimizer):
        {decorator or "# grad mode is on"}
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["velocity"] = torch.zeros_like(p)
                    state["velocity"].mul_(0.9).add_(p.grad)
                    p.add_(state["velocity"], alpha=-group["lr"])
    """
    assert bad(tmp_path, "inplace-leaf-update", program) == rows


def test_a_sequential_that_holds_itself_costs_nothing_else(tmp_path):
    program = """\
    import torch
    from torch import nn
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    setattr(net, "1", net)
    net(torch.ones(1)).sum().backward()
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.backward()
    print(y.grad.norm())
    """
    assert bad(tmp_path, "retain-grad", program) == [9]


@pytest.mark.parametrize("flag, rows", [("pass", [10]), ("x.requires_grad_()", [])])
def test_batches_of_a_loader_do_not_require_grad(tmp_path, flag, rows):
    program = f"""\
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    net = nn.Linear(4, 2)
    data = TensorDataset(torch.rand(12, 4), torch.randint(2, (12,)))
    for x, y in DataLoader(data, batch_size=6):
        {flag}
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        print(x + 0.1 * x.grad.sign())
    """
    assert bad(tmp_path, "missing-requires-grad", program) == rows

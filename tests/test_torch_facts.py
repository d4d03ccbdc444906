"""What PyTorch really does, where folk wisdom differs (docs/torch.md): each a script that ran under the recorder."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("msgspec")

from harness_support import runs, script, write  # noqa: E402

from gradfix.harness.run import Limits  # noqa: E402


def ran(tmp_path, source, device="cpu"):
    return runs().run(script(write(tmp_path, source), Limits(timeout=60, device=device)))


def test_a_tensor_assigned_to_a_parameter_attribute_raises(tmp_path):
    record = ran(
        tmp_path,
        """\
        import torch
        layer = torch.nn.Linear(2, 1)
        layer(torch.ones(1, 2)).sum().backward()
        held = layer.weight
        try:
            layer.weight = layer.weight - 0.1 * layer.weight.grad
        except TypeError as error:
            print(error, layer.weight is held)
        layer.weight = layer.weight.detach()
        """,
    )
    assert "cannot assign" in record.stdout and record.stdout.endswith("True\n")
    assert (record.error.type, record.error.place.row) == ("TypeError", 9)


def test_variable_of_a_graph_tensor_detaches(tmp_path):
    record = ran(
        tmp_path,
        """\
        import torch
        from torch.autograd import Variable
        w = torch.ones(2, requires_grad=True)
        h = w * 2
        v = Variable(h)
        u = Variable(h, requires_grad=True)
        print(v.requires_grad, v.grad_fn, u.is_leaf)
        u.sum().backward()
        """,
    )
    assert record.error is None and record.stdout == "False None True\n"
    assert record.end["w"].grad is None and record.end["u"].grad is not None


def test_to_where_it_is_already_keeps_the_leaf(tmp_path):
    record = ran(
        tmp_path,
        """\
        import torch
        w = torch.ones(2, requires_grad=True)
        print(w.to("cpu") is w, w.to(torch.float32) is w, w.cpu() is w, w.double().is_leaf)
        (w.to("cpu") * 2).sum().backward()
        """,
    )
    assert record.stdout == "True True True False\n"
    assert record.end["w"].grad.numbers() == [2.0, 2.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_loses_the_leaf(tmp_path):
    record = ran(
        tmp_path,
        """\
        import torch
        w = torch.ones(2, requires_grad=True).cuda()
        print(w.is_leaf, w.to("cuda") is w)
        (w * 2).sum().backward()
        """,
        device="cuda",
    )
    assert record.error is None and record.stdout == "False True\n" and record.end["w"].grad is None


def test_zero_grad_leaves_none_and_does_not_clear_retained_gradients(tmp_path):
    record = ran(
        tmp_path,
        """\
        import torch
        net = torch.nn.Linear(2, 1)
        x = torch.ones(1, 2, requires_grad=True)
        h = x * 2
        h.retain_grad()
        for _ in range(2):
            net.zero_grad()
            print(net.weight.grad is None)
            net(h).sum().backward(retain_graph=True)
        ratio = h.grad / net.weight.detach()
        """,
    )
    assert record.error is None and record.stdout == "True\nTrue\n"
    assert record.end["ratio"].value.numbers() == [2.0, 2.0]  # the second backward was added to the first


def test_an_integer_tensor_can_not_require_grad_and_a_typo_is_an_attribute(tmp_path):
    record = ran(
        tmp_path,
        """\
        import torch
        w = torch.ones(2)
        w.require_grad = True
        layer = torch.nn.Linear(1, 1)
        layer.requires_grad = False
        print(w.requires_grad, layer.weight.requires_grad)
        torch.tensor([1, 2], requires_grad=True)
        """,
    )
    assert record.stdout == "False True\n" and record.error.type == "RuntimeError"

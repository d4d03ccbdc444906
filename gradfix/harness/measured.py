"""In the child: functions that autograd cannot see into, with the gradient that central differences measure."""

from __future__ import annotations

import torch

MOST = 4096  # elements of an argument


class _Measured(torch.autograd.Function):
    """`function` of float64 arrays (of plain numbers, where it is from `math`) as an operation of the graph."""

    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return call([t.detach().double() for t in tensors]).to(tensors[0].dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        out = []
        inputs = [t.detach().double() for t in ctx.saved_tensors]
        gradient = gradient.double()
        for k, x in enumerate(inputs):
            found = torch.zeros_like(x)
            for i in range(x.numel()):
                step = 1e-6 * max(1.0, abs(float(x.reshape(-1)[i])))
                ends = []
                for sign in (1, -1):
                    moved = x.clone().reshape(-1)
                    moved[i] += sign * step
                    ends.append(ctx.call([*inputs[:k], moved.reshape(x.shape), *inputs[k + 1 :]]))
                found.reshape(-1)[i] = (gradient * (ends[0] - ends[1])).sum() / (2 * step)
            out.append(found.to(ctx.saved_tensors[k].dtype))
        return (None, *out)


def measured(function, args, kwargs):
    """`function(*args, **kwargs)` as a tensor of the graph; None where no argument is a tensor of the graph, or one is too large."""
    places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.requires_grad]
    if not places or any(args[i].numel() > MOST for i in places):
        return None
    plain = getattr(function, "__module__", None) == "math"
    rest = [a.detach().cpu().numpy() if isinstance(a, torch.Tensor) else a for a in args]

    def call(tensors):
        given = list(rest)
        for i, t in zip(places, tensors):
            given[i] = t.item() if plain else t.cpu().numpy()
        result = torch.as_tensor(function(*given, **kwargs), dtype=torch.float64)
        return result.reshape(tensors[0].shape) if plain else result.to(tensors[0].device)

    return _Measured.apply(call, *(args[i] for i in places))

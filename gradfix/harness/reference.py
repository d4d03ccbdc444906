"""In the child: the run that judges gradients by a second computation.

Before each backward, `torch.autograd.grad` computes the gradients of the leaves and of the retained tensors by itself.
What backward then adds to each `.grad` must be that.
"""

from __future__ import annotations

import torch

from gradfix.harness.record import Recorder, _grad, tensors_in
from gradfix.harness.trace import Event


class ReferenceRecorder(Recorder):
    def before_backward(self, tensors, leaves, frame, args, kwargs):
        names = ("grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
        given = dict(zip(names, args), **kwargs)
        retained = [t for ref in list(self.retained.values()) if (t := ref()) is not None and not t.is_leaf]
        mine = {id(t) for t in leaves}
        wanted = [t for t in leaves if t.requires_grad]
        if given.get("inputs") is None:
            wanted += [t for t in retained if id(t) not in mine]
        if not wanted:
            return {}, retained
        seeds = given.get("grad_tensors")
        if isinstance(seeds, torch.Tensor):
            seeds = [seeds]
        self.busy += 1
        try:
            roots = tensors_in(tensors)
            gradients = self.true_grad(roots, wanted, seeds, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "checkpoint" not in str(error).lower():
                raise
            return {}, retained  # a re-entrant checkpoint can't be differentiated in this way
        finally:
            self.busy -= 1
        expected = {}
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for tensor, gradient in zip(wanted, gradients):
                old = _grad.__get__(tensor)
                if gradient is None:
                    total = old
                else:
                    total = gradient if old is None else old.detach() + gradient
                if not getattr(tensor, "_post_accumulate_grad_hooks", None):
                    expected[id(tensor)] = self.values.of(total)
        return expected, retained

    def after_backward(self, leaves, frame, known) -> None:
        expected, retained = known
        mine = {id(t) for t in leaves}
        named = self.named([*leaves, *[t for t in retained if id(t) not in mine]], frame)
        self.held.update({name: t for name, t in named.items() if id(t) in mine})
        values = {name: self.values.of(_grad.__get__(t)) for name, t in named.items()}
        says = {name: expected[id(t)] for name, t in named.items() if id(t) in expected}
        self.add(Event("backward", self.place(frame), values, says, self.scale))

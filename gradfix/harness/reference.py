"""In the child: the run that judges gradients by a second computation.

Before each backward, `torch.autograd.grad` computes the gradients of the leaves and of the retained tensors by itself.
What backward then adds to each `.grad` must be that.

Through a re-entrant checkpoint `torch.autograd.grad` can't go.  What such a checkpoint holds runs without it here: that
costs memory, and the gradients are those that the checkpoint has to come to in the run that is judged.
"""

from __future__ import annotations

import torch

from gradfix.harness.record import Recorder, _grad, tensors_in
from gradfix.harness.trace import Event


class ReferenceRecorder(Recorder):
    def install(self) -> None:
        super().install()
        from torch.utils.checkpoint import CheckpointFunction

        true = CheckpointFunction.apply

        def apply(function, preserves_random_state, *args):
            if not preserves_random_state:  # it draws other numbers when it runs again, on purpose
                return true(function, preserves_random_state, *args)
            self.record.unfolded = True
            connected = any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
            with torch.set_grad_enabled(connected and torch.is_grad_enabled()):
                return function(*args)

        CheckpointFunction.apply = apply

    def before_backward(self, tensors, leaves, frame, args, kwargs):
        names = ("grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
        given = dict(zip(names, args), **kwargs)
        retained = self.kept()
        mine = {id(t) for t in leaves}
        wanted = [t for t in leaves if t.requires_grad]
        if given.get("inputs") is None:
            wanted += [t for t in retained if id(t) not in mine]
        if not wanted:
            return {}, retained
        seeds = given.get("grad_tensors")
        if isinstance(seeds, torch.Tensor):
            seeds = [seeds]
        old = {id(t): _grad.__get__(t) for t in (*wanted, *retained)}
        for tensor in retained:
            _grad.__set__(tensor, None)
        self.busy += 1
        try:
            roots = tensors_in(tensors)
            gradients = self.true_grad(roots, wanted, seeds, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "checkpoint" not in str(error).lower():
                raise
            return {}, retained  # a re-entrant checkpoint of somebody else's
        finally:
            self.busy -= 1
            for tensor in retained:  # `torch.autograd.grad` fills the gradients that are retained on its way
                _grad.__set__(tensor, old[id(tensor)])
        expected = {}
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for tensor, gradient in zip(wanted, gradients):
                held = old[id(tensor)]
                if gradient is None:
                    total = held
                else:
                    total = gradient if held is None else held.detach() + gradient
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

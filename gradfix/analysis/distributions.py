"""torch.distributions: what is computed from their parameters, and what is drawn without a graph."""

from __future__ import annotations

from gradfix.analysis.values import UNKNOWN, Ref


class Distributions:
    def distribution(self, node, name, given, open_args):
        """`Normal(mean, std)`, `kl_divergence(p, q)`: what depends on their parameters, or on those of what they are made of."""
        ins = tuple(dict.fromkeys(i for p in self.operands(given) if isinstance(p, Ref)
                                  for i in (self.obj(p).ins if self.obj(p).origin == "distribution" else (p.oid,))))
        partial = open_args or UNKNOWN in self.flat(given)
        if name[:1].isupper():
            return self.new("opaque", origin="distribution", ins=ins, node=node, partial=partial)
        return self.operation(node, list(map(Ref, ins)), partial=partial)

    def distribution_method(self, ref, obj, name, args, kwargs, node):
        """`sample()` draws with grad mode off, whatever the parameters are."""
        if name == "expand":
            return ref
        if name not in ("sample", "sample_n", "rsample", "log_prob", "entropy", "cdf", "icdf", "perplexity"):
            return self.unknown_result(node, args, kwargs, ref)
        drawn = name in ("sample", "sample_n", "rsample")
        value = self.operation(node, [*map(Ref, obj.ins), *(() if drawn else (*args, *kwargs.values()))], partial=obj.partial)
        if name.startswith("sample"):
            return self.tensor(node, (), rg=False, leaf=True, dead=self.leaving(node, [value], "op", "sample"), computed=True)
        return value

"""Proof by execution: run a script before and after its rewrite, record its gradients, compare, judge.

`server` runs scripts in children and `record` watches from inside them; only these two import torch.  `run` talks to
the server, `align` finds what differs between two records, `judge` gives the verdict.
"""

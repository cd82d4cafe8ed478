"""Recursive rejection against a law that is lifted for the draft: more is kept, and the target's law is paid for it.

Each sibling is tested as `recursive_rejection` does, but against what `lift` makes of the law that its elders left.
Where `lift` changes nothing it is that rule, for every way in which siblings may have been chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.sampling import pick
from workbench.core.tree import DraftTree, Sampling

Lift = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(law r [N+1, V] that elders left; node [N+1] and token x [N+1, 1] tested against it) → weights [N+1, V] not below 0
that x is tested with. Rows of places without such a child are not looked at."""
_ANEW = ("deterministic", "chain", "sampled")
"""Kinds of siblings that are not conditioned on elder ones."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What came of the tests, on the device.

    Attributes:
        accept: [N], min(1, lifted r(x) / q(x)).
        stop: int64 [N+1], token emitted where the walk ends.
        residual: [N], r(x), what the elders left of p.
        q: [N], the token's chance in the law it was drawn from; 1 where it was chosen.
        q_left: [N], the same without the elders, where they were taken out of that law.
        lifted: [N], what x was tested with.
        out: [N+1, V], the law of the token that each place emits, over the draws of its drafts: exact where `lift`
            does not look at x, given the elders of a draft that was drawn without them.
    """

    accept: Float[Tensor, " N"]
    stop: Int[Tensor, " N_plus_1"]
    residual: Float[Tensor, " N"]
    q: Float[Tensor, " N"]
    q_left: Float[Tensor, " N"]
    lifted: Float[Tensor, " N"]
    out: Float[Tensor, "N_plus_1 V"]

    def paid(self, p: Float[Tensor, "N_plus_1 V"], parents: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """At the eldest child of each place, the total variation between `out` and p there; 0 at its siblings."""
        tv = (self.out - p).abs().sum(1) / 2
        return torch.where(_rank(parents) == 0, tv[parents + 1], 0.0)


def relaxed_rejection(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], lift: Lift
) -> Relaxed:
    """Test siblings one after the other, each against what `lift` makes of the law r that its elders left.

    x is kept with probability min(1, lift(r)(x) / q(x)); else r ← (lift(r) − q)₊, normalised. A token that was chosen
    has q = 1.

    Args:
        tree: siblings in the order they were drawn.
        p: the target's law at the root (row 0) and after each node (row i+1).
        u_stop: uniforms [N+1] for the token emitted where the walk ends.
        lift: see `Lift`.

    Source: the form is Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1, repeated for siblings as in Jeon et al.
    2024, arXiv:2402.14160, Algorithm 1.
    """
    parents, tokens, n = tree.parents, tree.tokens, len(tree)
    rank, tiny = _rank(parents), torch.finfo(p.dtype).tiny
    left, free, out, reach = p, torch.ones_like(p), torch.zeros_like(p), p.new_ones(n + 1, 1)
    accept, r, q_own, q_left, lifted = (p.new_zeros(n) for _ in range(5))
    index = torch.arange(n, device=p.device)
    for k in range(tree.fanout if n else 0):
        slot = torch.where(rank == k, parents + 1, n + 1)  # n+1 is a dump
        child = index.new_full((n + 2,), -1).scatter_(0, slot, index)[: n + 1]  # [N+1] k-th child of each place
        has, child = (child >= 0).unsqueeze(1), child.clamp_min(0)
        x = tokens[child].unsqueeze(1)  # [N+1, 1]
        whole = _law_of(tree, child, x, p)
        q = torch.where(_without(tree, child), _normalised(whole * free, whole), whole)
        asked = lift(left, child, x)
        ratio = (asked.gather(1, x) / q.gather(1, x).clamp_min(tiny)).clamp(max=1)
        kept = torch.minimum(q, asked)
        columns = (ratio, left.gather(1, x), whole.gather(1, x), q.gather(1, x), asked.gather(1, x))
        accept, r, q_own, q_left, lifted = (
            torch.where(rank == k, new.squeeze(1)[parents + 1], old)
            for old, new in zip((accept, r, q_own, q_left, lifted), columns, strict=True)
        )
        out = torch.where(has, out + reach * kept, out)
        reach = torch.where(has, reach * (1 - kept.sum(1, keepdim=True)).clamp_min(0), reach)
        left = torch.where(has, _normalised((asked - q).clamp_min(0), left), left)
        free = torch.where(has, free.scatter(1, x, 0.0), free)
    return Relaxed(accept, pick(left, u_stop), r, q_own, q_left, lifted, out + reach * left)


def _rank(parents: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Elder siblings of each node."""
    return torch.tril(parents.unsqueeze(0) == parents.unsqueeze(1), diagonal=-1).sum(1)


def _law_of(
    tree: DraftTree, node: Int[Tensor, " n"], x: Int[Tensor, "n 1"], p: Float[Tensor, "n V"]
) -> Float[Tensor, "n V"]:
    """The law that each node's token x was drawn from, its elders still in it; a point mass where it was chosen."""
    point = torch.zeros_like(p).scatter_(1, x, 1.0)
    if tree.q is None:
        return point
    if tree.law_of is not None:
        of = tree.law_of[node]
    else:
        assert tree.q_of is not None
        of = tree.q_of[tree.parents[node] + 1]
    return torch.where((of < 0).unsqueeze(1), point, tree.q[of.clamp_min(0)].to(p.dtype))


def _without(tree: DraftTree, node: Int[Tensor, " n"]) -> Tensor:
    """Bool [n, 1]: whether a node was drawn from what its elders left of its law."""
    if tree.sampling is Sampling.MIXED and tree.without is not None:
        return tree.without[node].unsqueeze(1)
    return torch.full((len(node), 1), tree.sampling.value not in (*_ANEW, Sampling.MIXED.value), device=node.device)


def _normalised(weights: Float[Tensor, "n V"], otherwise: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
    """Weights divided by their sum; rows without weight are taken from `otherwise`."""
    total = weights.sum(1, keepdim=True)
    return torch.where(total > 0, weights / total.clamp_min(torch.finfo(weights.dtype).tiny), otherwise)

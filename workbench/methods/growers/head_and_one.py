"""A tree whose places have the drafter's likeliest tokens for certain, and one draw from what they leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.grown import Grown, GrowthRule
from workbench.core.params import param
from workbench.core.sampling import pick
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.growing import Growth
from workbench.engine.parts import Grower
from workbench.engine.plan import Plan
from workbench.methods.growers.drawn import Drawn
from workbench.methods.growers.shapes import BRANCHING, MOST_NODES, widths

HEAD = GrowthRule(
    "head-and-one",
    "Of the head",
    "One of the drafter's likeliest tokens here: chosen, not drawn. Of a place's children the last alone is drawn.",
)
ONE = GrowthRule(
    "head-and-one",
    "The one that is drawn",
    "Drawn from what the likeliest tokens, which are its elder siblings, leave of the drafter's law.",
)


@dataclass(frozen=True)
class HeadAndOne(Grower):
    """Of n children the first n − 1 are the likeliest tokens, the last is drawn from q without them (q̃).

    All but one draft are a function of what is committed, so that a rule made for it (verifier=greedy-draft) accepts
    Σ p over the likeliest + Σ min(p, q̃) over the rest. Recursive rejection is exact, too: it takes the likeliest for
    point masses. A place that has room for fewer children gives up likely ones, never the draw. A law of fewer tokens
    than that has as many children as it allows.

    Attributes:
        branching: children of each node, level by level, the drawn one among them. Where nodes are too many the last
            ones are left out.

    Source: Hu et al. 2025, Towards optimal multi-draft speculative decoding, arXiv:2502.18779, the greedy draft
    sampling. When decoding is greedy the laws are point masses and the tree is a chain.
    """

    name: ClassVar[str] = "head-and-one"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.HEAD_AND_ONE
    branching: str = param("3-2-1-1", **BRANCHING)

    def grow(self, growth: Growth, plan: Plan) -> DraftTree:
        """Level by level."""
        most = plan.within(MOST_NODES)
        drawn = Drawn(growth, self.siblings)
        fan = widths(self.branching, plan.depth)
        for level, k, p in drawn.levels(fan, most):
            room = (most - growth.n - k * torch.arange(p.shape[0], device=p.device)).clamp(0, k)
            tokens, there = children(p, room, k, drawn.uniforms(p.shape[0], level))
            below, rank = there.nonzero().unbind(1)
            drawn.add(tokens[below, rank], below, chosen=rank < tokens.shape[1] - 1)
        return drawn.tree(max(fan), Grown((HEAD, ONE)))


def children(
    p: Float[Tensor, "w V"], room: Int[Tensor, " w"], k: int, u: Float[Tensor, " w"]
) -> tuple[Int[Tensor, "w k"], Bool[Tensor, "w k"]]:
    """The likeliest tokens of each law, falling, and in the last column the one that is drawn from the rest.

    Args:
        p: laws.
        room: children that each may have, at most k; how many there are never depends on what is drawn.
        k: most of them.
        u: uniforms for the draws.

    Returns:
        Tokens, and which of them are children: of k columns, or of fewer in a smaller vocabulary.
    """
    best = p.topk(min(k, p.shape[1]) - 1, dim=1)
    head = (torch.arange(best.indices.shape[1], device=p.device) < room.unsqueeze(1) - 1) & (best.values > 0)
    rest = p * (1 - torch.zeros_like(p).scatter_add(1, best.indices, head.to(p.dtype)))
    some = rest.sum(1) > 0
    one = pick(torch.where(some.unsqueeze(1), rest, p), u)
    return torch.cat([best.indices, one.unsqueeze(1)], 1), torch.cat([head, (some & (room > 0)).unsqueeze(1)], 1)

"""Hu et al.'s tree builder: each node's children are the drafter's likeliest tokens and one sampled other token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.sampling import pick
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.methods.tree_builders.shapes import BRANCHING, MOST_NODES, widths
from workbench.methods.tree_builders.tree_sampler import TreeSampler

HEAD = TreeBuilderRule(
    "head-and-one",
    "Likeliest token",
    "One of the drafter's likeliest tokens at this position, chosen deterministically. Only the last child of a node "
    "is sampled.",
)
ONE = TreeBuilderRule(
    "head-and-one",
    "Sampled token",
    "Drawn from the drafter's distribution without the likeliest tokens, which are its earlier siblings.",
)


@dataclass(frozen=True)
class HeadAndOne(TreeBuilder):
    """Draft n children per node: the n − 1 likeliest tokens of q, and one token drawn from q without them (q̃).

    p and q are the target's and the drafter's distribution. All children of a node but the last are functions of the
    tokens before them. The verifier for such drafts (verifier=greedy-draft) accepts one of the children with
    probability Σ p over the n − 1 likeliest tokens + Σ min(p, q̃) over all other tokens. Recursive rejection is exact,
    too: it treats the likeliest tokens as point masses. If the budget allows a node fewer than n children, likely
    tokens are omitted, never the sampled one. If q has fewer than n tokens of positive probability, the node gets one
    child per such token.

    Attributes:
        branching: number of children per node, including the sampled one, level by level. If the tree exceeds the
            budget, its last nodes are omitted.

    Source: Hu et al. 2025, Towards optimal multi-draft speculative decoding, arXiv:2502.18779, the greedy draft
    sampling. When decoding is greedy the distributions are point masses and the tree is a chain.
    """

    name: ClassVar[str] = "head-and-one"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.HEAD_AND_ONE
    branching: str = param("3-2-1-1", **BRANCHING)

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Choose and sample the children of every node, level by level, and return the draft tree."""
        most = plan.limit_nodes(MOST_NODES)
        sampler = TreeSampler(tree, self.siblings)
        fan = widths(self.branching, plan.depth)
        for level, k, p in sampler.levels(fan, most):
            room = (most - tree.n - k * torch.arange(p.shape[0], device=p.device)).clamp(0, k)
            tokens, is_child = children(p, room, k, sampler.uniforms(p.shape[0], level))
            below, rank = is_child.nonzero().unbind(1)
            sampler.add(tokens[below, rank], below, is_deterministic=rank < tokens.shape[1] - 1)
        return sampler.finish(max(fan), TreeExplanation((HEAD, ONE)))


def children(
    p: Float[Tensor, "w V"], room: Int[Tensor, " w"], k: int, u: Float[Tensor, " w"]
) -> tuple[Int[Tensor, "w k"], Bool[Tensor, "w k"]]:
    """Return a node's children: the likeliest tokens of its distribution, then one sampled token from the rest.

    Args:
        p: the drafter's distributions after w nodes.
        room: maximum number of children of each node, at most k. It must not depend on the sampled token.
        k: maximum number of children of any node.
        u: uniform numbers in [0, 1) for the samples.

    Returns:
        Tokens, and a mask of the tokens that are children. Both have one column per child, at most k.
    """
    best = p.topk(min(k, p.shape[1]) - 1, dim=1)
    head = (torch.arange(best.indices.shape[1], device=p.device) < room.unsqueeze(1) - 1) & (best.values > 0)
    rest = p * (1 - torch.zeros_like(p).scatter_add(1, best.indices, head.to(p.dtype)))
    has_rest = rest.sum(1) > 0
    sample = pick(torch.where(has_rest.unsqueeze(1), rest, p), u)
    return torch.cat([best.indices, sample.unsqueeze(1)], 1), torch.cat([head, (has_rest & (room > 0)).unsqueeze(1)], 1)

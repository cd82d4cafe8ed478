"""RSD-C: a tree with a fixed number of children per level, which are drawn without replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.core.params import param
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.methods.tree_builders.shapes import BRANCHING, MOST_NODES, widths
from workbench.methods.tree_builders.tree_sampler import TreeSampler

BRANCHED = TreeBuilderRule(
    "rsd-c",
    "Drawn without replacement",
    "The number of children per node is fixed; each is drawn without replacement from the drafter's distribution.",
)


@dataclass(frozen=True)
class ConstantBranching(TreeBuilder):
    """Draw each node's children without replacement: the tokens with the largest log q + Gumbel noise.

    q is the drafter's distribution. If fewer tokens have positive probability than the node should have children, each
    of these tokens becomes a child.

    Attributes:
        branching: number of children per node, level by level. If the tree exceeds the node budget, its last nodes are
            omitted.

    Source: Jeon et al. 2024, RSD, arXiv:2402.14160, §3.1 (RSD-C). When decoding is greedy the distributions are point
    masses and the tree is a chain.
    """

    name: ClassVar[str] = "rsd-c"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.FIXED_NUMBER
    branching: str = param("3-2-1-1", **BRANCHING)

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Draw the children of every node, level by level, and return the draft tree."""
        most = plan.limit_nodes(MOST_NODES)
        sampler = TreeSampler(tree, self.siblings)
        fan = widths(self.branching, plan.depth)
        for level, k, p in sampler.levels(fan, most):
            top = sampler.gumbel(p, level).topk(min(k, p.shape[1]), dim=1)
            below, rank = torch.isfinite(top.values).nonzero()[: most - tree.n].unbind(1)
            sampler.add(top.indices[below, rank], below)
        return sampler.finish(max(fan), TreeExplanation((BRANCHED,)))

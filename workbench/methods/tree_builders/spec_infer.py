"""SpecInfer's tree builder: a fixed number of siblings per level, drawn independently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.core.params import param
from workbench.core.sampling import pick
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.methods.tree_builders.shapes import BRANCHING, MOST_NODES, widths
from workbench.methods.tree_builders.tree_sampler import TreeSampler

BRANCHED = TreeBuilderRule(
    "specinfer",
    "Drawn independently",
    "The number of children per node is fixed; each is drawn from the drafter's distribution independently, so "
    "siblings may be equal.",
)


@dataclass(frozen=True)
class SpecInfer(TreeBuilder):
    """Draw the children of each node independently from the drafter's distribution.

    Siblings may have the same token. The later one of two such siblings is always rejected, because the residual at a
    rejected token is 0. It stays in the tree, because a verifier that is exact for independent draws needs it.

    Attributes:
        branching: number of children per node, level by level. If the tree exceeds the budget, its last nodes are
            omitted.

    Source: Miao et al. 2024, SpecInfer, arXiv:2305.09781, §3 (expansion-based trees, by default ⟨1, 1, 3, 1, 1, …⟩).
    When decoding is greedy the distributions are point masses and the tree is a chain.
    """

    name: ClassVar[str] = "specinfer"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.SAMPLED
    has_fixed_shape: ClassVar[bool] = True
    branching: str = param("3-2-1-1", **BRANCHING)

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Draw the children of every node, level by level, and return the draft tree."""
        most, sampling = plan.limit_nodes(MOST_NODES), tree.sequence.sampling
        sampler = TreeSampler(tree, self.siblings)
        fan = [1] * plan.depth if sampling.greedy else widths(self.branching, plan.depth)
        for level, k, p in sampler.levels(fan, most):
            below = torch.arange(p.shape[0], device=p.device).repeat_interleave(k)[: most - tree.n]
            sampler.add(pick(p[below], sampler.uniforms(below.shape[0], level)), below)
        return sampler.finish(max(fan), TreeExplanation((BRANCHED,)))

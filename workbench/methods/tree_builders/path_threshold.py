"""Spec-LLaVA's tree builder: draft all continuations whose path probability reaches a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.methods.tree_builders.shapes import MOST_NODES

LIKELY = TreeBuilderRule(
    "path-threshold",
    "Above the threshold",
    "The product of the draft probabilities along the node's path reaches the threshold (on the first level one "
    "token is always proposed).",
    "draft probability of the node's path",
)


@dataclass(frozen=True)
class PathThreshold(TreeBuilder):
    """Draft every continuation whose path probability, the product of draft probabilities, reaches a threshold.

    The likeliest token of the first level is always drafted. If a level has more nodes than the budget allows, only its
    likeliest nodes are drafted.

    Attributes:
        threshold: minimum probability of a node's path from the root.
        children: maximum number of children per node.

    Source: Huo et al. 2025, Spec-LLaVA, arXiv:2509.11961.
    """

    name: ClassVar[str] = "path-threshold"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.DETERMINISTIC
    threshold: float = 0.1
    children: int = 4

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Add nodes level by level until no path reaches the threshold, and return the draft tree."""
        depth, most = plan.depth, plan.limit_nodes(MOST_NODES)
        distributions = tree.root
        path = torch.zeros(1, device=tree.device)  # log-probability of the path to each node expanded last
        draft_logq, paths, fanout = list[Tensor](), list[Tensor](), 1
        for level in range(depth):
            logq, tokens = distributions.best(self.children)
            reached = path.unsqueeze(1) + logq  # [w, k]
            passes = reached >= math.log(self.threshold)
            passes[0, 0] |= level == 0
            indices = passes.nonzero()  # siblings stay in the order of their probability
            room = most - tree.n
            if len(indices) > room:
                indices = indices[reached[passes].topk(room).indices.sort().values]
            if not len(indices):
                break
            below, child = indices.unbind(1)
            tree.add(tokens[below, child], below if level else None)
            path = reached[below, child]
            paths.append(path)
            draft_logq.append(logq[below, child])
            fanout = tokens.shape[1]
            if level + 1 == depth or not tree.should_continue(distributions := tree.expand()):
                break
        tree.close()
        return tree.to_tree(
            fanout, torch.cat(draft_logq).exp(), TreeExplanation((LIKELY,), before=torch.cat(paths).exp())
        )

"""EAGLE-2's tree builder: expand the draft nodes with the highest scores, and verify the best of all proposed nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree, drafter_ranking
from workbench.kernels.distributions import TOP
from workbench.methods.tree_builders.shapes import NODES, WIDTH

RERANKED = TreeBuilderRule(
    "eagle-2",
    "Expanded, then reranked",
    "This node is a child of one of the highest-scoring nodes on the level above. A score is the product of the "
    "draft probabilities along the path. After the last level all nodes were ranked by score, and the best are "
    "verified.",
    "index before reranking",
    "rank by score among all nodes of the tree",
)


@dataclass(frozen=True)
class BestFirst(TreeBuilder):
    """Expand the `width` best nodes of each level by `width` children, and verify the best `nodes` of all nodes.

    A node's score is the product of the drafter's probabilities along its path. After the last level all proposed nodes
    are ranked by score, and the best are verified. The best nodes form a tree, because a child's score is at most its
    parent's. The whole tree is a function of the committed tokens. It is therefore verified by the rule for
    deterministic drafts, which is exact at every temperature, even though the selection of nodes depends on their
    tokens.

    Attributes:
        width: number of nodes expanded per level, and number of children proposed for each of them.
        nodes: number of verified nodes.
        ranked: whether the drafter processes a level's nodes in descending order of score, instead of in the order in
            which they were proposed. The order determines which random number each node of the next level gets.

    Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, §4.1 (expand) and §4.2 (rerank).
    """

    name: ClassVar[str] = "eagle-2"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.DETERMINISTIC
    has_fixed_shape: ClassVar[bool] = True
    width: int = param(3, **WIDTH)
    nodes: int = param(12, **NODES)
    ranked: bool = True

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Propose draft nodes level by level, rank all by score, and return the tree of the best nodes."""
        depth, nodes = plan.depth, plan.limit_nodes(self.nodes)
        candidates = [tree.root.best(max(self.width, TOP))]  # [w, k], at the nodes expanded last; more than are drafted
        logq, tokens = (each[:, : self.width] for each in candidates[-1])
        k = tokens.shape[1]
        tree.add(tokens[0])
        draft_logq = [logq[0]]
        scores = [logq[0]]  # log of the path's probability
        for _ in range(depth - 1):
            level = scores[-1]
            expanded = level.topk(min(self.width, level.shape[0])).indices
            if not self.ranked:
                expanded = expanded.sort().values
            distributions = tree.expand(expanded)
            if not tree.should_continue(distributions):
                break
            candidates.append(distributions.best(max(self.width, TOP)))
            logq, tokens = (each[:, : self.width] for each in candidates[-1])
            tree.add(tokens.reshape(-1), _fan(expanded.shape[0], k, tree.device))
            draft_logq.append(logq.reshape(-1))
            scores.append((level[expanded].unsqueeze(1) + logq).view(-1))
        # NaN of a failing drafter ranks last, so that the result is always a tree.
        ranking = torch.cat(scores).nan_to_num(-torch.inf)
        selection, rank = ranked(ranking, nodes)
        tree.close(selection)
        score = torch.cat(draft_logq).exp()
        ranked_tree = subtree(selection, torch.cat(tree.tokens), torch.cat(tree.parents), score, depth, k, tree.source)
        return replace(
            ranked_tree,
            explanation=TreeExplanation((RERANKED,), before=selection + 1, after=rank + 1),
            ranking=lambda: drafter_ranking(candidates, tree.expanded, selection),
        )


def most_promising(scores: Float[Tensor, " n"], nodes: int) -> Int[Tensor, " kept"]:
    """Return the indices of the draft nodes with the highest scores, ascending (EAGLE-2, Li et al. 2024, §4.2).

    A child's score is at most its parent's, and the child is added later. So a stable sort selects no child without its
    parent.

    Args:
        scores: scores of n nodes, in the order in which they were added.
        nodes: maximum number of nodes to return.
    """
    return ranked(scores, nodes)[0]


def ranked(scores: Float[Tensor, " n"], nodes: int) -> tuple[Int[Tensor, " kept"], Int[Tensor, " kept"]]:
    """Return the indices of the nodes with the highest scores, ascending, and each node's rank by score, from 0."""
    best = scores.sort(descending=True, stable=True).indices[:nodes].sort()
    return best.values, best.indices


def subtree(
    keep: Int[Tensor, " kept"],
    tokens: Int[Tensor, " n"],
    parents: Int[Tensor, " n"],
    score: Float[Tensor, " n"],
    depth: int,
    fanout: int,
    source: str,
) -> DraftTree:
    """Return the deterministic draft tree that consists of some of the proposed nodes.

    Args:
        keep: ascending indices of the nodes of the tree. The parent of each must be the root or also in `keep`.
        tokens: tokens of all proposed nodes.
        parents: index of each proposed node's parent; -1 below the root.
        score: the drafter's probability of each node after its parent.
        depth: planned maximum depth of the tree.
        fanout: maximum number of children of a node.
        source: name of the drafter in the trace.
    """
    above = parents[keep]
    return DraftTree(
        tokens=tokens[keep],
        parents=torch.where(above < 0, above, torch.searchsorted(keep, above)),
        logq=torch.zeros(keep.shape[0], device=keep.device),
        sampling=Sampling.DETERMINISTIC,
        depth=depth,
        fanout=fanout,
        source=source,
        score=score[keep],
    )


@lru_cache(maxsize=64)
def _fan(w: int, k: int, device: torch.device) -> Int[Tensor, " wk"]:
    """Return the index of each child's parent if w nodes have k children each: k times 0, k times 1, and so on.

    The tensor is cached, so callers must not write to it.
    """
    return torch.arange(w, device=device).repeat_interleave(k)

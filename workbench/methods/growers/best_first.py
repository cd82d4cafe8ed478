"""Expand what is most promising, then keep the best of all that was offered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.grown import Grown, GrowthRule
from workbench.core.params import param
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.growing import Growth
from workbench.engine.parts import Grower
from workbench.engine.plan import Plan
from workbench.methods.growers.shapes import NODES, WIDTH

RERANKED = GrowthRule(
    "eagle-2",
    "Expanded, then ranked again",
    "One of the most promising nodes of the level above offered it, promise being the product of the drafter's "
    "probabilities down the path. After the last level all that was offered was ranked by it, and the best stayed.",
    "place in the order of offers",
    "place among all offers",
)


@dataclass(frozen=True)
class BestFirst(Grower):
    """Expand the `width` most promising nodes of each level, offer `width` children each, keep the best `nodes`.

    A node's promise is the product of the drafter's probabilities along its path. After the last level all nodes
    offered are ranked again and the best are verified; a parent is never less promising than its child, so they form a
    tree. Children are a function of what is committed, hence the deterministic rule, which allows pruning by identity
    and keeps the target's law at every temperature.

    Attributes:
        width: nodes expanded a level, and children offered by each.
        nodes: nodes verified.
        ranked: the drafter reads a level's nodes from the most promising on, instead of in the order in which they were
            offered. It decides the order of the next level, and thereby which random number serves which node.

    Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, §4.1 (expand) and §4.2 (rerank).
    """

    name: ClassVar[str] = "eagle-2"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.DETERMINISTIC
    width: int = param(3, **WIDTH)
    nodes: int = param(12, **NODES)
    ranked: bool = True

    def grow(self, growth: Growth, plan: Plan) -> DraftTree:
        """Grow, rank, keep."""
        depth, nodes = plan.depth, plan.within(self.nodes)
        logq, tokens = growth.root.best(self.width)  # [w, k], the children of the nodes expanded last
        k = tokens.shape[1]
        growth.add(tokens[0])
        said = [logq[0]]
        scores = [logq[0]]  # log of the path's probability
        for _ in range(depth - 1):
            level = scores[-1]
            chosen = level.topk(min(self.width, level.shape[0])).indices
            if not self.ranked:
                chosen = chosen.sort().values
            laws = growth.expand(chosen)
            if not growth.goes_on(laws):
                break
            logq, tokens = laws.best(self.width)
            growth.add(tokens.view(-1), _fan(chosen.shape[0], k, growth.device))
            said.append(logq.view(-1))
            scores.append((level[chosen].unsqueeze(1) + logq).view(-1))
        ranking = torch.cat(scores).nan_to_num(-torch.inf)  # a drafter that fails ranks last, and it is still a tree
        keep, place = ranked(ranking, nodes)
        growth.close(keep)
        score = torch.cat(said).exp()
        tree = subtree(keep, torch.cat(growth.tokens), torch.cat(growth.parents), score, depth, k, growth.source)
        return replace(tree, grown=Grown((RERANKED,), before=keep + 1, after=place + 1))


def most_promising(scores: Float[Tensor, " n"], nodes: int) -> Int[Tensor, " kept"]:
    """The nodes of the highest scores (EAGLE-2, Li et al. 2024, §4.2), in the order in which they were added.

    A child is at most as promising as its parent and comes behind it: a stable order never parts them.
    """
    return ranked(scores, nodes)[0]


def ranked(scores: Float[Tensor, " n"], nodes: int) -> tuple[Int[Tensor, " kept"], Int[Tensor, " kept"]]:
    """The same nodes, and the place of each in the ranking, from 0."""
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
    """The deterministic draft tree of the kept nodes, whose parents are kept, too.

    Args:
        keep: ascending indices of nodes.
        tokens: of all nodes.
        parents: index of each node's parent; -1 below the root.
        score: the drafter's probability of each node after its parent.
        depth: of the plan.
        fanout: most children of a node.
        source: what the trace calls the drafter.
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
    """The parent of each child where w nodes have k each: 0 … 0 1 … 1. Shared, never written to."""
    return torch.arange(w, device=device).repeat_interleave(k)

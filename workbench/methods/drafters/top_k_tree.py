"""A tree of the draft model's likeliest continuations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.core.params import param
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.parts import Plan
from workbench.engine.request import Row
from workbench.methods.drafters.grow import TreeFromModel


@dataclass(frozen=True)
class TopKTree(TreeFromModel):
    """Expand the `width` most promising nodes of each level, offer `width` children each, keep the best `nodes`.

    A node's promise is the product of draft probabilities along its path. After the last level all nodes offered are
    ranked again and the best are verified; a parent is never less promising than its child, so they form a tree.
    Children are a function of what is committed, hence the deterministic rule, which allows pruning by identity.

    Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, §4.1 (expand) and §4.2 (rerank), with a separate draft model.
    """

    width: int = param(3, ge=1, le=8, doc="nodes expanded a level, and children offered by each")
    nodes: int = param(12, ge=1, le=96, doc="nodes verified a round")

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """Grow, rank, keep."""
        growth, p = self.begin(row)
        k = min(self.width, p.shape[1])
        best = p.topk(k, dim=1)
        score = best.values[0].log()  # [n] log of the path's probability
        frontier = growth.add(best.indices[0], torch.full((k,), -1, device=growth.device))
        chances = [best.values[0]]
        for _ in range(plan.depth - 1):
            expand = score[frontier].topk(min(self.width, len(frontier))).indices.sort().values
            chosen = frontier[expand]
            best = growth.expand(chosen).topk(k, dim=1)  # [w, k]
            parents = chosen.repeat_interleave(k)
            score = torch.cat([score, score[parents] + best.values.reshape(-1).log()])
            chances.append(best.values.reshape(-1))
            frontier = growth.add(best.indices.reshape(-1), parents)
        keep = score.topk(min(self.nodes, growth.n)).indices.sort().values  # a parent ties at best: see below
        tokens, parents = torch.cat(growth.tokens), torch.cat(growth.parents)
        keep = _closed(keep, parents, score)
        new_index = torch.full((growth.n + 1,), -1, dtype=torch.long, device=growth.device)
        new_index[keep] = torch.arange(len(keep), device=growth.device)
        self.finish(row, growth, keep.tolist())
        return DraftTree(
            tokens=tokens[keep],
            parents=new_index[parents[keep]],
            logq=torch.zeros(len(keep), device=growth.device),
            sampling=Sampling.DETERMINISTIC,
            depth=plan.depth,
            fanout=k,
            source="draft-tree",
            score=torch.cat(chances)[keep],
        )


def _closed(keep: torch.Tensor, parents: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    """Drop nodes whose parent was not kept: possible only when a child of probability 1 ties with its parent."""
    kept = torch.zeros(len(parents) + 1, dtype=torch.bool, device=keep.device)
    kept[keep] = True
    kept[-1] = True  # the root, index −1
    while True:
        good = kept[parents[keep]]
        if bool(good.all()):
            return keep
        kept[keep[~good]] = False
        keep = keep[good]

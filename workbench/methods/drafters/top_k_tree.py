"""A tree of the draft model's likeliest continuations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.core.params import param
from workbench.core.tree import DraftTree
from workbench.engine.parts import Plan
from workbench.engine.request import Row
from workbench.methods.drafters.grow import TreeFromModel, most_promising, subtree


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
        best = p.topk(k, dim=1)  # [w, k], the children of the nodes expanded last
        growth.add(best.indices[0])
        chances = [best.values[0]]
        scores = [chances[0].log()]  # of the path's probability
        for _ in range(plan.depth - 1):
            level = scores[-1]
            chosen = level.topk(min(self.width, level.shape[0])).indices.sort().values
            best = growth.expand(chosen).topk(k, dim=1)
            below = torch.arange(chosen.shape[0], device=growth.device).repeat_interleave(k)
            growth.add(best.indices.view(-1), below)
            chances.append(best.values.view(-1))
            scores.append((level[chosen].unsqueeze(1) + best.values.log()).view(-1))
        ranking = torch.cat(scores).nan_to_num(-torch.inf)  # a draft model that fails ranks last, and is still a tree
        keep = most_promising(ranking, self.nodes)
        self.finish(row, growth, keep)
        tokens, parents, score = torch.cat(growth.tokens), torch.cat(growth.parents), torch.cat(chances)
        return subtree(keep, tokens, parents, score, plan.depth, k, "draft-tree")

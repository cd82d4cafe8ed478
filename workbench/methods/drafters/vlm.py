"""Draft models for vision-language targets: one that leaves the pictures out, one that looks at them itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from workbench.core.tree import DraftTree, Sampling
from workbench.engine.attribution import explain_draft_model
from workbench.engine.models import Models
from workbench.engine.parts import Outcome, Plan
from workbench.engine.request import Request, Row
from workbench.engine.runner import Slot
from workbench.methods.drafters.chain import draft_chain
from workbench.methods.drafters.draft_model import DraftModel, keep_chain, read_committed, unread
from workbench.methods.drafters.grow import GrowthState, TreeFromModel
from workbench.methods.policies.dynamic_tree import DynamicTree

MOST_NODES = 96
"""Nodes of one tree."""


@dataclass(frozen=True)
class BlindDraftModel(DraftModel):
    """Draft from the text alone: image tokens are left out of the prompt, and positions close up behind them.

    What it drafts does not depend on the picture, so it shows what the language alone tells.

    Source: Gagrani et al. 2024, arXiv:2404.08856, §3.
    """

    needs: ClassVar[tuple[str, ...]] = ("drafter", "pictures")
    blind: ClassVar[bool] = True
    source: ClassVar[str] = "vlm-text-only"

    def prime(self, row: Row, models: Models) -> Slot:
        """Take a row of the draft model's cache and read the text part of the prompt and all that was generated."""
        return read_committed(row, models, blind=True)


@dataclass(frozen=True)
class SeeingDraftModel(TreeFromModel):
    """Run a small vision-language model ahead; it reads the pictures by its own processor and vision tower.

    A chain, or with the policy `dynamic-tree` a tree: every continuation whose path reaches the policy's threshold is
    offered, at most so many at each node.

    Source: Ganesan et al. 2025, MASSV, arXiv:2505.10526 (chain); Huo et al. 2025, Spec-LLaVA, arXiv:2509.11961 (tree).
    """

    needs: ClassVar[tuple[str, ...]] = ("drafter", "pictures", "sight")

    def propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """Chains in lock-step, trees one after the other."""
        chains = [row for row in rows if not isinstance(row.policy, DynamicTree)]
        trees: dict[int, DraftTree] = {}
        if chains:
            models = chains[0].models
            assert models.drafter is not None
            slots = [row.state.slot for row in chains]
            feed = [unread(row, models, slot) for row, slot in zip(chains, slots, strict=True)]
            drafted = draft_chain(chains, models.drafter, slots, feed, "vlm-draft")
            trees = {id(row): tree for row, tree in zip(chains, drafted, strict=True)}
        return [trees[id(row)] if id(row) in trees else self.propose_row(row, row.plan) for row in rows]

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """Grow a tree, all nodes of a level at a time."""
        policy = row.policy
        assert isinstance(policy, DynamicTree)
        growth, p = self.begin(row)
        k = min(policy.children, p.shape[1])
        path = p.new_ones(1)  # probability of the path to each node expanded last
        chances = []
        for level in range(plan.depth):
            best = p.topk(k, dim=1)
            reached = path.unsqueeze(1) * best.values  # [w, k]
            offered = reached >= policy.path_threshold
            offered[0, 0] |= level == 0
            places = offered.nonzero()  # siblings stay in the order of their probability
            room = MOST_NODES - growth.n
            if len(places) > room:
                places = places[reached[offered].topk(room).indices.sort().values]
            if not len(places):
                break
            below, child = places.unbind(1)
            growth.add(best.indices[below, child], below if level else None)
            path = reached[below, child]
            chances.append(best.values[below, child])
            if level + 1 < plan.depth:
                p = growth.expand()
        self.finish(row, growth)
        return DraftTree(
            tokens=torch.cat(growth.tokens),
            parents=torch.cat(growth.parents),
            logq=torch.zeros(growth.n, device=growth.device),
            sampling=Sampling.DETERMINISTIC,
            depth=len(chances),
            fanout=k,
            source="vlm-draft",
            score=torch.cat(chances),
        )

    def explain(
        self, models: Models, request: Request, tokens: Sequence[int], told: Callable[[float], None] = lambda _: None
    ) -> dict[str, Any] | None:
        """Maps over the draft model's own vision tokens."""
        return explain_draft_model(models, request, tokens, told)

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Keep what was read and accepted, of a tree or of a chain."""
        state: GrowthState = row.state
        if state.scratch_of:
            super().observe(row, outcome)
        else:
            keep_chain(row, state.slot, outcome)

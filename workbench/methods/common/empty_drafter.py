"""Drafter of plain decoding: every draft is empty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Drafter, Plan
from workbench.engine.request import Sequence


@dataclass(frozen=True)
class EmptyDrafter(Drafter):
    """Propose the empty tree, so that every round is one step of plain decoding: the baseline of every speed-up."""

    is_empty: ClassVar[bool] = True

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, because the empty tree has no sampled nodes."""
        return frozenset({Sampling.DETERMINISTIC})

    def runs_on_device(self, sequence: Sequence) -> bool:
        """Return True, because an empty draft needs no committed tokens on the host."""
        return True

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Return the empty tree."""
        return DraftTree.empty(device=sequence.models.target.device)

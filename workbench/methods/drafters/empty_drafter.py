"""No draft: every round is one plain decoding step."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Drafter, Plan
from workbench.engine.request import Sequence


@dataclass(frozen=True)
class EmptyDrafter(Drafter):
    """Propose the empty tree: the baseline of every speed-up, on the same engine."""

    def siblings(self) -> frozenset[Sampling]:
        """Return the deterministic kind; the empty tree has no siblings."""
        return frozenset({Sampling.DETERMINISTIC})

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Return the empty tree."""
        assert sequence.models is not None
        return DraftTree.empty(device=sequence.models.target.device)

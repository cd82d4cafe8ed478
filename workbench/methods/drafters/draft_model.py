"""A smaller language model drafts a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.core.tree import DraftTree
from workbench.engine.models import Models
from workbench.engine.parts import Drafter, Outcome
from workbench.engine.request import Row
from workbench.engine.runner import Slot
from workbench.methods.drafters.chain import draft_chain


@dataclass(frozen=True)
class DraftModel(Drafter):
    """Run a separate model ahead of the target, one token at a time.

    The draft model keeps its own cache. Accepted tokens it has already read stay in it; the token the target added, and
    a last draft that was accepted but never read, are fed at the start of the next round.

    Source: Leviathan et al. 2023, arXiv:2211.17192, §2.1; Chen et al. 2023, arXiv:2302.01318, Algorithm 2.
    """

    needs: ClassVar[tuple[str, ...]] = ("drafter",)

    def prime(self, row: Row, models: Models) -> Slot:
        """Take a row of the draft model's cache and read everything committed but the last token."""
        return read_committed(row, models)

    def propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """Chains for all rows in lock-step."""
        models = rows[0].models
        assert models is not None
        assert models.drafter is not None
        slots = [row.state for row in rows]
        return draft_chain(rows, models.drafter, slots, [unread(row, models, row.state) for row in rows], "draft-model")

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Keep what was read and accepted: the unread part, then the accepted drafts."""
        slot: Slot = row.state
        behind = len(row.committed) - len(outcome.emitted) - slot.length
        read = max(0, slot.scratch - behind)
        slot.length += behind + min(len(outcome.verdict.path), read) if slot.scratch else 0
        slot.scratch = 0

    def release(self, row: Row, models: Models) -> None:
        """Give the cache row back."""
        if models.drafter is not None and row.state is not None:
            models.drafter.close(row.state)


def read_committed(row: Row, models: Models) -> Slot:
    """A new row of the draft model's cache that holds everything committed but the last token."""
    assert models.drafter is not None
    slot = models.drafter.open()
    if len(row.committed) > 1:
        models.drafter.prefill(slot, row.committed[:-1])
    return slot


def unread(row: Row, models: Models, slot: Slot) -> torch.Tensor:
    """Committed tokens that the draft model's cache lacks, int64 [n], n ≥ 1."""
    assert models.drafter is not None
    slot.scratch = 0
    return torch.tensor(row.committed[slot.length :], device=models.drafter.device)

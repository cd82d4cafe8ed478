"""Base class of truncated targets that draft."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.models.runner import Runner


@dataclass(frozen=True, slots=True)
class PartOfTarget:
    """Properties that `draft_chain` needs besides a forward: the target's own."""

    target: Runner

    @property
    def device(self) -> torch.device:
        """The target's."""
        return self.target.device

    @property
    def vocab_size(self) -> int:
        """The target's."""
        return self.target.vocab_size

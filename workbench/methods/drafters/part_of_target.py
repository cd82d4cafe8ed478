"""Base class of truncated targets that draft."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.models.runner import Runner


@dataclass(frozen=True, slots=True)
class PartOfTarget:
    """Base class with the properties that `draft_chain` needs besides a forward, taken from the target."""

    target: Runner

    @property
    def device(self) -> torch.device:
        """Device of the target."""
        return self.target.device

    @property
    def vocab_size(self) -> int:
        """Size of the target's vocabulary."""
        return self.target.vocab_size

"""Base class of parts of the target that are used as draft models."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.models.runner import Runner


@dataclass(frozen=True, slots=True)
class PartialTarget:
    """Base class with the properties of the target that `draft_chain` needs in addition to a forward pass."""

    target: Runner

    @property
    def device(self) -> torch.device:
        """Return the device of the target."""
        return self.target.device

    @property
    def vocab_size(self) -> int:
        """Return the size of the target's vocabulary."""
        return self.target.vocab_size

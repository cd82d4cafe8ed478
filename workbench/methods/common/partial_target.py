"""Base class of draft models that consist of some layers of the target."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbench.models.runner import Runner


@dataclass(frozen=True, slots=True)
class PartialTarget:
    """Base class of draft models that consist of layers of the target.

    It has the properties that `draft_chain` needs in addition to a forward pass.
    """

    target: Runner

    @property
    def device(self) -> torch.device:
        """Return the device of the target."""
        return self.target.device

    @property
    def vocab_size(self) -> int:
        """Return the size of the target's vocabulary."""
        return self.target.vocab_size

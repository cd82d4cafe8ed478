"""Type for a copy of a model that shares most of its weights and runs in the model's place, on its KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from workbench.kernels.lean import LeanDecoder


@dataclass(frozen=True, eq=False)  # without slots: weak references point to it
class WeightSharingCopy:
    """Copy of a runner's model that shares its weights; `Runner.forward` can run it instead of the model.

    Attributes:
        model: the copy, with the layers of the runner's model or replacements for them.
        lean: decoder of `model` with few operations per layer; None: use the forward pass of `model`.
    """

    model: PreTrainedModel
    lean: LeanDecoder | None = None

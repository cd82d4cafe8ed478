"""Type for a copy of a model that shares most of its weights and runs in the model's place, on its KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from workbench.kernels.lean import LeanDecoder


@dataclass(frozen=True, eq=False)  # without slots: weak references point to it
class WeightSharingCopy:
    """Weight-sharing copy that `Runner.forward` runs instead of its own model.

    Attributes:
        model: model with the layers of the runner's model, or replacements for them.
        lean: lean decoder of `model`; None: use the forward pass of `model`.
    """

    model: PreTrainedModel
    lean: LeanDecoder | None = None

"""A copy of a model that shares most of its weights and runs instead of it, over its KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from workbench.kernels.lean import LeanDecoder


@dataclass(frozen=True, eq=False)  # without slots: weak references point to it
class WeightSharingCopy:
    """Weight-sharing copy that `Runner.forward` runs instead of its own model.

    Attributes:
        model: model with the layers of the runner's own, or replacements for them.
        lean: the same as a lean decoder; None: the model's own forward runs.
    """

    model: PreTrainedModel
    lean: LeanDecoder | None = None

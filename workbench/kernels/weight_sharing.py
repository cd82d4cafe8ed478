"""A copy of a model that shares most of its weights, and runs in its place over its cache."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from workbench.kernels.lean import LeanDecoder


@dataclass(frozen=True, eq=False)  # without slots: it is referred to weakly
class Twin:
    """What `Runner.forward` runs instead of its own model.

    Attributes:
        model: with the layers of the runner's own, or others in their places.
        lean: the same as a lean decoder; None: the model's own forward runs.
    """

    model: PreTrainedModel
    lean: LeanDecoder | None = None

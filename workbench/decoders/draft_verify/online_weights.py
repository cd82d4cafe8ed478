"""Online training of a drafter's weights: inspect, save, load and reset the trained weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.core.transfer import from_numpy
from workbench.decoders.draft_verify.inspectable_state import (
    MOST_BYTES,
    Arrays,
    InspectableState,
    StateEntry,
    StateSummary,
    check_array,
)

MAX_STEPS = 100_000
"""Maximum number of training steps of an online trainer, which trains a drafter while it drafts."""
FURTHEST = 8.0
"""Maximum absolute change of a weight by training that is accepted from a file; larger changes raise an error."""
FINGERPRINT_KEY, STEPS_KEY = "whose", "lessons"
"""Names of two arrays in a file with trained weights: fingerprint of the original weights, number of steps."""
_NORMED = 1e-12


class OnlineTrainer(ABC):
    """Copy of a drafter's weights that is trained further during decoding.

    Attributes:
        label: name of the trained weights for users.
        n_steps: number of training steps.
        loss: loss of the last training step; NaN before the first step.
    """

    label: ClassVar[str]
    n_steps: int = 0
    loss: float = float("nan")

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Return the hexadecimal fingerprint of the original, untrained weights."""

    def matches(self, fingerprint: str) -> bool:
        """Return whether a fingerprint is that of the original, untrained weights."""
        return fingerprint == self.fingerprint

    @abstractmethod
    def pairs(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield name, current value and original value of each trained weight. Callers may change the current value."""

    @abstractmethod
    def use_weights(self) -> None:
        """Draft with the current state of the trained weights from now on."""

    @abstractmethod
    def reset(self) -> None:
        """Reset the trainer to the original weights, with a new optimiser."""

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """Return the memory of the trained weights and of everything needed for training, in bytes."""

    @property
    def most_bytes(self) -> int:
        """Return the maximum memory of the trained weights and of everything needed for training, in bytes."""
        return self.n_bytes

    def reset_weights(self) -> None:
        """Reset every weight to its original value, and the number of training steps to 0."""
        with torch.inference_mode(False), torch.no_grad():
            for _, weight, origin in self.pairs():
                weight.copy_(origin)
        self.n_steps, self.loss = 0, float("nan")

    def relative_changes(self) -> dict[str, float]:
        """Return how much training has changed each weight tensor: norm of the change / norm of the original."""
        return {
            name: float((change.square().sum() / origin.to(change).square().sum().clamp_min(_NORMED)).sqrt())
            for name, change, origin in self._changes()
        }

    def differences(self) -> dict[str, np.ndarray]:
        """Return the change of each weight by online training, by name.

        The values are float16 if float32 would exceed the maximum size of a file.
        """
        changes = [(name, change) for name, change, _ in self._changes()]
        fits = 4 * sum(change.numel() for _, change in changes) <= MOST_BYTES - (64 << 10)
        kind = torch.float32 if fits else torch.float16
        return {name: change.to(kind).cpu().numpy() for name, change in changes}

    def add(self, moves: Mapping[str, np.ndarray], n_steps: int) -> None:
        """Add saved weight changes (from `differences`) and their number of training steps to the current weights."""
        with torch.inference_mode(False), torch.no_grad():
            for name, weight, _ in self.pairs():
                weight.add_(from_numpy(moves[name]).to(weight))
        self.n_steps += n_steps
        self.use_weights()

    def _changes(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield each weight's name, its change by training (float32 or wider), and its original value."""
        with torch.inference_mode(False), torch.no_grad():
            for name, weight, origin in self.pairs():
                wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
                yield name, weight.to(wide) - origin.to(wide), origin


_L = TypeVar("_L", bound=OnlineTrainer)


class TrainedState(InspectableState, Generic[_L]):
    """Inspectable state of an online-trained drafter, for one sequence.

    Attributes:
        trainable: trained weights, either of this sequence alone or common to all requests with the same setting.
        title: display name.
    """

    unit = "training steps"

    def __init__(self, trainable: _L, shared: bool) -> None:
        self.trainable, self.shared = trainable, shared
        self.title = f"Changes of the {trainable.label}'s weights by online training"

    def summarise(self, n: int) -> StateSummary:
        """Return a summary of the trained weights: their size, and the weights that training has changed most."""
        weights = self.trainable
        changes = sorted(weights.relative_changes().items(), key=lambda item: -item[1])[:n]
        top = [StateEntry((), (), 100 * share, name) for name, share in changes if share]
        return StateSummary(
            weights.n_steps,
            MAX_STEPS,
            weights.n_bytes,
            weights.most_bytes,
            "change of a weight matrix, in percent of its norm",
            top,
        )

    def pack(self) -> Arrays:
        """Return the change of each weight, the number of training steps, and the original weights' fingerprint."""
        digits = np.array([int(digit, 16) for digit in self.trainable.fingerprint])
        return self.trainable.differences() | {FINGERPRINT_KEY: digits, STEPS_KEY: np.array([self.trainable.n_steps])}

    def merge(self, arrays: Arrays, vocabulary: int) -> None:
        """Add the weight changes in a saved state to the current weights."""
        weights = self.trainable
        digits = "".join(
            f"{digit:x}"
            for digit in check_array(arrays, FINGERPRINT_KEY, (None,), 0, 16, whole=True).astype(int).tolist()
        )
        if not weights.matches(digits):
            raise ModelError(
                f"The file of weight changes is damaged, or belongs to another {weights.label}.",
                f"Use the {weights.label} for which the file was saved, or start without the file.",
            )
        n_steps = int(check_array(arrays, STEPS_KEY, (1,), 0, MAX_STEPS, whole=True)[0])
        shapes = {name: tuple(weight.shape) for name, weight, _ in weights.pairs()}
        weights.add(
            {name: check_array(arrays, name, shape, -FURTHEST, FURTHEST) for name, shape in shapes.items()}, n_steps
        )

    def clear(self) -> None:
        """Reset the trained weights to the original weights."""
        self.trainable.reset()

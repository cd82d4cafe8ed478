"""Weights that go on learning while they draft, and what a row has of them: looked at, saved, loaded and emptied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.core.transfer import of_numpy
from workbench.engine.drafter_state import MOST_BYTES, Arrays, Look, Owned, Top, numbers

MOST_LESSONS = 100_000
"""A learner learns no more after so many."""
FURTHEST = 8.0
"""No weight moves further: what a file says beyond is no lesson."""
WHOSE, LESSONS = "whose", "lessons"
"""Names in a file, beside those of the weights: where the learner began, digit by digit, and the count."""
_NORMED = 1e-12


class Learner(ABC):
    """A copy of trained weights that learns from what decoding meets.

    Attributes:
        called: what began, for people.
        lessons: so many steps were taken.
        loss: of the last one; NaN before the first.
    """

    called: ClassVar[str]
    lessons: int = 0
    loss: float = float("nan")

    @property
    @abstractmethod
    def whose(self) -> str:
        """Hexadecimal digits of what it began as."""

    def began_as(self, whose: str) -> bool:
        """Whether these digits are of what it began as."""
        return whose == self.whose

    @abstractmethod
    def pairs(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name of each weight, the weight as it is, which may be written to, and as it began."""

    @abstractmethod
    def settle(self) -> None:
        """Draft from now on with the weights as they are."""

    @abstractmethod
    def forget(self) -> None:
        """Be again what was trained, with an optimiser that knows of nothing."""

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """In memory, with all that is kept to learn."""

    @property
    def most_bytes(self) -> int:
        """The same at its bound."""
        return self.n_bytes

    def begin_again(self) -> None:
        """Every weight is again what it began as, and no lesson was given."""
        with torch.inference_mode(False), torch.no_grad():
            for _, mine, origin in self.pairs():
                mine.copy_(origin)
        self.lessons, self.loss = 0, float("nan")

    def moved(self) -> dict[str, float]:
        """By weight: how far it is from where it began, as a share of its length there."""
        return {
            name: float((change.square().sum() / origin.to(change).square().sum().clamp_min(_NORMED)).sqrt())
            for name, change, origin in self._changes()
        }

    def differences(self) -> dict[str, np.ndarray]:
        """What was learnt, by the name of the weight; as float16 where a file would not hold it as float32."""
        changes = [(name, change) for name, change, _ in self._changes()]
        fits = 4 * sum(change.numel() for _, change in changes) <= MOST_BYTES - (64 << 10)
        kind = torch.float32 if fits else torch.float16
        return {name: change.to(kind).cpu().numpy() for name, change in changes}

    def add(self, moves: Mapping[str, np.ndarray], lessons: int) -> None:
        """Take in what `differences` gave, with names and shapes of these weights, and how many lessons made it."""
        with torch.inference_mode(False), torch.no_grad():
            for name, mine, _ in self.pairs():
                mine.add_(of_numpy(moves[name]).to(mine))
        self.lessons += lessons
        self.settle()

    def _changes(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name of each weight, how far it is from where it began, in float32 at least, and where that was."""
        with torch.inference_mode(False), torch.no_grad():
            for name, mine, origin in self.pairs():
                wide = torch.float64 if mine.dtype == torch.float64 else torch.float32
                yield name, mine.to(wide) - origin.to(wide), origin


_L = TypeVar("_L", bound=Learner)


class Learnt(Owned, Generic[_L]):
    """What a row has of a learner.

    Attributes:
        learner: of this row alone, or of all that chose to share it.
        title: what it is, for people.
    """

    unit = "lessons"

    def __init__(self, learner: _L, shared: bool) -> None:
        self.learner, self.shared = learner, shared
        self.title = f"Changes of the {learner.called} by online training"

    def look(self, n: int) -> Look:
        """The weights that moved furthest."""
        mine = self.learner
        moved = sorted(mine.moved().items(), key=lambda item: -item[1])[:n]
        top = [Top((), (), 100 * share, name) for name, share in moved if share]
        return Look(mine.lessons, MOST_LESSONS, mine.n_bytes, mine.most_bytes, "moved, in percent of its length", top)

    def pack(self) -> Arrays:
        """How far each weight moved, in how many lessons, and whose weights they are."""
        whose = np.array([int(digit, 16) for digit in self.learner.whose])
        return self.learner.differences() | {WHOSE: whose, LESSONS: np.array([self.learner.lessons])}

    def take(self, arrays: Arrays, vocabulary: int) -> None:
        """Move the weights once more as far as the file says."""
        mine = self.learner
        whose = "".join(
            f"{digit:x}" for digit in numbers(arrays, WHOSE, (None,), 0, 16, whole=True).astype(int).tolist()
        )
        if not mine.began_as(whose):
            raise ModelError(
                f"The file is broken, or is of another {mine.called}.",
                f"Take the {mine.called} that it was saved with, or start without the file.",
            )
        lessons = int(numbers(arrays, LESSONS, (1,), 0, MOST_LESSONS, whole=True)[0])
        shapes = {name: tuple(weight.shape) for name, weight, _ in mine.pairs()}
        mine.add({name: numbers(arrays, name, shape, -FURTHEST, FURTHEST) for name, shape in shapes.items()}, lessons)

    def clear(self) -> None:
        """Be again what was trained."""
        self.learner.forget()

"""Values and sequences (as in Python) of numbers that are computed when they are first read.

Verification walks down a draft tree and ends at one position, so the tokens to emit at other positions are never read.
Lazy sequences are used only on the host: a GPU computes all numbers at once, with one synchronisation per round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from workbench.core.transfer import to_host, to_list

T = TypeVar("T", int, float)
M = TypeVar("M")


class LazySequence(Sequence[T], Generic[T]):
    """Sequence of n numbers, each computed at its first use and then cached.

    Args:
        n: length.
        make: function that computes the numbers [k] at distinct indices, int64 [k].

    Example:
        >>> squares = LazySequence[int](4, lambda at: at * at)
        >>> squares[3], squares.take([1, 3]), list(squares)
        (9, [1, 9], [0, 1, 4, 9])
    """

    def __init__(self, n: int, make: Callable[[Int[Tensor, " k"]], Shaped[Tensor, " k"]]) -> None:
        self._n, self._make, self._cache = n, make, dict[int, T]()

    def take(self, at: Sequence[int]) -> list[T]:
        """Return the lazy sequence's numbers at the indices `at`. Numbers not yet cached are computed in one call."""
        new = [i for i in dict.fromkeys(at) if i not in self._cache]
        if new:
            self._cache.update(zip(new, to_list(self._make(torch.tensor(new))), strict=True))
        return [self._cache[i] for i in at]

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        indices = range(self._n)[at]  # raises the same errors as a list
        return self.take([indices])[0] if isinstance(indices, int) else self.take(indices)

    def tolist(self) -> list[T]:
        """Compute all numbers of the lazy sequence and return them as a list, as `Tensor.tolist` does."""
        return self[:]


class LazyValue(Generic[M]):
    """Value that is computed at its first use and then cached.

    Example:
        >>> sums = LazyValue(lambda: sum(range(5)))
        >>> sums(), sums()
        (10, 10)
    """

    __slots__ = ("_cache", "_make")

    def __init__(self, make: Callable[[], M]) -> None:
        self._make, self._cache = make, list[M]()

    def __call__(self) -> M:
        if not self._cache:
            self._cache.append(self._make())
        return self._cache[0]


def to_host_lazily(numbers: Sequence[Tensor | LazySequence[Any]]) -> list[Any]:
    """Copy tensors to Python lists with one GPU synchronisation, and return lazy sequences unevaluated."""
    lists = iter(to_host([item for item in numbers if not isinstance(item, LazySequence)]))
    return [item if isinstance(item, LazySequence) else next(lists) for item in numbers]


def take(numbers: Sequence[T], at: Sequence[int]) -> list[T]:
    """Return the numbers of a list or a `LazySequence` at the indices `at`.

    A lazy sequence computes them in one call.
    """
    return numbers.take(at) if isinstance(numbers, LazySequence) else [numbers[i] for i in at]

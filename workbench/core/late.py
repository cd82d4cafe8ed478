"""Figures that are made when they are asked for: a walk ends at one place, and what the others would emit nobody reads.

Only where the host computes them: a device is asked once a round, for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from workbench.core.transfer import listed, to_host

T = TypeVar("T", int, float)
M = TypeVar("M")


class Late(Sequence[T], Generic[T]):
    """A sequence of n numbers, each made once.

    Args:
        n: how many there are.
        make: int64 [k], different indices → their numbers [k].

    Example:
        >>> squares = Late[int](4, lambda at: at * at)
        >>> squares[3], squares.some([1, 3]), list(squares)
        (9, [1, 9], [0, 1, 4, 9])
    """

    def __init__(self, n: int, make: Callable[[Int[Tensor, " k"]], Shaped[Tensor, " k"]]) -> None:
        self._n, self._make, self._made = n, make, dict[int, T]()

    def some(self, at: Sequence[int]) -> list[T]:
        """The numbers at these indices; those that are new are made together."""
        new = [i for i in dict.fromkeys(at) if i not in self._made]
        if new:
            self._made.update(zip(new, listed(self._make(torch.tensor(new))), strict=True))
        return [self._made[i] for i in at]

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        indices = range(self._n)[at]  # raises what a list raises
        return self.some([indices])[0] if isinstance(indices, int) else self.some(indices)

    def tolist(self) -> list[T]:
        """All of them, as a tensor gives them."""
        return self[:]


class Once(Generic[M]):
    """What is made when it is first asked for, and kept.

    Example:
        >>> sums = Once(lambda: sum(range(5)))
        >>> sums(), sums()
        (10, 10)
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], M]) -> None:
        self._make, self._made = make, list[M]()

    def __call__(self) -> M:
        if not self._made:
            self._made.append(self._make())
        return self._made[0]


def carry(numbers: Sequence[Tensor | Late[Any]]) -> list[Any]:
    """Tensors to lists with one synchronisation, as `to_host` does it; what is late stays so."""
    lists = iter(to_host([each for each in numbers if not isinstance(each, Late)]))
    return [each if isinstance(each, Late) else next(lists) for each in numbers]


def some(numbers: Sequence[T], at: Sequence[int]) -> list[T]:
    """Those of a sequence at some indices, made together where they are late."""
    return numbers.some(at) if isinstance(numbers, Late) else [numbers[i] for i in at]

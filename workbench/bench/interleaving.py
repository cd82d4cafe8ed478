"""Interleaving: all contenders run on a prompt before the next prompt begins, in changing order.

So a slow minute of the machine affects all contenders alike, and no contender always runs first. With two contenders
the order is AB BA AB BA, so that drift affects both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def rotate(items: Sequence[T], number: int) -> list[T]:
    """Return the items in cyclic order, starting one later in each turn.

    Example:
        >>> [rotate("ABC", n) for n in range(3)]
        [['A', 'B', 'C'], ['B', 'C', 'A'], ['C', 'A', 'B']]
    """
    shift = number % len(items)
    return [*items[shift:], *items[:shift]]


def interleave(items: Sequence[T], prompts: int, repeats: int) -> Iterator[tuple[int, int, T]]:
    """Yield index of the prompt, repetition and item of each run, in the order in which they are measured."""
    for prompt in range(prompts):
        for repeat in range(repeats):
            for item in rotate(items, prompt + repeat):
                yield prompt, repeat, item

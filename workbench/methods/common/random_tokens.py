"""Initial guesses for drafters that refine their guesses: random tokens of the text."""

from __future__ import annotations

from workbench.core.random_stream import Purpose
from workbench.engine.request import Sequence


def sample_from_text(sequence: Sequence, n: int, level: int = 0) -> list[int]:
    """Return `n` tokens from random positions of the sequence's text. All positions are equally likely.

    Args:
        sequence: the sequence. Its seed and the length of its text determine the random numbers.
        n: number of tokens.
        level: number that distinguishes several draws at the same text length.
    """
    text = sequence.committed
    return [text[int(u * len(text))] for u in sequence.random_stream.uniform(len(text), Purpose.GUESS, n, level)]

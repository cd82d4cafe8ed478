"""Initial guesses for drafters that refine their guesses: random tokens of the text."""

from __future__ import annotations

from workbench.core.random_stream import Purpose
from workbench.engine.request import Sequence


def sample_from_text(sequence: Sequence, n: int, level: int = 0) -> list[int]:
    """Return `n` random tokens of the sequence's text, uniformly over its positions.

    Args:
        sequence: the sequence. The draw depends on its seed and on the length of its text.
        n: number of tokens.
        level: index of the draw among the draws at the same text length.
    """
    text = sequence.committed
    return [text[int(u * len(text))] for u in sequence.random_stream.uniform(len(text), Purpose.GUESS, n, level)]

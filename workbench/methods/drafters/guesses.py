"""What a drafter that improves on its own guesses begins with: tokens of the text, drawn from the run's numbers."""

from __future__ import annotations

from workbench.core.draw import Purpose
from workbench.engine.request import Row


def drawn_from_text(row: Row, n: int, level: int = 0) -> list[int]:
    """`n` tokens of the row's text, each place of it alike.

    Args:
        row: whose text it is; drawn are the numbers that belong to its length.
        n: how many.
        level: apart from others at that length.
    """
    text = row.committed
    return [text[int(u * len(text))] for u in row.draw.uniform(len(text), Purpose.GUESS, n, level)]

"""Tokens of a text as plain data: those that became final, and those that may still be taken back."""

from __future__ import annotations

from dataclasses import dataclass

CORRECTED, BONUS, PLAIN = "corrected", "bonus", "plain"
"""Kind of the token the target adds: after a rejection, for free at the end of a fully accepted path, or on its own,
where nothing was drafted."""


@dataclass(slots=True)
class Emitted:
    """One committed token.

    Attributes:
        token: id.
        text: the text it completes (empty while a character is still incomplete).
        start: offset of that text in the generated text, in characters.
        end: end offset.
        kind: "accepted", "corrected", "bonus" or "plain".
        node: index of the accepted node, or None.
        position: absolute position in the sequence.
        p: the target's probability of it.
    """

    token: int
    text: str
    start: int
    end: int
    kind: str
    node: int | None
    position: int
    p: float


@dataclass(slots=True)
class Placed:
    """A token set at a place of the text that is not final there: a later round may take it back.

    Attributes:
        token: id.
        text: its own text, for display only.
        position: absolute position in the sequence, behind the final text; gaps between places are masked.
        p: the target's probability of it when it was set.
    """

    token: int
    text: str
    position: int
    p: float

"""Describe the tokens of a text as plain data: committed tokens and tentative tokens."""

from __future__ import annotations

from dataclasses import dataclass

CORRECTED, BONUS, PLAIN = "corrected", "bonus", "plain"
"""Kinds of tokens that the target adds to the text: after a rejection (corrected), after a fully accepted path (bonus),
and in a round without a draft (plain)."""


@dataclass(slots=True)
class EmittedToken:
    """Token that a round has added to the text.

    Attributes:
        token: token id.
        text: text that the token completes ("" if its last character is still incomplete).
        start: offset of that text in the generated text, in characters.
        end: end offset, in characters.
        kind: "accepted", "corrected", "bonus" or "plain".
        node: index of the accepted node, or None.
        position: absolute position in the sequence.
        p: target probability of the token.
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
class TentativeTokenRecord:
    """Tentative token: a later round may revoke it.

    Attributes:
        token: token id.
        text: text of the token, for display only.
        position: absolute position in the sequence, after the final text; gaps between positions are masked.
        p: target probability of the token when it was set.
    """

    token: int
    text: str
    position: int
    p: float

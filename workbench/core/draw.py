"""Randomness by address: a number follows from the seed, the place in the text and what it is for, and from no order.

So a run is the same alone and in a batch, on every device, and when a draft has to be drawn again because a row beside
it failed.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

_STREAM = 221117192
"""Sets this project's numbers apart from others of the same seed."""
_BLOCK = 4
"""Numbers that the generator makes at a time; a state with as many used makes new ones at the next request."""


class Purpose(IntEnum):
    """What a uniform decides. No number serves two of them; their values are part of what a seed means."""

    DRAFT = 0
    """Which tokens a chain proposes, one number a level."""
    ACCEPT = 1
    """Whether a node is kept, one number a node."""
    STOP = 2
    """Which token is emitted where the walk ends, one number for the root and each node."""
    GUMBEL = 3
    """Which siblings a stochastic beam takes, one number a token and parent."""
    TIE = 4
    """Which of equals is taken, where a rule leaves that to chance."""
    SEARCH = 5
    """What a drafter that looks for the best way to draft tries next."""


class Draw:
    """The uniforms of one request, from a counter-based generator (Philox 4×64, Salmon et al. 2011) on the host.

    Host numbers cost no synchronisation: they travel to the device with the tensors that need them. Two requests with
    one seed draw the same numbers at the same addresses, whatever else runs beside them, and whatever either asked for
    before.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.attempt = 0
        """How often text was taken back: what is written in its place is drawn with numbers that nothing knows yet."""
        self._philox = np.random.Philox(key=np.array([seed % 2**64, _STREAM], dtype=np.uint64))
        self._generator = np.random.Generator(self._philox)
        self._state = self._philox.state

    def uniform(self, position: int, purpose: Purpose, n: int, level: int = 0) -> np.ndarray:
        """`n` numbers in [0, 1), float64 [n]; fewer numbers of one address are the first of more.

        Args:
            position: tokens before the place, prompt included. A round takes the place at which it begins for all of
                its tree, so that no number of a draft that was thrown away is used again: what was learned from that
                draft may decide about the next one.
            purpose: what they decide.
            n: how many.
            level: apart from others of that place and purpose.
        """
        state = self._state
        state["state"]["counter"][:] = self.attempt << 32, level, purpose, position
        state["buffer_pos"] = _BLOCK
        self._philox.state = state
        return self._generator.random(n)


def numbers(seed: int, n: int) -> np.ndarray:
    """`n` numbers in [0, 1), float64 [n], that belong to a seed and to no place in a text."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed % 2**64, _STREAM)))).random(n)

"""Draw random numbers that depend only on seed, position and purpose, not on the order of calls.

A run therefore gets the same numbers alone and in a batch, and on every device. It also gets the same numbers if its
draft is sampled again because another sequence of the batch failed.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

STREAM = 221117192
"""Second word of the Philox key; the seed is the first. The value is specific to this program, so that another program
with the same seed gets different random numbers."""
BLOCK = 4
"""Number of random numbers that NumPy's Philox generator buffers per call. With `buffer_pos` set to this value, the
buffer counts as used up, and the next request computes new numbers."""


class Purpose(IntEnum):
    """Purpose of a uniform random number, part of the generator's counter. Changing a value changes all outputs."""

    DRAFT = 0
    """Random numbers for sampling the drafted tokens of a chain, one per level."""
    ACCEPT = 1
    """Random numbers for acceptance tests, one per drafted node."""
    BONUS = 2
    """Random numbers for sampling the bonus or corrected token, one for the root and one per drafted node."""
    GUMBEL = 3
    """Random numbers for selecting siblings in a stochastic beam, one per token and parent."""
    TIE = 4
    """Random numbers for breaking ties between equal candidates, if a rule breaks ties at random."""
    GUESS = 5
    """Random numbers for initial guesses (random tokens of the text), and for random search steps of drafters."""


class RandomStream:
    """Uniform random numbers of one request, from a counter-based generator (Philox 4×64, Salmon et al. 2011).

    The numbers are computed on the host, without synchronisation, and copied to the device when they are used. Two
    requests with the same seed get the same numbers for the same position, purpose and level, regardless of other
    requests and earlier calls.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.attempt = 0
        """Number of times that committed tokens of the request were revoked. Each value selects other random numbers,
        so that the new tokens are sampled independently of the revoked ones."""
        self._philox = np.random.Philox(key=np.array([seed % 2**64, STREAM], dtype=np.uint64))
        self._generator = np.random.Generator(self._philox)
        self._state = self._philox.state

    def uniform(self, position: int, purpose: Purpose, n: int, level: int = 0) -> np.ndarray:
        """Return `n` uniform random numbers in [0, 1), float64 [n]. A smaller `n` gives a prefix of the same numbers.

        Args:
            position: number of tokens before the drafted position, prompt included. A round uses its first position for
                the whole tree, so the numbers of a discarded draft are never used again. This is necessary because
                feedback on a discarded draft may influence the next draft, which must not depend on the same numbers.
            purpose: use of the numbers.
            n: number of random numbers.
            level: index that separates several calls for one position and purpose.
        """
        state = self._state
        state["state"]["counter"][:] = self.attempt << 32, level, purpose, position
        state["buffer_pos"] = BLOCK
        self._philox.state = state
        return self._generator.random(n)


def seeded_uniforms(seed: int, n: int) -> np.ndarray:
    """Return `n` uniform random numbers in [0, 1), float64 [n], that depend only on the seed.

    Args:
        seed: integer that determines the numbers.
        n: how many numbers to return.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed % 2**64, STREAM)))).random(n)

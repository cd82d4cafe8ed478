"""Randomness that is handed in: seeded, counted, and independent of every other request."""

from __future__ import annotations

import numpy as np

_STREAM = 221117192
"""Sets this project's streams apart from others of the same seed."""


class Draw:
    """The uniforms of one request, drawn on the host from its own counter-based generator.

    Host numbers cost no synchronisation: they travel to the device with the tensors that need them.
    Two requests with one seed draw the same numbers, whatever else runs beside them.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        entropy = (seed % 2**64, _STREAM)
        self._generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))

    def uniform(self, n: int) -> np.ndarray:
        """`n` numbers in [0, 1), float64 [n]."""
        return self._generator.random(n)

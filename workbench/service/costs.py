"""How much GPU time a generation asks for where it is lent by the second: assumed at first, then learnt from runs."""

from __future__ import annotations

import math
from collections import deque

from workbench.core.errors import CapacityError

START_S = 8.0
"""Assumed seconds for a process to start and to get the models onto its GPU. Not measured on ZeroGPU."""
PER_TOKEN_S = 0.03
"""Assumed seconds a token before any run was measured: one verification of a model of a few billion parameters."""
MARGIN = 1.5
LONGEST_S = 120
"""What one run may ask for. A visitor who is not signed in has so much in a day."""


class Costs:
    """What runs took on the GPU, by target and method: the measured part of an estimate."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], deque[float]] = {}

    def learn(self, target: str, method: str, tokens: int, seconds: float) -> None:
        """A run wrote so many tokens in so many seconds."""
        if tokens:
            self._seen.setdefault((target, method), deque(maxlen=20)).append(seconds / tokens)

    def seconds(self, target: str, method: str, tokens: int) -> int:
        """What a run should ask for, from the slowest run seen of its kind."""
        slowest = max(self._seen.get((target, method), (PER_TOKEN_S,)))
        return math.ceil(START_S + MARGIN * slowest * tokens)

    def tokens(self, target: str, method: str, seconds: float) -> int:
        """How many tokens fit into so many seconds."""
        slowest = max(self._seen.get((target, method), (PER_TOKEN_S,)))
        return max(1, int((seconds - START_S) / (MARGIN * slowest)))

    def check(self, target: str, method: str, tokens: int) -> None:
        """Refuse a run that asks for too much.

        Raises:
            CapacityError: with how many tokens may be asked for.
        """
        seconds = self.seconds(target, method, tokens)
        if seconds > LONGEST_S:
            raise CapacityError(
                f"This run asks for {seconds} s of GPU; one run may ask for {LONGEST_S} s.",
                f"Use at most {self.tokens(target, method, LONGEST_S)} new tokens.",
            )

    def basis(self, target: str, method: str) -> str:
        """Where the figure comes from, in words."""
        n = len(self._seen.get((target, method), ()))
        return f"from {n} run{'s' if n > 1 else ''} of this method" if n else "an assumption: no run measured yet"

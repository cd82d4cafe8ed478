"""Estimate the GPU time of a generation on ZeroGPU: from an assumed time per token, later from measured runs."""

from __future__ import annotations

import math
from collections import deque

from workbench.core.errors import CapacityError

START_S = 8.0
"""Assumed time in seconds in which a ZeroGPU process starts and moves the models to its GPU. It was not measured."""
PER_TOKEN_S = 0.03
"""Assumed GPU seconds per generated token until the first run is measured.

This is about one verification by a target of a few billion parameters.
"""
MARGIN = 1.5
LONGEST_S = 120
"""Maximum GPU time of a run, in seconds: the daily quota of a visitor who is not signed in."""


class Costs:
    """Measured GPU times of runs by target and method, from which the GPU time of later runs is estimated."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], deque[float]] = {}

    def record_run(self, target: str, method: str, tokens: int, seconds: float) -> None:
        """Record the number of tokens and the GPU time of a run, for estimates of later runs.

        Args:
            target: name of the target.
            method: name of the method.
            tokens: number of generated tokens.
            seconds: GPU time in seconds.
        """
        if tokens:
            self._seen.setdefault((target, method), deque(maxlen=20)).append(seconds / tokens)

    def seconds(self, target: str, method: str, tokens: int) -> int:
        """Return the GPU seconds to request for a run, from the slowest measured run of its target and method.

        Args:
            target: name of the target.
            method: name of the method.
            tokens: maximum number of tokens of the run.
        """
        slowest = max(self._seen.get((target, method), (PER_TOKEN_S,)))
        return math.ceil(START_S + MARGIN * slowest * tokens)

    def tokens(self, target: str, method: str, seconds: float) -> int:
        """Return the number of tokens that a run can generate in `seconds` of GPU time.

        Args:
            target: name of the target.
            method: name of the method.
            seconds: GPU time in seconds.
        """
        slowest = max(self._seen.get((target, method), (PER_TOKEN_S,)))
        return max(1, int((seconds - START_S) / (MARGIN * slowest)))

    def check(self, target: str, method: str, tokens: int) -> None:
        """Refuse a run that needs more than `LONGEST_S` of GPU time.

        Args:
            target: name of the target.
            method: name of the method.
            tokens: maximum number of tokens of the run.

        Raises:
            CapacityError: the run needs too much GPU time; the error's remedy says how many tokens are possible.
        """
        seconds = self.seconds(target, method, tokens)
        if seconds > LONGEST_S:
            raise CapacityError(
                f"This run needs an estimated {seconds} s of GPU time; the limit is {LONGEST_S} s.",
                f"Use at most {self.tokens(target, method, LONGEST_S)} new tokens.",
            )

    def basis(self, target: str, method: str) -> str:
        """Return a text that says how many measured runs the estimate of GPU time is based on.

        Args:
            target: name of the target.
            method: name of the method.
        """
        n = len(self._seen.get((target, method), ()))
        return (
            f"measured on {n} run{'s' if n > 1 else ''} of this method"
            if n
            else ("assumed, because no run was measured yet")
        )

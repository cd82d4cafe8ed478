"""Rounds held back so that people can follow them, and the time that a run stood still, which is nobody's figure."""

from __future__ import annotations

import time
from collections.abc import Callable

FASTEST = 1000
"""Tokens a second; what is faster than that nobody can follow."""


class Pace:
    """When a run's next round may start. Not thread-safe but for `rate`; the engine's thread asks and tells.

    A round takes the time it takes, and is over before anything waits: what is held back is the next one. So times
    within rounds are the engine's own at any pace, and a change of method, a pause or another picture comes in time.

    Args:
        rate: tokens a second at which rounds may follow each other at most; 0: as fast as they can.
        now: a clock in seconds that only goes forward.

    Attributes:
        rate: may be set at any time, and holds from then on.
        waived: rounds are not held back for now, because others wait for what the run keeps.
    """

    def __init__(self, rate: float = 0.0, now: Callable[[], float] = time.perf_counter) -> None:
        self.rate, self.waived = rate, False
        self._now = now
        self._round_end: float | None = None
        self._tokens = 0
        self._still_since: float | None = None
        self._still_s = 0.0

    def follow(self, rate: float) -> None:
        """Another rate, from now on."""
        self.rate = rate

    def emitted(self, tokens: int) -> None:
        """A round has ended with so many tokens."""
        self._round_end, self._tokens = self._now(), tokens

    @property
    def left_s(self) -> float:
        """Seconds until the next round may start; 0: now."""
        rate = self.rate
        if rate <= 0 or self.waived or self._round_end is None:
            return 0.0
        return max(0.0, self._round_end + self._tokens / rate - self._now())

    def stand(self, still: bool) -> None:
        """Whether the run stands still from now on, by its pace or a pause: counted from the end of its last round."""
        if still and self._still_since is None:
            self._still_since = self._now() if self._round_end is None else self._round_end
        elif not still and self._still_since is not None:
            self._still_s += self._now() - self._still_since
            self._still_since = None

    @property
    def still_s(self) -> float:
        """Seconds in which the run stood still so far, by its pace or by a pause."""
        return self._still_s + (0.0 if self._still_since is None else self._now() - self._still_since)

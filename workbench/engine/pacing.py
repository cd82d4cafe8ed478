"""Rounds held back so that people can follow them, and the time that a run was held back or paused."""

from __future__ import annotations

import time
from collections.abc import Callable

FASTEST = 1000
"""Tokens a second; what is faster than that nobody can follow."""


class Pace:
    """When a run's next round may start. Not thread-safe but for `rate`, which other threads may set.

    A round is over before the next one is held back, so a change of method, a pause or another picture comes in time,
    and no wait counts in any time of a trace. The round after a wait still takes longer than at full speed: the CPU's
    caches and threads are cold then. Draft-model on text-target at 8 tokens a second, 24 pairs interleaved with runs at
    full speed on a machine shared with other work: medians of paired ratios 1.30 for a round (95 % 1.00 to 2.38), 2.00
    for drafting (1.11 to 4.32); two runs at full speed 1.02 and 1.07. So a trace says which rounds were held back:
    `workbench.trace.metrics.HELD`.

    Args:
        rate: tokens a second at which rounds may follow each other at most; 0: as fast as they can.
        now: a clock in seconds that only goes forward.

    Attributes:
        rate: may be set at any time, and holds from then on.
        waived: rounds are not held back for now, because others wait for what the run keeps.
        before_s: seconds for which the run was held back or paused just before the round that runs; 0: not at all.
    """

    def __init__(self, rate: float = 0.0, now: Callable[[], float] = time.perf_counter) -> None:
        self.rate, self.waived, self.before_s = rate, False, 0.0
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
        elif not still:
            self.before_s = 0.0 if self._still_since is None else self._now() - self._still_since
            self._still_s += self.before_s
            self._still_since = None

    @property
    def still_s(self) -> float:
        """Seconds in which the run stood still so far, by its pace or by a pause."""
        return self._still_s + (0.0 if self._still_since is None else self._now() - self._still_since)

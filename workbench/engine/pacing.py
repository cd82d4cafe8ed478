"""Pacing: delay rounds so that people can follow them, and measure the time that a run was delayed or paused."""

from __future__ import annotations

import time
from collections.abc import Callable

FASTEST = 1000
"""Fastest pace in tokens per second; people cannot follow faster text."""


class Pace:
    """Earliest start of a run's next round. Not thread-safe except for `rate`, which other threads may set.

    A run waits after a complete round, so that a change of method, a pause or a new image still affects the next round.
    Times in a trace exclude waits. The round after a wait still takes longer than at full speed: the CPU's caches and
    threads are cold then. Measured on text-target on a quiet machine, at 8 tokens per second against full speed (8
    interleaved pairs of runs, 95 % intervals): a round of plain decoding took 1.21 times as long (1.14 to 1.30), a
    round of draft-tree 1.07 times (1.05 to 1.10). A busy wait of 10 ms before each round reduces the former to 1.09 and
    not the latter. So a trace marks the delayed rounds (`workbench.trace.metrics.DELAY`).

    Args:
        rate: maximum speed in tokens per second, to which rounds are slowed down; 0: full speed.
        now: a monotonic clock in seconds.

    Attributes:
        rate: maximum speed in tokens per second; may be set at any time, and is effective at once.
        is_waived: whether delays are suspended because other requests wait for this run's resources.
        paused_before_s: seconds of delay or pause just before the current round; 0: none.
    """

    def __init__(self, rate: float = 0.0, now: Callable[[], float] = time.perf_counter) -> None:
        self.rate, self.is_waived, self.paused_before_s = rate, False, 0.0
        self._now = now
        self._round_end: float | None = None
        self._tokens = 0
        self._still_since: float | None = None
        self._still_s = 0.0

    def set_rate(self, rate: float) -> None:
        """Set the maximum speed to another rate in tokens per second, effective at once."""
        self.rate = rate

    def end_round(self, tokens: int) -> None:
        """Record the end of a round that emitted `tokens` tokens."""
        self._round_end, self._tokens = self._now(), tokens

    @property
    def is_slowed(self) -> bool:
        """Return whether rounds may be delayed."""
        return self.rate > 0 and not self.is_waived

    @property
    def remaining_s(self) -> float:
        """Return the seconds until the next round may start; 0: now."""
        rate = self.rate
        if rate <= 0 or self.is_waived or self._round_end is None:
            return 0.0
        return max(0.0, self._round_end + self._tokens / rate - self._now())

    def set_paused(self, is_paused: bool) -> None:
        """Record whether the run is delayed or paused from now on; the time counts from the end of the last round."""
        if is_paused and self._still_since is None:
            self._still_since = self._now() if self._round_end is None else self._round_end
        elif not is_paused:
            self.paused_before_s = 0.0 if self._still_since is None else self._now() - self._still_since
            self._still_s += self.paused_before_s
            self._still_since = None

    @property
    def paused_s(self) -> float:
        """Return the seconds of delay and pause so far."""
        return self._still_s + (0.0 if self._still_since is None else self._now() - self._still_since)

"""Pacing: delay rounds so that people can follow them, and measure the time that a run was delayed or paused."""

from __future__ import annotations

import time
from collections.abc import Callable

FASTEST = 1000
"""Maximum display rate in tokens per second; people cannot follow faster text."""


class Pace:
    """Pace of a run: it delays the start of each next round to a display rate.

    Not thread-safe except for `rate`, which other threads may set.

    A run waits after a complete round, so that a change of method, a pause or a new image still affects the next round.
    Times in a trace exclude these waits. Still, the round after a wait takes longer than at full speed, because the
    CPU's caches and threads are cold. Measured on text-target on a quiet machine, at 8 tokens per second against full
    speed (8 interleaved pairs of runs, 95 % confidence intervals): a round of plain decoding took 1.21 times as long
    (1.14 to 1.30), a round of draft-tree 1.07 times (1.05 to 1.10). A busy wait of 10 ms before each round reduces the
    factor of plain decoding to 1.09, but not that of draft-tree. So a trace marks the delayed rounds
    (`workbench.trace.metrics.DELAY`).

    Args:
        rate: maximum speed in tokens per second, to which rounds are slowed down; 0: full speed.
        now: function that returns the time of a monotonic clock in seconds.

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
        """Set the maximum speed of the run in tokens per second, effective at once."""
        self.rate = rate

    def end_round(self, tokens: int) -> None:
        """Record the end of a round that emitted `tokens` tokens, from which the next start is computed."""
        self._round_end, self._tokens = self._now(), tokens

    @property
    def is_slowed(self) -> bool:
        """Return whether rounds may be delayed for display."""
        return self.rate > 0 and not self.is_waived

    @property
    def remaining_s(self) -> float:
        """Return the seconds until the next round of the run may start; 0: it may start now."""
        rate = self.rate
        if rate <= 0 or self.is_waived or self._round_end is None:
            return 0.0
        return max(0.0, self._round_end + self._tokens / rate - self._now())

    def set_paused(self, is_paused: bool) -> None:
        """Record whether the run is delayed or paused from now on.

        The time of the pause counts from the end of the last round.
        """
        if is_paused and self._still_since is None:
            self._still_since = self._now() if self._round_end is None else self._round_end
        elif not is_paused:
            self.paused_before_s = 0.0 if self._still_since is None else self._now() - self._still_since
            self._still_s += self.paused_before_s
            self._still_since = None

    @property
    def paused_s(self) -> float:
        """Return the time in seconds for which the run was delayed or paused so far."""
        return self._still_s + (0.0 if self._still_since is None else self._now() - self._still_since)

"""Progress of a training run, by wall clock or by steps, and the learning-rate schedule that depends on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class RunClock:
    """Clock of a training run: seconds so far, and progress from 0 to 1.

    With `minutes` the run takes the same time on every machine; with `steps` it does the same work on every machine.

    Attributes:
        minutes: Length of the run by the clock, resumed parts included.
        steps: Length of the run in steps; takes precedence over `minutes`.
        earlier_seconds: Seconds spent on the run before it was resumed.
    """

    minutes: float | None = None
    steps: int | None = None
    earlier_seconds: float = 0.0
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.minutes is None and self.steps is None:
            raise ValueError("a training run needs a length: set minutes or steps")

    @property
    def seconds(self) -> float:
        """Return the seconds spent on the training run, including the time before it was resumed."""
        return self.earlier_seconds + time.monotonic() - self._started

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time spent inside the `with` block from the duration of the training run."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._started += time.monotonic() - start

    def progress(self, step: int) -> float:
        """Return the finished share of the training run before step `step`, from 0 to 1."""
        if self.steps is not None:
            return step / max(1, self.steps)
        return self.seconds / (60.0 * (self.minutes or 1.0))

    def minutes_left(self, step: int) -> float:
        """Return the expected time to the end of the training run, in minutes."""
        progress = max(self.progress(step), 1e-6)
        return self.seconds / 60.0 * (1.0 - progress) / progress

    def format_time_left(self, step: int) -> str:
        """Return the expected time to the end of the training run as text: "12 min", and below a minute "40 s"."""
        minutes = self.minutes_left(step)
        return f"{minutes:.0f} min" if minutes >= 1 else f"{60 * minutes:.0f} s"


def trapezoid(progress: float, warmup: float = 0.02, decay: float = 0.4, floor: float = 0.02) -> float:
    """Return the learning-rate factor: linear warm-up, constant, then linear decay to `floor` at the end.

    >>> [trapezoid(p) for p in (0.01, 0.5, 1.0)]
    [0.5, 1.0, 0.02]
    """
    if progress < warmup:
        return max(progress / warmup, 1e-3)
    if progress > 1.0 - decay:
        return max(floor, floor + (1.0 - floor) * (1.0 - progress) / decay)
    return 1.0

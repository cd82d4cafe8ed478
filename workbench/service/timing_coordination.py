"""Keep other computations (building models, explaining a run) away from timed runs, whose times they would distort."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class TimingCoordinator:
    """Coordinator that never lets timed runs and other computations overlap.

    A timed run starts only after other computations have ended. No other computation starts while a timed run has the
    device or is next. A computation that has waited for a timed run goes before the next timed run.

    Args:
        wake: function that wakes the engine thread, called when a computation has ended.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._working = 0
        self._waiting = 0
        self._timed = False

    @contextlib.contextmanager
    def exclude_timed_runs(self) -> Iterator[None]:
        """Context manager that waits until no run is timed; no timed run starts before it is left.

        It must not be nested. Downloads do not need it, because they do not distort measured times.
        """
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._timed)
            self._waiting -= 1
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()
            self._wake()

    def request_device(self) -> bool:
        """Reserve the device for a timed run: no other computation starts. Return whether it can start now."""
        with self._changed:
            if not self._timed and self._waiting:
                return False  # work that waited for the previous timed run goes first
            self._timed = True
            return self._working == 0

    def release_device(self) -> None:
        """Allow other computations again, because no timed run (of a measurement) has the device or waits for it."""
        if self._timed:
            with self._changed:
                self._timed = False
                self._changed.notify_all()

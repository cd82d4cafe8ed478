"""Coordination of timed runs with other computations (building models, explaining a run), which would distort times."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class TimingCoordinator:
    """Keep timed runs and other computations apart.

    A timed run starts only after such work has ended, and no such work starts while a timed run has the device or is
    next. Work that waited for a timed run goes before the next timed run.

    Args:
        wake: function called when work has ended, which wakes the engine thread.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._working = 0
        self._waiting = 0
        self._timed = False

    @contextlib.contextmanager
    def exclude_timed_runs(self) -> Iterator[None]:
        """Wait until no run is timed, then run the block's computation. Not for downloads; must not be nested."""
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
        """Request the device for a timed run: blocks new work; return whether no work is running."""
        with self._changed:
            if not self._timed and self._waiting:
                return False  # work that waited for the previous timed run goes first
            self._timed = True
            return self._working == 0

    def release_device(self) -> None:
        """Allow work again: no timed run has the device or waits for it."""
        if self._timed:
            with self._changed:
                self._timed = False
                self._changed.notify_all()

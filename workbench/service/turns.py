"""Whose turn the device is: work beside the rounds (building models, explaining a run) waits while a run is timed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Turns:
    """Keeps work beside the rounds and timed runs apart.

    A timed run does not begin before such work has ended, and no such work begins while a timed run has the device or
    is the next to have it. Work that waited goes before the timed run that comes next.

    Args:
        wake: called when work has ended, so that whoever runs rounds looks again.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._working = 0
        self._waiting = 0
        self._timed = False

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Compute beside the rounds, once no run is timed. For computation, not for downloads; never nested."""
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

    def take(self) -> bool:
        """For a timed run: keeps new work out from now on; whether the device is free of what is under way."""
        with self._changed:
            if not self._timed and self._waiting:
                return False  # it has waited for the timed run before this one
            self._timed = True
            return self._working == 0

    def let_go(self) -> None:
        """No timed run has the device, and none asks for it."""
        if self._timed:
            with self._changed:
                self._timed = False
                self._changed.notify_all()

"""Cache of answers to pages that rarely change, shared by all users."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

from workbench.service.request_context import make_disconnect_check

T = TypeVar("T")
LOOK_S = 0.2
"""Seconds between two checks whether a client that waits for a cached answer is still connected."""


class DependencyCache(Generic[T]):
    """Cache of answers by the data on which they depend. Thread-safe: only one thread computes at a time.

    Args:
        seconds: lifetime of an answer, in seconds.
        most: maximum number of cached answers.
        clock: function that returns the time in seconds.
    """

    def __init__(self, seconds: float, most: int = 4, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._most, self._clock = seconds, most, clock
        self._found: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()
        self._working = threading.Lock()

    def get(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the cached answer for a key, after computing it if necessary. Callers must not change the answer.

        Args:
            key: all data on which the answer depends.
            work: function that computes the answer. After an exception, nothing is cached.

        Raises:
            DisconnectedError: the client disconnected while this thread waited for another one.
        """
        check_connected = make_disconnect_check()
        while not self._working.acquire(timeout=LOOK_S):
            check_connected()
        try:
            computed_at, answer = self._found.get(key, (0.0, None))
            if answer is None or self._clock() - computed_at > self._seconds:
                answer = work()
                self._found[key] = self._clock(), answer
                self._found.move_to_end(key)
                while len(self._found) > self._most:
                    self._found.popitem(last=False)
            return answer
        finally:
            self._working.release()


def stamp(folder: Path, pattern: str = "*") -> Hashable:
    """Return a fingerprint of a folder's files: names, sizes and modification times."""
    files = []
    for path in sorted(folder.glob(pattern)):
        try:
            status = path.stat()
        except OSError:  # the file was deleted meanwhile
            continue
        files.append((path.name, status.st_size, status.st_mtime_ns))
    return str(folder), tuple(files)

"""Who is next: users take turns, and each user's own requests keep their order."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue over users, round-robin. Thread-safe.

    A user with one request waits for one request of every other user at most, however many these have put in.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[T]] = {}  # insertion order is the order of turns
        self._lock = threading.Lock()

    def put(self, user: str, item: T) -> None:
        """Queue an item behind the user's others."""
        with self._lock:
            self._lines.setdefault(user, deque()).append(item)

    def head(self) -> T | None:
        """The next item; it stays."""
        with self._lock:
            return next((line[0] for line in self._lines.values()), None)

    def pop(self) -> T | None:
        """Take the next item; its user goes to the end of the turns."""
        with self._lock:
            if not self._lines:
                return None
            user = next(iter(self._lines))
            line = self._lines.pop(user)
            item = line.popleft()
            if line:
                self._lines[user] = line
            return item

    def remove(self, item: T) -> bool:
        """Take an item out, wherever it is; False when it is not here."""
        with self._lock:
            for user, line in self._lines.items():
                if item in line:
                    line.remove(item)
                    if not line:
                        del self._lines[user]
                    return True
            return False

    def order(self) -> list[T]:
        """All items as they will come, if nobody joins or leaves."""
        with self._lock:
            turns = itertools.zip_longest(*self._lines.values(), fillvalue=_NOBODY)
            return [item for turn in turns for item in turn if item is not _NOBODY]  # type: ignore[misc]

    def place(self, item: T) -> tuple[int, int] | None:
        """(position, of) of an item, from 1; None when it is not here."""
        order = self.order()
        return (order.index(item) + 1, len(order)) if item in order else None

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._lines.values()))


_NOBODY = object()

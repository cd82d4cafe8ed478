"""A queue of requests in which client addresses take turns, and users of the same address take turns."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from workbench.service.users import address_of

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Round-robin queue over addresses, and over the users at each address. Thread-safe.

    An address with one request waits for at most one request of every other address, however many requests and users
    that address has. Clients choose user names freely, so a user name matters only among users of the same address.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, deque[T]]] = {}  # insertion order is the order of turns, on both levels
        self._lock = threading.Lock()

    def put(self, user: str, item: T) -> None:
        """Add an item to the end of a user's queue."""
        with self._lock:
            self._lines.setdefault(address_of(user), {}).setdefault(user, deque()).append(item)

    def head(self) -> T | None:
        """Return the next item without removing it; None if the queue is empty."""
        with self._lock:
            return next((line[0] for users in self._lines.values() for line in users.values()), None)

    def pop(self, may: Callable[[str], bool] = lambda _: True) -> T | None:
        """Remove and return the next item. Its address and its user then have their next turn after all others.

        Args:
            may: function that returns whether an address may be served now; an address for which it returns False is
                skipped and keeps its turn.

        Returns:
            The item; None if no item may be served.
        """
        with self._lock:
            address = next(filter(may, self._lines), None)
            if address is None:
                return None
            users = self._lines.pop(address)
            user = next(iter(users))
            line = users.pop(user)
            item = line.popleft()
            if line:
                users[user] = line
            if users:
                self._lines[address] = users
            return item

    def remove(self, item: T) -> bool:
        """Remove an item from the queue, whatever its position; return False if it is not in the queue."""
        with self._lock:
            for address, users in self._lines.items():
                for user, line in users.items():
                    if item in line:
                        line.remove(item)
                        if not line:
                            del users[user]
                        if not users:
                            del self._lines[address]
                        return True
            return False

    def order(self) -> list[T]:
        """Return all queued items in the order in which `pop` would return them."""
        with self._lock:
            return _turns([_turns(users.values()) for users in self._lines.values()])

    def position(self, item: T) -> tuple[int, int] | None:
        """Return the position of an item in the queue (from 1) and the queue's length; None if it is not queued."""
        order = self.order()
        return (order.index(item) + 1, len(order)) if item in order else None

    def __len__(self) -> int:
        with self._lock:
            return sum(len(line) for users in self._lines.values() for line in users.values())


_NOBODY = object()


def _turns(lines: Iterable[Iterable[T]]) -> list[T]:
    """Return the items of several queues in turns: all first items, then all second ones, and so on."""
    turns = itertools.zip_longest(*lines, fillvalue=_NOBODY)
    return [item for turn in turns for item in turn if item is not _NOBODY]  # type: ignore[misc]

"""Who is next: addresses take turns, users at one address take turns, and a user's own requests keep their order."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from workbench.service.users import address_of

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue over addresses and the users at each, round-robin. Thread-safe.

    An address with one request waits for one request of every other address at most, however many these have put in,
    and however many users they say they are: what a user calls themselves is for turns among those at their address.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, deque[T]]] = {}  # insertion order is the order of turns, on both levels
        self._lock = threading.Lock()

    def put(self, user: str, item: T) -> None:
        """Queue an item behind the user's others."""
        with self._lock:
            self._lines.setdefault(address_of(user), {}).setdefault(user, deque()).append(item)

    def head(self) -> T | None:
        """The next item; it stays."""
        with self._lock:
            return next((line[0] for users in self._lines.values() for line in users.values()), None)

    def pop(self, may: Callable[[str], bool] = lambda _: True) -> T | None:
        """Take the next item; its user goes to the end of the turns there, and its address to the end of all.

        `may`: says whether it is an address's turn at all; those it leaves out keep their place.
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
        """Take an item out, wherever it is; False when it is not here."""
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
        """All items as they will come, if nobody joins or leaves."""
        with self._lock:
            return _turns([_turns(users.values()) for users in self._lines.values()])

    def place(self, item: T) -> tuple[int, int] | None:
        """(position, of) of an item, from 1; None when it is not here."""
        order = self.order()
        return (order.index(item) + 1, len(order)) if item in order else None

    def __len__(self) -> int:
        with self._lock:
            return sum(len(line) for users in self._lines.values() for line in users.values())


_NOBODY = object()


def _turns(lines: Iterable[Iterable[T]]) -> list[T]:
    """The first of each, then the second of each, and so on."""
    turns = itertools.zip_longest(*lines, fillvalue=_NOBODY)
    return [item for turn in turns for item in turn if item is not _NOBODY]  # type: ignore[misc]

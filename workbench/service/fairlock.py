"""One at a time: addresses take turns, a few of each may wait, and who leaves waits no more."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from workbench.core.errors import CapacityError
from workbench.service.fairqueue import FairQueue
from workbench.service.limits import SOON_S
from workbench.service.users import LOCAL, address_of

WAITING = 4
"""Of one address, that wait."""
POLL_S = 0.1


class FairLock:
    """A lock whose holders come from waiting addresses by turns.

    Args:
        waiting: how many of one address may wait; the user of a private backend has no limit.
    """

    def __init__(self, waiting: int = WAITING) -> None:
        self._most = waiting
        self._queue: FairQueue[object] = FairQueue()
        self._users: list[str] = []
        self._changed = threading.Condition()
        self._held = False

    @contextlib.contextmanager
    def hold(self, user: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock once it is the user's turn.

        Args:
            user: see `workbench.service.users.address_of`.
            check: asked while waiting; what it raises ends the wait.

        Raises:
            CapacityError: too many of the user's address wait.
        """
        mine = object()
        with self._changed:
            there = sum(address_of(other) == address_of(user) for other in self._users)
            if user != LOCAL and there >= self._most:
                raise CapacityError(
                    f"{there} of your address wait for this already.", "Try again once one is done.", SOON_S
                )
            self._queue.put(user, mine)
            self._users.append(user)
            try:
                while self._held or self._queue.head() is not mine:
                    self._changed.wait(POLL_S)
                    check()
            except BaseException:
                self._queue.remove(mine)
                self._changed.notify_all()  # somebody else may be the next
                raise
            finally:
                self._users.remove(user)
            self._queue.pop()
            self._held = True
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()

"""A lock for a shared resource that waiting client addresses get in turn (round robin)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from workbench.core.errors import CapacityError
from workbench.service.fairqueue import FairQueue
from workbench.service.limits import RETRY_AFTER_S
from workbench.service.users import LOCAL, address_of

WAITING = 4
"""Maximum number of calls of one client address that may wait for the lock."""
POLL_S = 0.1


class FairLock:
    """Lock that waiting client addresses get in turn (round robin).

    Args:
        waiting: maximum number of calls of one client address that may wait; the user of a private backend has no
            limit.
    """

    def __init__(self, waiting: int = WAITING) -> None:
        self._most = waiting
        self._queue: FairQueue[object] = FairQueue()
        self._users: list[str] = []
        self._changed = threading.Condition()
        self._held = False

    @contextlib.contextmanager
    def hold(self, user: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Context manager that waits for the user's turn and then holds the lock.

        Args:
            user: key of the user (`workbench.service.users.user_key`).
            check: function that is called while waiting; an exception from it ends the wait.

        Raises:
            CapacityError: too many calls of the user's address are waiting.
        """
        ticket = object()
        with self._changed:
            n_waiting = sum(address_of(other) == address_of(user) for other in self._users)
            if user != LOCAL and n_waiting >= self._most:
                raise CapacityError(
                    f"{n_waiting} requests of this kind from your address are already waiting.",
                    "Try again when one of these requests has finished.",
                    RETRY_AFTER_S,
                )
            self._queue.put(user, ticket)
            self._users.append(user)
            try:
                while self._held or self._queue.head() is not ticket:
                    self._changed.wait(POLL_S)
                    check()
            except BaseException:
                self._queue.remove(ticket)
                self._changed.notify_all()  # another call may be next
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

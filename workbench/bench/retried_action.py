"""An action that a user's rate limit may delay, and that is tried again when the limit allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from workbench.core.errors import CapacityError

T = TypeVar("T")


class RetriedAction(Generic[T]):
    """An action that may be refused temporarily. Call `try_once` often; `begin` is called only when it may succeed.

    Args:
        begin: function that performs the action and returns its result.

    Attributes:
        reason: reason for waiting, for display; empty before the first refusal.
    """

    def __init__(self, begin: Callable[[], T]) -> None:
        self._begin, self._at, self.reason = begin, 0.0, ""

    def try_once(self) -> T | None:
        """Try the action; return the result of `begin`, or None while the action is refused temporarily.

        Raises:
            WorkbenchError: the action failed for a reason that waiting does not remove.
        """
        if self.reason and time.monotonic() < self._at:
            return None
        try:
            return self._begin()
        except CapacityError as error:
            if error.retry_after_s is None:
                raise
            self._at, self.reason = time.monotonic() + error.retry_after_s, f"waiting: {error.message}"
            return None

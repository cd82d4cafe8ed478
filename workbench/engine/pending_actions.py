"""Actions on a sequence between two rounds, requested by other threads that wait for the result."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from workbench.core.errors import WorkbenchError

Action = Callable[[Any], Any]
"""Type of an action: a function that is called with the sequence between two rounds."""


class PendingActions:
    """Pending actions on one sequence. Any thread may call `submit`; only the engine's thread calls other methods."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Action, Future[Any]]] = deque()
        self._lock = threading.Lock()
        self._is_over = False

    def submit(self, action: Action) -> Future[Any]:
        """Schedule an action between two rounds of the sequence, after its drafter's state is created.

        Raises:
            WorkbenchError: the sequence has ended.
        """
        future = Future[Any]()
        with self._lock:
            if self._is_over:
                raise WorkbenchError(
                    "The run has ended, so it cannot be changed or inspected.", "Use the finished run's trace instead."
                )
            self._waiting.append((action, future))
        return future

    @property
    def is_waiting(self) -> bool:
        """Return whether an action has been requested and not run."""
        return bool(self._waiting)

    def run(self, sequence: Any) -> None:
        """Run the pending actions on the sequence. An action's error is raised in the thread that requested it."""
        while self._waiting:
            act, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(act(sequence))
                except Exception as error:
                    future.set_exception(error)

    def close(self, sequence: Any) -> None:
        """Run the remaining actions on the sequence, and accept no further actions."""
        with self._lock:
            self._is_over = True
        self.run(sequence)

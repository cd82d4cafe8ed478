"""What is done to a row between two of its rounds because somebody, in another thread, asked for it and waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from workbench.core.errors import WorkbenchError

Act = Callable[[Any], Any]
"""Is handed the row."""


class Errands:
    """The errands of one row. `ask` may be called by any thread, all else by the engine's."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Act, Future[Any]]] = deque()
        self._lock = threading.Lock()
        self._is_over = False

    def ask(self, act: Act) -> Future[Any]:
        """Have something done once the row's drafter is primed, between two rounds.

        Raises:
            WorkbenchError: the row has ended.
        """
        done = Future[Any]()
        with self._lock:
            if self._is_over:
                raise WorkbenchError("The run has ended.", "Use the finished run's trace instead.")
            self._waiting.append((act, done))
        return done

    def run(self, row: Any) -> None:
        """Do what was asked for; what goes wrong is its asker's to hear."""
        while self._waiting:
            act, done = self._waiting.popleft()
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(act(row))
                except Exception as error:
                    done.set_exception(error)

    def close(self, row: Any) -> None:
        """The last chance: nothing can be asked for any more."""
        with self._lock:
            self._is_over = True
        self.run(row)

"""Check whether the client of the current request is still connected, and measure the request's CPU time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from workbench.core.errors import WorkbenchError

DISCONNECTED: ContextVar[threading.Event | None] = ContextVar("workbench_left", default=None)
"""Event that a server sets when the client of the current request disconnects.

It is None if there is no request, or if the connection is not watched.
"""


CPU_TIME_CALLBACK: ContextVar[Callable[[float], None] | None] = ContextVar("workbench_cost", default=None)
"""Function that is called with the CPU seconds spent on the current request; None: they are not counted."""


@contextlib.contextmanager
def measure_cpu_time() -> Iterator[None]:
    """Context manager that measures the CPU time of its thread, and passes it to `CPU_TIME_CALLBACK`.

    Time in which other threads hold the interpreter is not counted, so a busy server does not make requests more
    expensive.
    """
    report, before = CPU_TIME_CALLBACK.get(), time.thread_time()
    try:
        yield
    finally:
        if report is not None:
            report(time.thread_time() - before)


class DisconnectedError(WorkbenchError):
    """Raised in a computation whose client has disconnected."""

    def __init__(self) -> None:
        super().__init__("The client of this request has disconnected.")


def make_disconnect_check() -> Callable[[], None]:
    """Return a function for long computations that raises `DisconnectedError` if the client has disconnected.

    Call `make_disconnect_check` in the thread that handles the request. Any thread may call the returned function, at
    each point where the work may be aborted.
    """
    disconnected = DISCONNECTED.get()

    def check() -> None:
        if disconnected is not None and disconnected.is_set():
            raise DisconnectedError

    return check

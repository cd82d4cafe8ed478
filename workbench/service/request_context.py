"""Check whether the caller of the current request is still connected, and measure the CPU time of its work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from workbench.core.errors import WorkbenchError

DISCONNECTED: ContextVar[threading.Event | None] = ContextVar("workbench_left", default=None)
"""Event that a server sets when the caller of the current request disconnects. It is None if there is no request, or if
the connection is not watched."""


CPU_TIME_CALLBACK: ContextVar[Callable[[float], None] | None] = ContextVar("workbench_cost", default=None)
"""Function that receives the CPU seconds of work for the current request; None: they are not counted."""


@contextlib.contextmanager
def measure_cpu_time() -> Iterator[None]:
    """Measure the CPU time that this thread uses within this context, and pass it to `CPU_TIME_CALLBACK`.

    Time in which other threads hold the interpreter is not counted, so the load of a server does not raise the charge.
    """
    report, before = CPU_TIME_CALLBACK.get(), time.thread_time()
    try:
        yield
    finally:
        if report is not None:
            report(time.thread_time() - before)


class DisconnectedError(WorkbenchError):
    """Raised after the caller has disconnected."""

    def __init__(self) -> None:
        super().__init__("The client of this request has disconnected.")


def make_disconnect_check() -> Callable[[], None]:
    """Return a function for long computations that raises `DisconnectedError` after the caller has disconnected.

    Call `make_disconnect_check` in the context of the request. Any thread may call the returned function, at each point
    where the work may be aborted.
    """
    disconnected = DISCONNECTED.get()

    def check() -> None:
        if disconnected is not None and disconnected.is_set():
            raise DisconnectedError

    return check

"""Whether whoever asked is still there: work beside the runs is broken off when nobody would read the answer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from workbench.core.errors import WorkbenchError

LEFT: ContextVar[threading.Event | None] = ContextVar("workbench_left", default=None)
"""Set by a server for each request that it watches; None: nobody watches, or it is no request."""


COST: ContextVar[Callable[[float], None] | None] = ContextVar("workbench_cost", default=None)
"""Takes the processor seconds of work for the request that is being answered; None: nobody counts them."""


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """Report the processor seconds that this thread spends in the block to whoever counts the request's cost.

    Time in which other threads hold the interpreter is not counted, so a busy server makes nobody's calls dearer.
    """
    told, before = COST.get(), time.thread_time()
    try:
        yield
    finally:
        if told is not None:
            told(time.thread_time() - before)


class LeftError(WorkbenchError):
    """Who asked is not there any more."""

    def __init__(self) -> None:
        super().__init__("Whoever asked for this has left.")


def watch() -> Callable[[], None]:
    """A check for work that takes long: it raises `LeftError` once the caller has left.

    Take it where the request is answered; call it wherever the work may be broken off, from any thread.
    """
    left = LEFT.get()

    def check() -> None:
        if left is not None and left.is_set():
            raise LeftError

    return check

"""Whether whoever asked is still there: work beside the runs is broken off when nobody would read the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar

from workbench.core.errors import WorkbenchError

LEFT: ContextVar[threading.Event | None] = ContextVar("workbench_left", default=None)
"""Set by a server for each request that it watches; None: nobody watches, or it is no request."""


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

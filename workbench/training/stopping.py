"""A run that is asked to end (SIGTERM) keeps what it has: it ends behind the step that it is in, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from workbench.core.errors import WorkbenchError


class StoppedError(WorkbenchError):
    """A run ended because it was asked to; the same command goes on from there."""


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Meanwhile SIGTERM sets an event instead of ending the process; outside of the main thread nothing is changed."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)

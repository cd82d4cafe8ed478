"""Stopping a run by SIGTERM without losing work: the run finishes its current step and saves a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from workbench.core.errors import WorkbenchError


class StoppedError(WorkbenchError):
    """Raised when a run ended because of SIGTERM; the same command continues it."""


@contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
    """Inside the `with` block, make SIGTERM set the yielded event instead of ending the process.

    Outside the main thread, nothing changes.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)

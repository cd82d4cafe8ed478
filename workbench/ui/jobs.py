"""Jobs of many runs, such as comparisons and sweeps: a view starts, follows and stops them by messages."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Generic, TypeVar

from workbench.client import wire
from workbench.core.errors import UnknownNameError

log = logging.getLogger(__name__)

MAX_RESULTS = 24
"""Number of finished comparisons or sweeps, of all users together, whose traces and files remain available."""
KEEP_ALIVE_S = 0.5
T = TypeVar("T")


class Jobs(Generic[T]):
    """Running and finished jobs of one kind (comparisons or sweeps), by unguessable ids."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, T] = OrderedDict()
        self._stops: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def get(self, job: Any) -> T:
        """Return the result of a comparison or sweep by the id of its job.

        Raises:
            UnknownNameError: there is no result with this id.
        """
        with self._lock:
            if not isinstance(job, str) or job not in self._results:
                raise UnknownNameError("This result is no longer stored in the app.", "Run the measurement again.")
            return self._results[job]

    def add(self, what: T) -> str:
        """Store a result that was not computed in this process, such as a saved sweep, and return a new id for it."""
        job = secrets.token_urlsafe(12)
        self.keep(job, what)
        return job

    def keep(self, job: str, what: T) -> None:
        """Store the result of a job; if there are too many results, remove the oldest one."""
        with self._lock:
            self._results[job] = what
            self._results.move_to_end(job)
            while len(self._results) > MAX_RESULTS:
                self._results.popitem(last=False)

    def stop(self, job: Any) -> None:
        """Signal a job to end. A job that has already ended stays as it is."""
        with self._lock:
            event = self._stops.get(job) if isinstance(job, str) else None
        if event is not None:
            event.set()

    async def follow(
        self, begin: Callable[[str, Callable[[], bool]], Generator[dict[str, Any], None, None]], channel: str
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run a job (a comparison or sweep) and yield its messages. Closing the generator ends the job.

        Args:
            begin: function that starts the job and returns a generator of its messages, which runs in another thread.
                Its arguments are the job's id and a function that returns whether the job should stop.
            channel: name of the job, chosen by the page and repeated in every message.
        """
        job, stop, steps = secrets.token_urlsafe(12), threading.Event(), None
        with self._lock:
            self._stops[job] = stop
        common = {"channel": channel, "job": job}
        try:
            steps = await asyncio.to_thread(begin, job, stop.is_set)
            yield common
            last_message_s = time.monotonic()
            while (message := await asyncio.to_thread(next, steps, None)) is not None:
                if message or time.monotonic() - last_message_s > KEEP_ALIVE_S:
                    last_message_s = time.monotonic()
                    yield common | message
        except Exception as problem:
            yield common | {"error": wire.error_to_wire(problem)}
        finally:
            stop.set()
            with self._lock:
                self._stops.pop(job, None)
            if steps is not None:
                threading.Thread(target=end, args=(steps,), daemon=True).start()


def end(steps: Any) -> None:
    """End a job whose client has disconnected. The current step ends by itself, because the stop event is set."""
    while steps.gi_running:
        time.sleep(0.05)
    try:
        steps.close()
    except Exception:
        log.exception("a background job could not be ended")

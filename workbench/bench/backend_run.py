"""Do a measured run alone on a backend's device: request the run until it is admitted, wait for its end, delete it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, runtime_checkable

from workbench.bench.retried_action import RetriedAction
from workbench.core.errors import WorkbenchError
from workbench.trace.events import ABORT_REASONS, Trace

WARM_UP_TOKENS = 24
POLL_S = 0.2


@runtime_checkable
class RunBackend(Protocol):
    """Protocol of a backend that runs generations."""

    @property
    def start(self) -> Callable[..., Any]:
        """Return the function that starts a generation on the backend, such as `workbench.service.Backend.start`.

        With the argument `is_timed=True` no other run uses the device at the same time.
        """
        ...

    def drop_run(self, run: Any) -> None:
        """Delete a finished run from the backend."""
        ...


class StopError(Exception):
    """Raised when the caller has stopped the measurement."""


class BackendRun:
    """A generation on a backend that is measured alone on the device.

    Args:
        backend: backend that runs the generation.
        start: function that starts the run; it is called again after a temporary refusal.
        stopped: function that is called often; True ends the run.
        others: function that returns whether a run other than the given one is active. If it is set, this is a
            background run, and other users' runs have priority. None: the run is queued like any other.

    Attributes:
        run: the run, once it is admitted.
        trace: the trace, once the run has ended; None if another user's run interrupted it.
        seconds: duration of the run, without waiting for the device or the models.
    """

    def __init__(
        self,
        backend: RunBackend,
        start: Callable[[], Any],
        stopped: Callable[[], bool],
        others: Callable[[Any], bool] | None = None,
    ) -> None:
        self._backend, self._start, self._stopped, self._others = backend, RetriedAction(start), stopped, others
        self._waits = ""
        self.run: Any = None
        self.trace: Trace | None = None
        self.seconds = 0.0

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the run has generated so far."""
        return 0 if self.run is None else n_emitted(self.run)

    def follow(self) -> Generator[str, None, None]:
        """Yield the run's reason for waiting every `POLL_S` seconds; an empty string while the run is active.

        Closing the iterator ends the run.

        Raises:
            StopError: the function `stopped` returned True.
            WorkbenchError: the request cannot run, or was cancelled.
        """
        while not self._try_start():
            yield self._waits
            time.sleep(POLL_S)
        run, start = self.run, time.monotonic()
        try:
            while not run.ended:
                with contextlib.suppress(TimeoutError):
                    run.wait(POLL_S)
                if self._stopped():
                    raise StopError
                if run.ended:
                    break
                if self._others is not None and self._others(run):
                    return
                if reason := waiting_reason(run):
                    start = time.monotonic()
                yield reason
            trace = run.wait()
            self.seconds = time.monotonic() - start
            if trace.footer.reason in ABORT_REASONS:
                raise WorkbenchError(run.message or "The run was cancelled.", "Measure again.")
            self.trace = trace
        finally:
            run.cancel()
            self._backend.drop_run(run)

    def _try_start(self) -> bool:
        if self._stopped():
            raise StopError
        if self._others is not None and self._others(None):  # checked again after each wait
            self._waits = "waiting: another run is using the device"
            return False
        self.run, self._waits = self._start.try_once(), self._start.reason
        if self.run is not None and self._others is not None:
            self.run.background = True
        return self.run is not None


def n_emitted(run: Any) -> int:
    """Return the number of tokens that a run has generated so far."""
    return 0 if run.trace is None else sum(len(r.emitted) for r in list(run.trace.rounds))


def waiting_reason(run: Any) -> str:
    """Return the reason why a run has not begun; empty once it has begun."""
    if run.state == "loading":
        return run.message or "loading the models"
    if run.state != "queued":
        return ""
    queue = run.since(0).get("queue")
    place = f": position {queue['position']} of {queue['of']}" if queue else ""
    return f"waiting for the device{place}"

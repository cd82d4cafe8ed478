"""One run on a backend, alone on its device: asked for until it is let in, followed to its end, and given back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, runtime_checkable

from workbench.bench.waiting import Asking
from workbench.core.errors import WorkbenchError
from workbench.trace.events import STOPPED, Trace

WARM_UP_TOKENS = 24
POLL_S = 0.2


@runtime_checkable
class Host(Protocol):
    """A backend."""

    @property
    def start(self) -> Callable[..., Any]:
        """Start a generation, see `workbench.service.Backend.start`; `alone=True` gives it the device to itself."""
        ...

    def forget(self, run: Any) -> None:
        """Keep an ended run no longer."""
        ...


class StopError(Exception):
    """Whoever measures has seen enough."""


class Hosted:
    """A run that is measured.

    Args:
        host: the backend.
        start: starts it; refused for now, it is asked again when that may help.
        stopped: asked often; yes ends the run.
        others: whether somebody's run goes on besides the one given: such go first, and this one is then a run in the
            background. None: it waits for its turn like any other.

    Attributes:
        run: once it is let in.
        trace: once it has ended; None where it gave way to somebody else's.
        seconds: it took; waiting for the device or the models left out.
    """

    def __init__(
        self,
        host: Host,
        start: Callable[[], Any],
        stopped: Callable[[], bool],
        others: Callable[[Any], bool] | None = None,
    ) -> None:
        self._host, self._asking, self._stopped, self._others = host, Asking(start), stopped, others
        self._waits = ""
        self.run: Any = None
        self.trace: Trace | None = None
        self.seconds = 0.0

    @property
    def tokens(self) -> int:
        """That it has by now."""
        return 0 if self.run is None else emitted(self.run)

    def follow(self) -> Generator[str, None, None]:
        """Every `POLL_S` why it waits, in words; empty while it runs. Closing the iterator ends the run.

        Raises:
            StopError: `stopped` said yes.
            WorkbenchError: it cannot be made, or was cancelled.
        """
        while not self._let_in():
            yield self._waits
            time.sleep(POLL_S)
        run, begun = self.run, time.monotonic()
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
                if waits := waiting_for(run):
                    begun = time.monotonic()
                yield waits
            trace = run.wait()
            self.seconds = time.monotonic() - begun
            if trace.footer.reason in STOPPED:
                raise WorkbenchError(run.message or "The run was cancelled.", "Measure again.")
            self.trace = trace
        finally:
            run.cancel()
            self._host.forget(run)

    def _let_in(self) -> bool:
        if self._stopped():
            raise StopError
        if self._others is not None and self._others(None):  # asked anew after each wait
            self._waits = "waits: another run has the device"
            return False
        self.run, self._waits = self._asking.once(), self._asking.said
        if self.run is not None and self._others is not None:
            self.run.background = True
        return self.run is not None


def emitted(run: Any) -> int:
    """Tokens that a run has by now."""
    return 0 if run.trace is None else sum(len(r.emitted) for r in list(run.trace.rounds))


def waiting_for(run: Any) -> str:
    """Why a run has not begun, in words; empty once it has."""
    if run.state == "loading":
        return run.message or "loading the models"
    if run.state != "queued":
        return ""
    queue = run.since(0).get("queue")
    place = f": number {queue['position']} of {queue['of']} in line" if queue else ""
    return f"waiting for the device{place}"

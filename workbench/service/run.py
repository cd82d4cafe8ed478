"""One generation as its user sees it: follow it, steer it, end it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.engine.request import CANCELLED, ENDED, ERROR, Row
from workbench.trace.events import Footer, Round, Trace

LOADING = "loading"


class Run:
    """A generation in the backend. Thread-safe; nothing here waits for the engine except `wait` and iteration.

    Attributes:
        id: unguessable; whoever has it may follow and steer the run.
    """

    def __init__(self, change: Callable[[Run, str | None, dict[str, Any] | None, str | None], None]) -> None:
        self.id = secrets.token_urlsafe(12)
        self.created = time.monotonic()
        self.message = ""
        self._change = change
        self._row: Row | None = None
        self._failed: str | None = None
        self._cancelled = False
        self._pending: list[Callable[[Row], None]] = []
        self._news = threading.Condition()

    # -- following -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of: loading, queued, prefill, running, paused, finished, cancelled, error."""
        if self._failed is not None:
            return ERROR
        if self._row is None:
            return CANCELLED if self._cancelled else LOADING
        return self._row.status

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ENDED

    @property
    def trace(self) -> Trace | None:
        """What was recorded so far; None before the models are loaded."""
        return self._row.trace if self._row is not None else None

    def since(self, n: int) -> dict[str, Any]:
        """Everything from round `n` on, as plain JSON: for pages that poll and fill gaps."""
        trace, state = self.trace, self.state
        rounds = trace.rounds[n:] if trace is not None else []
        footer = trace.footer if trace is not None else Footer()
        if self._failed is not None:
            footer = Footer(reason="error", error=self._failed)
        return {
            "run": self.id,
            "state": state,
            "message": self._failed or self.message,
            "seq": n + len(rounds),
            "header": trace.header.to_wire() if trace is not None else None,
            "rounds": [r.to_wire() for r in rounds],
            "footer": footer.to_wire() if state in ENDED else None,
            "warnings": list(footer.warnings),
        }

    def __iter__(self) -> Iterator[Round]:
        """Rounds as they are recorded, to the end of the run."""
        n = 0
        while True:
            ended = self.ended
            rounds = self.trace.rounds[n:] if self.trace is not None else []
            yield from rounds
            n += len(rounds)
            if ended and not rounds:
                return
            if not rounds:
                with self._news:
                    self._news.wait(0.05)

    def wait(self, timeout: float | None = None) -> Trace:
        """Wait for the end and return the trace.

        Raises:
            WorkbenchError: the run failed; the message says what to do.
            TimeoutError: it takes longer than `timeout` seconds. The run goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._news:
            while not self.ended:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"The run has not ended after {timeout:g} s.")
                self._news.wait(0.2 if left is None else min(left, 0.2))
        if self._failed is not None:
            raise WorkbenchError(self._failed)
        trace = self.trace
        if trace is None:
            raise WorkbenchError("The run was cancelled before it started.")
        if self.state == ERROR:
            raise WorkbenchError(trace.footer.error)
        return trace

    # -- steering ------------------------------------------------------------------------------------------------

    def change(
        self, method: str | None = None, params: dict[str, Any] | None = None, drafter: str | None = None
    ) -> None:
        """Switch method, parameters (of method and sampling alike) or draft model, from the next round on.

        Raises:
            UnknownNameError, ParameterError, MethodUnavailableError: at once; the run goes on as it was.
        """
        self._change(self, method, params, drafter)

    def pause(self) -> None:
        """Stop before the next round."""
        self._tell(Row.pause)

    def resume(self) -> None:
        """Go on."""
        self._tell(Row.resume)

    def step(self) -> None:
        """Run one round, then pause."""
        self._tell(Row.step)

    def cancel(self) -> None:
        """End the run; its trace is kept. Does nothing when it has ended."""
        self._cancelled = True
        self._tell(Row.cancel)

    def _tell(self, act: Callable[[Row], None]) -> None:
        with self._news:
            if self._row is None:
                self._pending.append(act)
            else:
                act(self._row)
        self._wake()

    # -- the backend's side --------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Replaced by the backend: lets a sleeping engine look again."""

    def _started(self, row: Row) -> None:
        with self._news:
            self._row, self.message = row, ""
            for act in self._pending:
                self._try(act, row)
            self._pending.clear()
            self._news.notify_all()

    def _try(self, act: Callable[[Row], None], row: Row) -> None:
        """Do what was asked for while models were loading; what turns out to be wrong is said, and the run goes on."""
        try:
            act(row)
        except WorkbenchError as error:
            self.message = str(error)

    def _fail(self, message: str) -> None:
        with self._news:
            self._failed = message
            self._news.notify_all()

    def _notify(self) -> None:
        with self._news:
            self._news.notify_all()

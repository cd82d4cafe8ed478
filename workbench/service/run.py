"""One generation as its user sees it: follow it, steer it, end it."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from workbench.core.errors import WorkbenchError
from workbench.engine.owned import Left
from workbench.engine.request import CANCELLED, ENDED, QUEUED, RUNNING, Row
from workbench.engine.settings import BOTH
from workbench.service.params import check_pace
from workbench.service.progress import Progress
from workbench.trace.events import Footer, Round, Trace

LOADING = "loading"
STILL = "It stands still for a moment: a comparison has the device."


class Host(Protocol):
    """What a run needs of the backend it lives in."""

    def change(
        self,
        run: Run,
        method: str | None,
        params: dict[str, Any] | None,
        drafter: str | None,
        images: Sequence[Any] = (),
        sees: str = BOTH,
    ) -> None:
        """Check a change and hand it to the run's row."""
        ...

    def explain(self, run: Run) -> dict[str, Any]:
        """Fill in the attribution of the run's trace."""
        ...

    def memory(self, run: Run, action: str, data: bytes | None) -> dict[str, Any]:
        """Look at, save, load or empty what the run's drafter remembers."""
        ...

    def place(self, run: Run) -> tuple[int, int] | None:
        """Position in the queue and its length, while the run waits for a row."""
        ...

    def wake(self) -> None:
        """Let a sleeping engine look again."""
        ...

    def started(self, run: Run) -> None:
        """Told once, when the run has got its row."""
        ...

    def ended(self, run: Run) -> None:
        """Told once, when the run has ended."""
        ...


class Run:
    """A generation in the backend. Thread-safe; nothing here waits for the engine except `wait` and iteration.

    Attributes:
        id: unguessable; whoever has it may follow and steer the run.
        user: opaque key of who started it.
        holds: models it needs until it ends.
        trace_bytes: about what its trace takes in memory.
        lease_s: seconds without a call of `since`, `wait` or iteration after which the run is cancelled; None: never.
        ended_at: `time.monotonic()` of its end, or None.
        method: registry name it was started with.
        planned: method with its parameters, sampling and models it will have once the changes asked for are in force;
            the engine may yet refuse one, see `in_force`.
        request: what its row was made from, with its pictures.
        alone: it has the device to itself while it runs, because it is timed.
        explained: share of its explanation that is done, while one is under way; None: none is.
        background: it is one of many that measure a speed-up, and makes room for whoever else comes.
        charged: tokens that its user was charged for and may get back; see `workbench.service.meter`.
        still_s: seconds it stood still because another run had the device to itself.
        pace: tokens a second at which its rounds are held back so that people can follow; 0: they are not.
        left: what of its drafter it has left behind, where it keeps that.
    """

    def __init__(self, host: Host, user: str, method: str, lease_s: float | None = None) -> None:
        self.id = secrets.token_urlsafe(12)
        self.user, self.method, self.lease_s = user, method, lease_s
        self.created = self.followed = time.monotonic()
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.holds: set[tuple[str, str | None]] = set()
        self.planned: Any = None
        self.request: Any = None
        self.trace_bytes = self.charged = 0
        self.alone, self.still_s = False, 0.0
        self.explained: float | None = None
        self.pace, self.background = 0.0, False
        self._host = host
        self._progress: Progress | None = None
        self._message = self._stopped = ""
        self._state = LOADING
        self._problem: WorkbenchError | None = None
        self._row: Row | None = None
        self._stood_s = 0.0
        self.left: Left | None = None
        self._trace: Trace | None = None
        self._pending: list[Callable[[Row], None]] = []
        self._news = threading.Condition()

    # -- following -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of: loading, queued, prefill, running, paused, finished, cancelled, error."""
        row, state = self._row, self._state
        if row is None or state in ENDED:
            return state
        # a row that has ended is a run that goes on until it is ended too
        return RUNNING if row.status in ENDED else row.status

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._state in ENDED

    @property
    def message(self) -> str:
        """What a waiting user should know; empty most of the time."""
        progress, row = self._progress, self._row
        if row is not None and row.held:
            return STILL
        return str(self._problem or "") or (
            progress.text if progress is not None and self._state == LOADING else self._message
        )

    @property
    def trace(self) -> Trace | None:
        """What was recorded so far; None before the run has a row."""
        return self._trace

    def since(self, n: int) -> dict[str, Any]:
        """Everything from round `n` on, as plain JSON: for pages that poll and fill gaps. Renews the lease.

        Returns:
            run, state, message; seq (rounds so far); header, rounds from `n` on, footer (once it has ended);
            problem {"kind", "message", "remedy"} of a run that failed; warnings; queue {"position", "of"} while it
            waits for a row; loading {"stage", "done", "total"} while models load (bytes); pace (tokens a second at
            which rounds are held back, or 0).
        """
        self.followed = time.monotonic()
        state, trace = self.state, self.trace
        n = max(0, n)
        rounds = trace.rounds[n:] if trace is not None else []
        footer = self._footer(trace)
        place = self._host.place(self) if state == QUEUED else None
        progress, problem = self._progress, self._problem
        return {
            "run": self.id,
            "state": state,
            "message": self.message,
            "seq": n + len(rounds),
            "header": trace.header.to_wire() if trace is not None else None,
            "rounds": [r.to_wire() for r in rounds],
            "footer": footer.to_wire() if state in ENDED else None,
            "problem": problem
            and {"kind": type(problem).__name__, "message": problem.message, "remedy": problem.remedy},
            "warnings": list(footer.warnings),
            "queue": {"position": place[0], "of": place[1]} if place is not None else None,
            "loading": progress.to_wire() if progress is not None and state == LOADING else None,
            "pace": self.pace,
        }

    def _footer(self, trace: Trace | None) -> Footer:
        """The trace's own, or one that says why there is no trace."""
        if trace is not None:
            return trace.footer
        reason = self.stopped if self._state == CANCELLED else self._state
        return Footer(reason=reason, error=str(self._problem or "")) if self._state in ENDED else Footer()

    @property
    def stopped(self) -> str:
        """Why it was stopped, if it was: one of `workbench.trace.events.STOPPED`."""
        return self._stopped or CANCELLED

    def __iter__(self) -> Iterator[Round]:
        """Rounds as they are recorded, to the end of the run."""
        n = 0
        while True:
            self.followed = time.monotonic()
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
                self.followed = time.monotonic()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"The run has not ended after {timeout:g} s.")
                self._news.wait(0.2 if left is None else min(left, 0.2))
        if self._problem is not None:
            raise type(self._problem)(self._problem.message, self._problem.remedy)
        if self._trace is None:
            raise WorkbenchError(self._message or "The run was cancelled before it started.")
        return self._trace

    # -- steering ------------------------------------------------------------------------------------------------

    def change(
        self,
        method: str | None = None,
        params: dict[str, Any] | None = None,
        drafter: str | None = None,
        images: Sequence[Any] = (),
        sees: str = BOTH,
        pace: float | None = None,
    ) -> None:
        """Switch method, parameters (of method and sampling alike), draft model or pictures, from the next round on.

        Args:
            method: registry name.
            params: of the method and of sampling.
            drafter: name of a draft model.
            images: as many pictures as the prompt has, as in `start`. The target reads them in place of the old ones
                and goes on with the text as it is; or, with sees="drafter", the drafter alone sees them.
            sees: "both" or "drafter".
            pace: tokens a second at which rounds are held back so that people can follow, at once; 0: they are not.

        Raises:
            UnknownNameError, ParameterError, MethodUnavailableError: at once; the run goes on as it was.
        """
        if pace is not None:
            self.pace = check_pace(0.0 if self.alone else pace)
            self.tell(lambda row: row.pace.follow(self.pace))
        if pace is None or method or params or drafter or images:
            self._host.change(self, method, params, drafter, images, sees)

    def explain(self) -> dict[str, Any]:
        """On which parts of the picture the text so far leans: `Trace.attribution`, which is filled in.

        Raises:
            PromptError, CapacityError: the run has no pictures, no token yet, or is too long.
        """
        return self._host.explain(self)

    def memory(self, action: str = "look", data: bytes | None = None) -> dict[str, Any]:
        """What its drafter remembers: see `workbench.client.RunHandle.memory`."""
        return self._host.memory(self, action, data)

    def pause(self) -> None:
        """Stop before the next round."""
        self.tell(Row.pause)

    def resume(self) -> None:
        """Go on."""
        self.tell(Row.resume)

    def step(self) -> None:
        """Run one round, then pause."""
        self.tell(Row.step)

    def cancel(self, message: str = "", reason: str = CANCELLED) -> None:
        """End the run; its trace is kept. Does nothing when it has ended.

        Args:
            message: why, when it was not the user who asked.
            reason: the same in one word, for the trace: one of `workbench.trace.events.STOPPED`.
        """
        with self._news:
            if self.ended:
                return
            self._message = message or self._message
            self._stopped = self._stopped or reason
            closed = self._row is None and self._close(CANCELLED, None)
        if closed:
            self._host.ended(self)
        else:
            self.tell(Row.cancel)

    def tell(self, act: Callable[[Row], None]) -> None:
        """Do something to the row, now or once there is one."""
        with self._news:
            if self.ended:
                return
            if self._row is None:
                self._pending.append(act)
            else:
                act(self._row)
        self._host.wake()

    # -- the backend's side --------------------------------------------------------------------------------------

    def loads(self, progress: Progress) -> None:
        """Models are being loaded for this run."""
        self._progress = progress

    def queued(self) -> None:
        """It waits for a row."""
        with self._news:
            if not self.ended:
                self._state, self._progress = QUEUED, None

    def started(self, row: Row) -> None:
        """It has a row. What was asked for before is done now; a run cancelled in the meantime lets the row go."""
        with self._news:
            if self.ended:
                row.cancel()
                return
            self._row, self._trace, self._progress = row, row.trace, None
            self.started_at = time.monotonic()
            for act in self._pending:
                self._try(act, row)
            self._pending.clear()
            self._news.notify_all()
        self._host.started(self)

    def _try(self, act: Callable[[Row], None], row: Row) -> None:
        """What turns out to be wrong is said, and the run goes on."""
        try:
            act(row)
        except WorkbenchError as error:
            self._message = str(error)

    @property
    def stood_s(self) -> float:
        """Seconds it stood still because it was paused or held back."""
        return self._stood_s if self._row is None else self._row.pace.still_s

    @property
    def row(self) -> Row | None:
        """The row it has, if any."""
        return self._row

    @property
    def in_force(self) -> tuple[Any, tuple[str, str | None]]:
        """The method with its parameters, and the models, that its last round had: a change may have been refused."""
        row = self._row
        if row is not None:
            return row.configured, (row.models.target_name, row.models.writer_name)
        configured, _, pair = self.planned
        return configured, pair

    def end(self, state: str, problem: WorkbenchError | None = None) -> None:
        """End it: nothing more will come. The row, and with it every hold on models, is let go."""
        if self._close(state, problem):
            self._host.ended(self)

    def _close(self, state: str, problem: WorkbenchError | None) -> bool:
        with self._news:
            if self.ended:
                return False
            self._stood_s = self.stood_s
            if self._row is not None and (left := self._row.left) is not None:
                self.left = left
                self.trace_bytes += len(left.data or b"")
            if self._row is not None and self.planned is not None:
                configured, pair = self.in_force
                self.planned = configured, self.planned[1], pair  # nothing more will come into force
            self._state, self._problem, self._row = state, problem, None
            self.ended_at = time.monotonic()
            self._pending.clear()
            if self.request is not None:
                self.request.models = None  # a run that is kept for its trace holds no model
                self.request.on_round = None  # it holds the run: nothing of both would go before a collection
            self._news.notify_all()
            return True

    def forget_pictures(self) -> None:
        """Let go of the pictures of a run that nobody can ask for any more; whoever explains it keeps them until then.

        Decoded, eight of the largest take 128 MiB. The trace and the log-probabilities stay.
        """
        if self.request is not None:
            self.request = dataclasses.replace(self.request, pictures=(), images=None, swaps=[], on_round=None)

    def notify(self) -> None:
        """There may be news for whoever waits."""
        with self._news:
            self._news.notify_all()

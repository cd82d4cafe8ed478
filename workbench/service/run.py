"""A run: a generation in the backend that a user can follow, change, pause and cancel."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections import abc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from workbench.core.errors import WorkbenchError
from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.inspectable_state import FinishedState
from workbench.decoders.draft_verify.state import final_state
from workbench.engine.method_protocols import ConfiguredMethodProtocol
from workbench.engine.request import CANCELLED, ENDED, QUEUED, RUNNING, Request, Sequence
from workbench.engine.settings import BOTH
from workbench.service.names import Pair
from workbench.service.params import check_pace
from workbench.service.progress import Progress
from workbench.trace.events import Footer, Round, Trace
from workbench.trace.images import images_of

LOADING = "loading"
HELD_MESSAGE = "The run is suspended while a comparison uses the device."
ROUND_BYTES, NODE_BYTES, TOKEN_BYTES, TOP_BYTES = 3000, 190, 280, 650
"""Approximate memory in bytes of a recorded round, and of each draft node, token and list of top tokens in it.

A test compares these numbers with measured sizes.
"""


def round_bytes(record: Round) -> int:
    """Return the approximate memory of a round in the trace, in bytes."""
    tops = len(record.top_p) + sum(top is not None for top in (*record.top_q, *record.ranking))
    n_bytes = ROUND_BYTES + NODE_BYTES * len(record.nodes) + TOKEN_BYTES * len(record.emitted) + TOP_BYTES * tops
    return n_bytes + sum(len(picture["url"]) for picture in images_of(record.vision))


class Host(Protocol):
    """Interface of the backend that its runs call."""

    def change(
        self,
        run: Run,
        method: str | None,
        params: dict[str, Any] | None,
        drafter: str | None,
        images: abc.Sequence[Any] = (),
        sees: str = BOTH,
    ) -> None:
        """Check a change of a run's settings, and pass it to the engine. `Run.change` describes the arguments."""
        ...

    def explain(self, run: Run) -> dict[str, Any]:
        """Compute attribution maps of a run's tokens over regions of its images, and store them in the run's trace."""
        ...

    def memory(self, run: Run, action: str, data: bytes | None) -> dict[str, Any]:
        """Inspect, save, load or reset the state of a run's drafter."""
        ...

    def queue_position(self, run: Run) -> tuple[int, int] | None:
        """Return a run's position (from 1) in its target's queue, and the queue's length; None if it is not queued."""
        ...

    def wake(self) -> None:
        """Wake the engine thread from its sleep."""
        ...

    def record_start(self, run: Run) -> None:
        """Count a run that has joined the batch; called once per run."""
        ...

    def record_round(self, run: Run, record: Round) -> None:
        """Count a decoding round of a run in the metrics."""
        ...

    def record_end(self, run: Run) -> None:
        """Count a run that has ended; called once per run."""
        ...


class PlannedSettings(NamedTuple):
    """Settings of a run after all requested changes: method with parameters, sampling parameters, model names."""

    configured_method: ConfiguredMethodProtocol
    sampling: SamplingParams
    pair: Pair


class Run:
    """Generation in the backend. Thread-safe. Only `wait` and iterating over the rounds wait for the engine.

    Attributes:
        id: unguessable id; it gives the right to follow and control the run.
        user: opaque key of the user who started the run.
        model_pairs: pairs of target and draft model that the run needs until it ends.
        trace_bytes: approximate memory of the trace, in bytes.
        lease_s: time without a call of `since`, `wait` or iteration after which the run is cancelled, in seconds;
            None: never.
        ended_at: `time.monotonic()` of the run's end, or None.
        method: name of the method at the start.
        planned: settings after all requested changes, some of which the engine may still refuse; `active_settings` has
            the settings of the last round.
        request: the generation request with its images, in the engine's format.
        is_timed: whether the run is timed and has the device to itself.
        explain_progress: progress from 0 to 1 of attributing the text to the images; None: no attribution is being
            computed.
        background: whether the run belongs to a background measurement, which yields to other users.
        charged_tokens: tokens charged to the user in advance; unused ones are refunded
            (`workbench.service.rate_limiter`).
        held_s: time that the run was suspended for timed runs, in seconds.
        pace: display rate in tokens per second, to which rounds are slowed down; 0: no delay.
        final_drafter_state: state of the drafter, stored after the run's end if requested.
    """

    def __init__(self, host: Host, user: str, method: str, lease_s: float | None = None) -> None:
        self.id = secrets.token_urlsafe(12)
        self.user, self.method, self.lease_s = user, method, lease_s
        self.created = self.followed_at = time.monotonic()
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.model_pairs: set[tuple[str, str | None]] = set()
        self.planned: PlannedSettings | None = None
        self.request: Request | None = None
        self.trace_bytes = self.charged_tokens = 0
        self.is_timed, self.held_s = False, 0.0
        self.explain_progress: float | None = None
        self.pace, self.background = 0.0, False
        self._host = host
        self._progress: Progress | None = None
        self._message = self._stop_reason = ""
        self._state = LOADING
        self._problem: WorkbenchError | None = None
        self._sequence: Sequence | None = None
        self._paused_s = 0.0
        self.final_drafter_state: FinishedState | None = None
        self._trace: Trace | None = None
        self._pending: list[Callable[[Sequence], None]] = []
        self._news = threading.Condition()

    # -- following -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Return the state of the run: loading, queued, prefill, running, paused, finished, cancelled or error."""
        sequence, state = self._sequence, self._state
        if sequence is None or state in ENDED:
            return state
        # if only the engine's sequence has ended, the run is still running until `end` is called
        return RUNNING if sequence.status in ENDED else sequence.status

    @property
    def ended(self) -> bool:
        """Return whether the run has ended, so that no more rounds follow."""
        return self._state in ENDED

    @property
    def message(self) -> str:
        """Return a message about the run's state for the user, such as the progress of loading; usually empty."""
        progress, sequence = self._progress, self._sequence
        if sequence is not None and sequence.is_suspended:
            return HELD_MESSAGE
        return str(self._problem or "") or (
            progress.text if progress is not None and self._state == LOADING else self._message
        )

    @property
    def trace(self) -> Trace | None:
        """Return the run's trace recorded so far; None before the run has joined the batch."""
        return self._trace

    def since(self, n: int) -> dict[str, Any]:
        """Return the run's state and all its rounds from number `n` on, as JSON data, and renew its lease.

        The lease is the time after which a run without viewers is cancelled.

        Viewers, such as the page, poll this method at their own rate (`workbench.client.follow`): the engine never
        sends rounds to a viewer.

        Returns:
            run, state, message; seq (number of rounds so far); header; rounds from `n` on; footer (after the end);
            problem {"kind", "message", "remedy"} of a failed run; warnings; queue {"position", "of"} while the run is
            queued; loading {"stage", "done", "total"} in bytes while models load; pace (tokens per second, or 0).
        """
        self.followed_at = time.monotonic()
        state, trace = self.state, self.trace
        n = max(0, n)
        rounds = trace.rounds[n:] if trace is not None else []
        footer = self._footer(trace)
        place = self._host.queue_position(self) if state == QUEUED else None
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
        """Return the footer of the run's trace; if there is no trace, a footer with the reason."""
        if trace is not None:
            return trace.footer
        reason = self.stop_reason if self._state == CANCELLED else self._state
        return Footer(reason=reason, error=str(self._problem or "")) if self._state in ENDED else Footer()

    @property
    def stop_reason(self) -> str:
        """Return the reason why the run was stopped, one of `workbench.trace.events.ABORT_REASONS`.

        It is "cancelled" unless `cancel` was called with another reason.
        """
        return self._stop_reason or CANCELLED

    def __iter__(self) -> Iterator[Round]:
        """Yield the rounds of the run as they are recorded, until the run ends."""
        n = 0
        while True:
            self.followed_at = time.monotonic()
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
        """Wait for the end of the run and return its trace.

        Raises:
            WorkbenchError: the run failed; the error says how to avoid this.
            TimeoutError: the run takes longer than `timeout` seconds; it continues.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._news:
            while not self.ended:
                self.followed_at = time.monotonic()
                remaining_s = None if deadline is None else deadline - time.monotonic()
                if remaining_s is not None and remaining_s <= 0:
                    raise TimeoutError(f"The run has not ended after {timeout:g} s.")
                self._news.wait(0.2 if remaining_s is None else min(remaining_s, 0.2))
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
        images: abc.Sequence[Any] = (),
        sees: str = BOTH,
        pace: float | None = None,
    ) -> None:
        """Change the method, parameters (of method and sampling), draft model or images, from the next round on.

        Args:
            method: name of a method; None: no change.
            params: parameters of the method and of sampling; missing ones stay as they are.
            drafter: name of a draft model; None: no change.
            images: new images, as many as the prompt has, as in `start`. The target reads them in place of the old ones
                and continues the text; with sees="drafter" only the drafter gets them.
            sees: which models get the new images: "both" (target and drafter) or "drafter".
            pace: display rate in tokens per second, which applies at once; 0: no delay; None: no change.

        Raises:
            UnknownNameError, ParameterError, MethodUnavailableError: the change is refused at once, and the run
                continues unchanged.
        """
        if pace is not None:
            self.pace = check_pace(0.0 if self.is_timed else pace)
            self.apply_to_sequence(lambda sequence: sequence.pace.set_rate(self.pace))
        if pace is None or method or params or drafter or images:
            self._host.change(self, method, params, drafter, images, sees)

    def explain(self) -> dict[str, Any]:
        """Compute attribution maps of the tokens so far over image regions, and store them in `Trace.attribution`.

        Raises:
            PromptError, CapacityError: the run has no images or no tokens yet, or it is too long.
        """
        return self._host.explain(self)

    def memory(self, action: str = "look", data: bytes | None = None) -> dict[str, Any]:
        """Inspect, save, load or reset the drafter's state, as `workbench.client.RunHandle.memory` does."""
        return self._host.memory(self, action, data)

    def pause(self) -> None:
        """Pause the run before its next decoding round."""
        self.apply_to_sequence(Sequence.pause)

    def resume(self) -> None:
        """Continue a paused run."""
        self.apply_to_sequence(Sequence.resume)

    def step(self) -> None:
        """Run one decoding round of the run, then pause it."""
        self.apply_to_sequence(Sequence.step)

    def cancel(self, message: str = "", reason: str = CANCELLED) -> None:
        """End the run and keep its trace. A run that has already ended stays as it is.

        Args:
            message: sentence for the user with the reason; empty if the user cancelled the run.
            reason: reason in one word, for the trace: one of `workbench.trace.events.ABORT_REASONS`.
        """
        with self._news:
            if self.ended:
                return
            self._message = message or self._message
            self._stop_reason = self._stop_reason or reason
            is_closed = self._sequence is None and self._close(CANCELLED, None)
        if is_closed:
            self._host.record_end(self)
        else:
            self.apply_to_sequence(Sequence.cancel)

    def apply_to_sequence(self, act: Callable[[Sequence], None]) -> None:
        """Apply an action to the run's sequence in the engine.

        Before the run joins the batch, the action is stored and applied later.
        """
        with self._news:
            if self.ended:
                return
            if self._sequence is None:
                self._pending.append(act)
            else:
                act(self._sequence)
        self._host.wake()

    # -- calls from the backend ----------------------------------------------------------------------------------

    def set_loading(self, progress: Progress) -> None:
        """Set the progress of loading the models of this run."""
        self._progress = progress

    def set_queued(self) -> None:
        """Set the run's state to queued: it waits to join the batch."""
        with self._news:
            if not self.ended:
                self._state, self._progress = QUEUED, None

    def attach_sequence(self, sequence: Sequence) -> None:
        """Connect the run with its sequence in the engine, and apply pending actions to the sequence.

        If the run has been cancelled, the sequence is cancelled.

        From then on the run's trace is the sequence's trace, so that `since` returns the rounds that the engine
        appends.
        """
        with self._news:
            if self.ended:
                sequence.cancel()
                return
            self._sequence, self._trace, self._progress = sequence, sequence.trace, None
            self.started_at = time.monotonic()
            for act in self._pending:
                self._try(act, sequence)
            self._pending.clear()
            self._news.notify_all()
        self._host.record_start(self)

    def record(self, record: Round) -> None:
        """Count a new round of the trace, and wake waiting threads. Called in the engine's thread."""
        self.trace_bytes += round_bytes(record)
        self._host.record_round(self, record)
        self.notify()

    def _try(self, act: Callable[[Sequence], None], sequence: Sequence) -> None:
        """Apply an action to a sequence in the engine. If it fails, show the error as the run's status message."""
        try:
            act(sequence)
        except WorkbenchError as error:
            self._message = str(error)

    @property
    def paused_s(self) -> float:
        """Return the time in seconds that the run was paused or delayed for its display rate."""
        return self._paused_s if self._sequence is None else self._sequence.pace.paused_s

    @property
    def sequence(self) -> Sequence | None:
        """Return the engine's sequence of the run; None before the run has joined the batch, and after its end."""
        return self._sequence

    @property
    def active_settings(self) -> tuple[ConfiguredMethodProtocol, Pair]:
        """Return the method, parameters and models with which the run decoded its last round.

        They differ from `planned` if the engine has refused a change.
        """
        sequence = self._sequence
        if sequence is not None:
            return sequence.configured_method, (sequence.models.target_name, sequence.models.draft_model_name)
        assert self.planned is not None, "only a run that a backend started can be changed"
        return self.planned.configured_method, self.planned.pair

    def end(self, state: str, problem: WorkbenchError | None = None) -> None:
        """End the run, and release its sequence and its models.

        Args:
            state: final state: "finished", "cancelled" or "error".
            problem: error of a failed run; None: no error.
        """
        if self._close(state, problem):
            self._host.record_end(self)

    def _close(self, state: str, problem: WorkbenchError | None) -> bool:
        with self._news:
            if self.ended:
                return False
            self._paused_s = self.paused_s
            if self._sequence is not None and (state_of_drafter := final_state(self._sequence)) is not None:
                self.final_drafter_state = state_of_drafter
                self.trace_bytes += len(state_of_drafter.data or b"")
            if self._sequence is not None and self.planned is not None:
                configured, pair = self.active_settings
                self.planned = PlannedSettings(configured, self.planned.sampling, pair)  # pending changes are void
            self._state, self._problem, self._sequence = state, problem, None
            self.ended_at = time.monotonic()
            self._pending.clear()
            if self.request is not None:
                self.request.models = None  # a run that is stored for its trace must not keep models in memory
                self.request.on_round = None  # breaks the reference cycle with the run
            self._news.notify_all()
            return True

    def release_images(self) -> None:
        """Free the memory of the images of a run that was removed from the register.

        An attribution that is being computed keeps its own references to the images.

        Eight decoded images of maximum size take 128 MiB. The run keeps its trace and log-probabilities.
        """
        if self.request is not None:
            self.request = dataclasses.replace(
                self.request, pil_images=(), image_inputs=None, image_changes=[], on_round=None
            )

    def notify(self) -> None:
        """Wake the threads that wait for a change of the run."""
        with self._news:
            self._news.notify_all()

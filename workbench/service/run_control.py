"""Change running generations, compute attribution maps over their images, and access the states of drafters."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from typing import Any

from workbench.core.errors import CapacityError, MethodUnavailableError, PromptError, WorkbenchError
from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify import state_actions
from workbench.decoders.draft_verify.image_attribution import explain
from workbench.decoders.draft_verify.inspectable_state import inspectable_state_of
from workbench.decoders.draft_verify.state import drafter_state
from workbench.engine import Models
from workbench.engine.image_inputs import create_image_change
from workbench.engine.method_protocols import ConfiguredMethodProtocol
from workbench.engine.request import Sequence
from workbench.engine.settings import BOTH
from workbench.methods import registry
from workbench.service import choices
from workbench.service.fairlock import FairLock
from workbench.service.image_decoding import decode_all, image_bytes
from workbench.service.modelpool import ModelPool
from workbench.service.names import Names, Pair
from workbench.service.params import split_params
from workbench.service.request_context import make_disconnect_check
from workbench.service.run import PlannedSettings, Run
from workbench.service.timing_coordination import TimingCoordinator

ANSWER_S = 20.0
"""Time limit in seconds for reading or replacing a drafter's state, which must wait for the end of a round."""


class RunController:
    """Change running generations, compute attribution maps over their images, and inspect or replace drafters' states.

    An attribution map contains the weight of each image region (vision token) for one generated token.

    Args:
        names: resolver of model names.
        pool: loaded models.
        load: function that loads other models and waits for them.
        admit_request: function that counts a request of a user toward the rate limit.
        timing: coordination with timed runs; an attribution waits while a run is timed.
        wake: function that wakes a sleeping engine.
    """

    def __init__(
        self,
        names: Names,
        pool: ModelPool,
        load: Callable[[Pair], Models],
        admit_request: Callable[[str], None],
        timing: TimingCoordinator,
        wake: Callable[[], None],
    ) -> None:
        self._wake = wake
        self._names, self._pool, self._load, self._timing = names, pool, load, timing
        self._admit_request = admit_request
        self._explain_lock = FairLock()

    def change(
        self,
        run: Run,
        method: str | None,
        params: dict[str, Any] | None,
        drafter: str | None,
        images: abc.Sequence[Any] = (),
        sees: str = BOTH,
    ) -> None:
        """Check a change of a run's settings, load its new draft model, if any, and pass it to the engine."""
        pictures, request, planned = decode_all(images), run.request, run.planned
        assert request is not None
        assert planned is not None
        if pictures and (run.ended or not request.pil_images):
            raise PromptError("The run has no images that could be replaced.", "Start a run with images.")
        run.trace_bytes += image_bytes(pictures)
        chosen = registry.get(method) if method else None
        pair = planned.pair
        other: Models | None = None
        if drafter:
            pair = self._names.resolve_pair(pair[0], drafter)
            run.model_pairs.add(pair)
            other = self._pool.get(pair) or self._load(pair)
        elif chosen is not None:
            other = self._pool.get(pair)  # may contain heads that were promoted after the run's start

        def checked(
            configured: ConfiguredMethodProtocol, sampling: SamplingParams, models: Models | None
        ) -> dict[str, Any]:
            new_method = chosen or configured.method
            method_params, sampling = split_params(new_method, params or {}, sampling)
            changed = (
                configured.with_changes(**method_params)
                if new_method is configured.method
                else new_method.with_params(**method_params)
            )
            reason = models.unsupported_reason if models is not None else choices.static_reasons(*pair)
            if problem := reason(changed.needs):
                raise MethodUnavailableError(f"{new_method.title} cannot run: {problem}")
            image_change = (
                create_image_change(models, request, pictures, sees) if pictures and models is not None else None
            )
            run.trace_bytes += image_bytes((), None if image_change is None else image_change.image_inputs)
            run.planned = PlannedSettings(changed, sampling, pair)
            return {
                "method": chosen,
                "params": method_params,
                "sampling": sampling,
                "models": models,
                "image_change": image_change,
            }

        def apply_change(sequence: Sequence) -> None:
            settings = sequence.requested_settings().active
            sequence.change(**checked(settings.configured_method, settings.sampling, other or settings.models))

        planned = run.planned  # another change may have been planned meanwhile
        assert planned is not None
        (configured, sampling, _), models = planned, other or self._pool.get(pair)
        if run.sequence is None:
            checked(configured, sampling, models)
        if models is not None and (
            chosen is not None or other is not None
        ):  # in this thread, so that the engine does not wait
            changed_method = chosen or configured.method
            changed_method.with_params(**split_params(changed_method, params or {}, sampling)[0]).drafter.make_ready(
                models
            )
        run.apply_to_sequence(apply_change)

    def memory(self, run: Run, action: str, data: bytes | None) -> dict[str, Any]:
        """Inspect, save, load or reset the state of a run's drafter (see `workbench.client.RunHandle.memory`)."""
        if run.sequence is None:
            return _kept_state(run, action)
        if action != "look":  # saving and loading delay the rounds of all runs
            self._admit_request(run.user)

        def do(sequence: Sequence) -> dict[str, Any]:
            self._check_own(sequence, action)
            saved = {"data": state_actions.save(sequence)} if action == "save" else {}
            if action == "load":
                state_actions.load(sequence, data or b"")
            elif action == "reset":
                state_actions.reset(sequence)
            loaded = self._pool.target(sequence.models.target_name)
            assert loaded is not None, "the models of an active run stay loaded"
            return state_actions.inspect_state(sequence, loaded.engine.token_text) | saved

        future = run.sequence.pending_actions.submit(do)
        self._wake()
        try:
            return future.result(ANSWER_S)
        except TimeoutError:
            future.cancel()
            raise CapacityError(
                f"The run did not finish a round within {ANSWER_S:g} s, and its drafter's state is available "
                f"only between rounds.",
                "Try again when the run continues.",
            ) from None

    def _check_own(self, sequence: Sequence, action: str) -> None:
        """Refuse to load or reset a drafter's state on a public server if all users share this state."""
        state = inspectable_state_of(drafter_state(sequence))
        if state is not None and state.shared and action in ("load", "reset") and not self._names.folders:
            message = "The state of this drafter is shared by all users of this server."
            raise MethodUnavailableError(
                message, "Start a run with warm=false, so that its drafter gets a separate state."
            )

    def explain(self, run: Run) -> dict[str, Any]:
        """Compute attribution maps of a run's tokens over regions of its images, and store them in its trace.

        The computation runs in the caller's thread.

        Only one attribution is computed at a time; client addresses take turns. None is computed while a run is timed.
        `run.explain_progress` is its progress. The computation stops if the client disconnects.

        Raises:
            PromptError: the run has no images, or no tokens yet.
            CapacityError: the run is too long, or the user's address exceeds its limits.
            DisconnectedError: the caller disconnected.
        """
        request, trace = run.request, run.trace
        if trace is None or request is None or request.image_inputs is None:
            raise PromptError(
                "Attribution maps need a run with images and at least one generated token.",
                "Start a run with images, and wait for a token.",
            )
        configured, pair = run.active_settings
        models = self._pool.get(pair) or self._load(pair)

        check_connected = make_disconnect_check()
        self._admit_request(run.user)

        def report(done: float) -> None:
            check_connected()
            run.explain_progress = done

        report(0.0)
        try:
            with self._explain_lock.hold(run.user, check_connected), self._timing.exclude_timed_runs():
                trace.attribution = explain(models, request, trace, configured.drafter, report)
        finally:
            run.explain_progress = None
        return trace.attribution


def _kept_state(run: Run, action: str) -> dict[str, Any]:
    """Return the drafter's state that was stored when the run ended.

    Raises:
        WorkbenchError: the run has not started, or no drafter state was stored.
    """
    if not run.ended:
        raise WorkbenchError("The run has not started yet.", "Try again in a moment.")
    if run.final_drafter_state is None or action not in ("look", "save"):
        raise WorkbenchError(
            "The run has ended, and its drafter's state was not kept.",
            "Load the file of a saved state into the next run.",
        )
    if action == "look":
        return run.final_drafter_state.summary
    if run.final_drafter_state.data is None:
        raise MethodUnavailableError(
            run.final_drafter_state.why or "The drafter has no state to save.", "Choose another drafter."
        )
    return run.final_drafter_state.summary | {"data": run.final_drafter_state.data}

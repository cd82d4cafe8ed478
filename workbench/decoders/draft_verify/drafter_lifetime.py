"""Lifetime of a drafter's state for a sequence: creation, full context, a change of drafter, release.

A drafter that learns from the text and the target's outputs has a key for its state (`Drafter.state_key`). When another
drafter replaces it, the old drafter becomes inactive and still receives every round's feedback. The inactive drafter's
state is used again when a drafter with the same key is chosen. An inactive drafter is released when the sequence ends
or changes to a decoder of another kind.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.core.errors import ContextError
from workbench.core.panics import convert_panics
from workbench.decoders.draft_verify.parts import Drafter, RoundFeedback

if TYPE_CHECKING:
    from workbench.engine.request import Sequence
    from workbench.models.loading import Models

log = logging.getLogger(__name__)


def init_drafter_state(sequence: Sequence, drafter: Drafter, models: Models) -> Any:
    """Create the drafter's state from the committed tokens of a sequence; None if they exceed the drafter's context."""
    sequence.state.no_draft_reason = ""
    try:
        return drafter.init_state(sequence, models)
    except ContextError:
        sequence.state.no_draft_reason = _too_short(models)
        return None


def levels_left(sequence: Sequence) -> int:
    """Return how many levels the drafter of a sequence can still draft, within its context.

    A warning is added once if no position is left for drafts.
    """
    depth = None if sequence.state.no_draft_reason else sequence.drafter.max_levels(sequence)
    if depth is not None and depth < 1:
        sequence.state.no_draft_reason = _too_short(sequence.models)
    if sequence.state.no_draft_reason:
        if not sequence.has_warning(sequence.state.no_draft_reason):
            sequence.add_warning(sequence.state.no_draft_reason)
        return 0
    return sequence.remaining if depth is None else depth


def _too_short(models: Models) -> str:
    assert models.draft_model is not None
    return (
        f"{models.draft_model_name} has a context of {models.draft_model.context} tokens, which the text has "
        f"filled. From here on nothing is drafted, and every round is plain decoding. Choose a draft model with "
        f"a longer context, or a method without a draft model."
    )


@dataclass(frozen=True, slots=True)
class ObservingDrafter:
    """Inactive drafter of a sequence, which still receives feedback after each round.

    Attributes:
        drafter: the drafter, with the parameters that it had while it drafted.
        models: models with which the state was created.
        state: state of the drafter for the sequence.
    """

    drafter: Drafter
    models: Models
    state: Any


def find_reusable_state(sequence: Sequence, drafter: Drafter, models: Models) -> ObservingDrafter | None:
    """Return the state of the current or an inactive drafter that a new drafter can use; None if there is none.

    Args:
        sequence: sequence whose drafter changes.
        drafter: new drafter, not used yet.
        models: models with which the new drafter will run.
    """
    name = drafter.state_key()
    if name is None:
        return None
    if name == sequence.drafter.state_key() and not sequence.state.no_draft_reason:
        observer = ObservingDrafter(sequence.drafter, sequence.models, sequence.state.drafter)
    else:
        observer = sequence.state.inactive.get(name)
    return observer if observer is not None and observer.models.shared is models.shared else None


def replace_drafter(sequence: Sequence, drafter: Drafter, reused: ObservingDrafter | None) -> None:
    """Replace the current drafter of a sequence: make it inactive and keep its state, or release its resources.

    Args:
        sequence: sequence that still has the old drafter, models and state.
        drafter: new drafter.
        reused: state that the new drafter took over (`find_reusable_state`), if any.
    """
    name, new_name = sequence.drafter.state_key(), drafter.state_key()
    if reused is not None and reused.state is sequence.state.drafter:  # same state, other parameters
        return
    if (
        new_name is not None
        and (observer := sequence.state.inactive.pop(new_name, None)) is not None
        and reused is None
    ):
        _release(sequence, observer)
    if name is None or name == new_name or sequence.state.no_draft_reason:
        release_drafter(sequence)
        return
    sequence.state.inactive[name] = ObservingDrafter(sequence.drafter, sequence.models, sequence.state.drafter)
    sequence.state.drafter = None


def send_feedback(sequence: Sequence, feedback: RoundFeedback) -> None:
    """Pass a round's feedback to the inactive (replaced) drafters of a sequence.

    If a drafter raises an error, it is released and the run continues.
    """
    for name, observing in list(sequence.state.inactive.items()):
        if not _learns(sequence, observing, feedback):
            _release(sequence, sequence.state.inactive.pop(name))


def _learns(sequence: Sequence, observing: ObservingDrafter, outcome: RoundFeedback) -> bool:
    try:
        with convert_panics(), _own_state(sequence, observing):
            observing.drafter.observe(sequence, outcome)
    except Exception:
        log.exception(
            "The drafter %s failed while processing a round's feedback and receives no further feedback",
            type(observing.drafter).__name__,
        )
        return False
    return True


def release_inactive(sequence: Sequence) -> None:
    """Release all inactive (replaced) drafters of a sequence."""
    while sequence.state.inactive:
        _release(sequence, sequence.state.inactive.popitem()[1])


def release_drafter(sequence: Sequence) -> None:
    """Release the resources of a sequence's current drafter; errors are only logged."""
    _release(sequence, ObservingDrafter(sequence.drafter, sequence.models, sequence.state.drafter))
    sequence.state.drafter = None


def _release(sequence: Sequence, observing: ObservingDrafter) -> None:
    try:
        with _own_state(sequence, observing):
            observing.drafter.release(sequence, observing.models)
    except Exception:
        log.exception("The drafter %s could not release its resources", type(observing.drafter).__name__)


@contextmanager
def _own_state(sequence: Sequence, observing: ObservingDrafter) -> Iterator[None]:
    """Context manager that sets `sequence.state.drafter` to the state of an inactive (replaced) drafter."""
    state, sequence.state.drafter = sequence.state.drafter, observing.state
    try:
        yield
    finally:
        sequence.state.drafter = state

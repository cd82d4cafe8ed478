"""Drafter state that survives a change of drafter: earlier drafters keep learning while another one drafts.

A drafter that learns from the text and the target's outputs names its state (`Drafter.memory`). When another drafter
replaces it, the state is set aside and still receives every round's feedback. The state is used again when a drafter
with a memory of that name is chosen. It is released when the sequence ends or changes to a decoder of another kind.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.core.panics import no_panic
from workbench.decoders.draft_verify.feedback import RoundFeedback
from workbench.decoders.draft_verify.parts import Drafter

if TYPE_CHECKING:
    from workbench.engine.request import Row
    from workbench.models.loading import Models

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObservingDrafter:
    """An inactive drafter that still receives feedback.

    Attributes:
        drafter: the drafter, with the parameters that it had.
        models: models that it was primed with.
        state: state of the drafter for the sequence.
    """

    drafter: Drafter
    models: Models
    state: Any


def remembered(row: Row, drafter: Drafter, models: Models) -> ObservingDrafter | None:
    """Return the state that a new drafter can take over, of the current or an inactive drafter; None if there is none.

    Args:
        row: sequence.
        drafter: new drafter, which does not draft yet; nothing is changed.
        models: models that it will run with.
    """
    name = drafter.memory()
    if name is None:
        return None
    if name == row.drafter.memory() and not row.state.no_drafts:
        observer = ObservingDrafter(row.drafter, row.models, row.state.drafter)
    else:
        observer = row.state.inactive.get(name)
    return observer if observer is not None and observer.models.shared is models.shared else None


def put_by(row: Row, drafter: Drafter, taken: ObservingDrafter | None) -> None:
    """Replace the current drafter: keep its state among the inactive drafters, or release its resources.

    Args:
        row: sequence; its drafter, models and state are still the old ones.
        drafter: new drafter.
        taken: state that the new drafter took over (`remembered`), if any.
    """
    name, new_name = row.drafter.memory(), drafter.memory()
    if taken is not None and taken.state is row.state.drafter:  # the same memory with other parameters
        return
    if new_name is not None and (observer := row.state.inactive.pop(new_name, None)) is not None and taken is None:
        _release(row, observer)
    if name is None or name == new_name or row.state.no_drafts:
        let_go(row)
        return
    row.state.inactive[name] = ObservingDrafter(row.drafter, row.models, row.state.drafter)
    row.state.drafter = None


def tell(row: Row, outcome: RoundFeedback) -> None:
    """Pass a round's feedback to the inactive drafters. One that fails is released; the run continues."""
    for name, observing in list(row.state.inactive.items()):
        if not _learns(row, observing, outcome):
            _release(row, row.state.inactive.pop(name))


def _learns(row: Row, observing: ObservingDrafter, outcome: RoundFeedback) -> bool:
    try:
        with no_panic(), _own_state(row, observing):
            observing.drafter.observe(row, outcome)
    except Exception:
        log.exception("%s no longer receives feedback", type(observing.drafter).__name__)
        return False
    return True


def forget(row: Row) -> None:
    """Release all inactive drafters."""
    while row.state.inactive:
        _release(row, row.state.inactive.popitem()[1])


def let_go(row: Row) -> None:
    """Release the current drafter's resources for the sequence; errors are only logged."""
    _release(row, ObservingDrafter(row.drafter, row.models, row.state.drafter))
    row.state.drafter = None


def _release(row: Row, observing: ObservingDrafter) -> None:
    try:
        with _own_state(row, observing):
            observing.drafter.release(row, observing.models)
    except Exception:
        log.exception("%s could not release its resources", type(observing.drafter).__name__)


@contextmanager
def _own_state(row: Row, observing: ObservingDrafter) -> Iterator[None]:
    """Temporarily replace `row.state.drafter` by the state of an inactive drafter."""
    state, row.state.drafter = row.state.drafter, observing.state
    try:
        yield
    finally:
        row.state.drafter = state

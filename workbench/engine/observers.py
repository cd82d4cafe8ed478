"""What drafters learnt of a row outlives a change of drafter: they go on watching while another one drafts.

A drafter that learns from the text and from what the target said of it names its memory (`Drafter.memory`). When
another drafter takes its place the memory is put by, is told of every round, and is taken up again when a drafter with
a memory of that name comes back. It ends with the row, or when the row goes on with a decoder of another kind.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.core.panics import no_panic
from workbench.engine.feedback import Outcome
from workbench.engine.parts import Drafter

if TYPE_CHECKING:
    from workbench.engine.request import Row
    from workbench.models.loading import Models

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Learner:
    """A drafter that watches.

    Attributes:
        drafter: with the parameters it drafted with.
        models: those it was primed with.
        state: what it keeps of the row.
    """

    drafter: Drafter
    models: Models
    state: Any


def remembered(row: Row, drafter: Drafter, models: Models) -> Learner | None:
    """Whose memory a drafter takes up: that of the drafter in force, or of one that watches; None where there is none.

    Args:
        row: whose text it is.
        drafter: the one that comes; it is not in force yet, and nothing is changed.
        models: those it will run with.
    """
    name = drafter.memory()
    if name is None:
        return None
    if name == row.drafter.memory() and not row.silenced:
        found = Learner(row.drafter, row.models, row.state)
    else:
        found = row.learners.get(name)
    return found if found is not None and found.models.shared is models.shared else None


def put_by(row: Row, drafter: Drafter, taken: Learner | None) -> None:
    """The drafter in force makes room for another one: what it learnt watches from now on, or it gives back all.

    Args:
        row: its drafter, models and state are still those of the one that goes.
        drafter: the one that comes.
        taken: the memory that it took up (`remembered`): it is told of rounds as its own from now on.
    """
    name, coming = row.drafter.memory(), drafter.memory()
    if taken is not None and taken.state is row.state:  # one memory, other parameters
        return
    if coming is not None and (watching := row.learners.pop(coming, None)) is not None and taken is None:
        _release(row, watching)
    if name is None or name == coming or row.silenced:
        let_go(row)
        return
    row.learners[name] = Learner(row.drafter, row.models, row.state)
    row.state = None


def tell(row: Row, outcome: Outcome) -> None:
    """A round was committed: drafters that watch learn from it. One that fails watches no more; the run goes on."""
    for name, learner in list(row.learners.items()):
        if not _learns(row, learner, outcome):
            _release(row, row.learners.pop(name))


def _learns(row: Row, learner: Learner, outcome: Outcome) -> bool:
    try:
        with no_panic(), _own_state(row, learner):
            learner.drafter.observe(row, outcome)
    except Exception:
        log.exception("%s no longer receives feedback", type(learner.drafter).__name__)
        return False
    return True


def forget(row: Row) -> None:
    """Those that watch give back what they hold."""
    while row.learners:
        _release(row, row.learners.popitem()[1])


def let_go(row: Row) -> None:
    """The drafter in force gives back what it holds for the row, which goes on, or ends, whatever comes of it."""
    _release(row, Learner(row.drafter, row.models, row.state))
    row.state = None


def _release(row: Row, learner: Learner) -> None:
    try:
        with _own_state(row, learner):
            learner.drafter.release(row, learner.models)
    except Exception:
        log.exception("%s could not release its resources", type(learner.drafter).__name__)


@contextmanager
def _own_state(row: Row, learner: Learner) -> Iterator[None]:
    """`row.state` is what a drafter reads its own state from."""
    state, row.state = row.state, learner.state
    try:
        yield
    finally:
        row.state = state

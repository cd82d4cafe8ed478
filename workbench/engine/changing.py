"""What may change under a row between two rounds: its settings, its pictures, and how far its drafter can follow."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from workbench.core.errors import ContextError, MethodUnavailableError, PromptError, as_said
from workbench.core.panics import no_panic
from workbench.engine.models import Models
from workbench.engine.parts import Drafter
from workbench.engine.pictures import tokens_of
from workbench.engine.request import BOTH, Ask, Row, Settings, Swap
from workbench.engine.runner import Runner

log = logging.getLogger(__name__)


def put_in_force(row: Row, target: Runner) -> None:
    """Take in the changes that were asked for. One that cannot be is said, and the run goes on with what it had."""
    row.changes = []
    if asks := row.take_changes():
        _take(row, target, asks)


def _take(row: Row, target: Runner, asks: Sequence[Ask]) -> None:
    """Take in the changes of `asks` together or, where that cannot be, those that can.

    Raises:
        Exception: what the target had read of the text could not be restored. The row cannot go on.
    """
    settings, length = row.settings_after(asks), row.place.length
    try:
        with no_panic():
            _switch(row, target, settings)
    except Exception as error:  # a bug of a method that is not in force yet is no reason to end the run
        if row.place.length != length:  # the next round would read the text without its beginning
            raise
        if len(asks) > 1:  # only those that cannot be are to be left out
            for ask in asks:
                _take(row, target, [ask])
            return
        settings.refused.append(as_said(error))
    for refused in settings.refused:
        row.say(f"A change cannot be, and the run goes on without it. {refused}")


def _switch(row: Row, target: Runner, settings: Settings) -> None:
    """Put settings into force, whole or not at all.

    A new drafter is primed from the committed tokens before the old one gives back what it holds; the tokens and,
    pictures apart, the target's cache stay.

    Raises:
        MethodUnavailableError: the models lack what the method needs.
        Exception: whatever the new parts raise. The row is then as it was.
    """
    configured, models, now = settings.configured, settings.models, row.configured
    if reason := models.why_not(configured.method.needs):
        raise MethodUnavailableError(f"{configured.method.title} cannot run: {reason}")
    policy_state = configured.policy.start() if configured.policy != now.policy else row.policy_state
    if settings.swaps or configured.drafter != now.drafter or models.drafter is not row.models.drafter:
        _change_drafter(row, target, configured.drafter, models, settings.swaps)
    row.configured, row.models, row.sampling, row.policy_state = configured, models, settings.sampling, policy_state
    row.changes += settings.changes
    if (notice := configured.drafter.notice()) and notice not in _said(row):
        row.say(notice)


def _change_drafter(row: Row, target: Runner, drafter: Drafter, models: Models, swaps: Sequence[Swap]) -> None:
    """Show the pictures that changed, prime the new drafter, release the old one."""
    slot = row.place
    length, pictured, images, pictures = slot.length, slot.pictured, row.images, row.pictures
    vision, silenced, shown = row.vision, row.silenced, [*row.request.swaps]
    try:
        with no_panic():  # a panic, too, is to be followed by the restoration below
            for swap in swaps:
                _show(row, target, swap)
            row.vision = {}
            state = prime(row, drafter, models)
    except Exception:
        row.pictures, row.vision, row.silenced, row.request.swaps[:] = pictures, vision, silenced, shown
        if images is not None and any(swap.sees == BOTH for swap in swaps):
            _read(row, target, images, pictures)
        slot.length, slot.scratch, slot.pictured = length, 0, pictured
        raise
    let_go(row)
    row.state, row.swapped = state, [*swaps] or row.swapped


def _show(row: Row, target: Runner, swap: Swap) -> None:
    """Let the target read other pictures, and what is committed behind them; or let the drafter alone see them.

    Raises:
        PromptError: the prompt has none. Nothing is touched.
    """
    if row.images is None:
        raise PromptError("The run has no pictures that could be changed.", "Start a run with pictures.")
    row.pictures = swap.pictures
    swaps = row.request.swaps
    swaps[:] = [(n, old) for n, old in swaps if n < row.n_new or old.sees != swap.sees] + [(row.n_new, swap)]
    if swap.sees == BOTH:
        _read(row, target, swap.images, swap.pictures)
        return
    spare = target.open()
    try:
        target.prefill_multimodal(spare, swap.images, tokens_of(row.models, swap.images, swap.pictures))
        row.place.pictured = spare.pictured
    finally:
        target.close(spare)


def _read(row: Row, target: Runner, images: dict[str, Any], pictures: Sequence[Any]) -> None:
    """The target reads pictures anew, and what is committed behind them."""
    row.images = images
    target.rewind(row.place, 0)
    target.prefill_multimodal(row.place, images, tokens_of(row.models, images, pictures))
    if row.n_new:
        target.prefill(row.place, row.committed[row.place.length : -1])


def prime(row: Row, drafter: Drafter, models: Models) -> Any:
    """The drafter's state for what is committed; None, and the row is `silenced`, where its model cannot hold that."""
    row.silenced = ""
    try:
        return drafter.prime(row, models)
    except ContextError:
        row.silenced = _too_short(models)
        return None


def let_go(row: Row) -> None:
    """The drafter gives back what it holds for the row, which goes on, or ends, whatever comes of it."""
    try:
        row.drafter.release(row, row.models)
    except Exception:
        log.exception("%s could not give back what it held", row.configured.name)
    row.state = None


def levels_left(row: Row) -> int:
    """How deep the row's drafter can still draft. When it cannot any more, that is said, once."""
    left = None if row.silenced else row.drafter.reach(row)
    if left is not None and left < 1:
        row.silenced = _too_short(row.models)
    if row.silenced:
        if row.silenced not in _said(row):
            row.say(row.silenced)
        return 0
    return row.remaining if left is None else left


def _too_short(models: Models) -> str:
    assert models.drafter is not None
    return (
        f"{models.drafter_name} has {models.drafter.context} positions, and the text has filled them: from there on "
        "nothing is drafted, and every round is plain decoding. Choose a draft model with a longer context, or a "
        "method without one."
    )


def _said(row: Row) -> list[str]:
    assert row.trace is not None
    return row.trace.footer.warnings

"""Changes to a running sequence between two rounds: of its settings, or to another decoder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from workbench.core.errors import MethodUnavailableError, as_said
from workbench.core.panics import no_panic
from workbench.core.promise import Promise
from workbench.engine.configured import Chosen
from workbench.engine.decoder import Decoder
from workbench.engine.request import Row
from workbench.engine.settings import Ask, Settings

log = logging.getLogger(__name__)


Of = Callable[[Chosen], Decoder]
"""Function that returns the decoder for a method."""


def put_in_force(row: Row, decoder_of: Of) -> None:
    """Apply the requested changes. A change that fails is reported, and the run continues with its old settings."""
    if asks := row.take_changes():
        _take(row, decoder_of, asks)


def _take(row: Row, decoder_of: Of, asks: Sequence[Ask]) -> None:
    """Apply the changes in `asks` together or, if that fails, one by one.

    Raises:
        Exception: the target's KV cache could not be restored; the sequence cannot continue.
    """
    settings, length = row.settings_after(asks), row.place.length
    try:
        with no_panic():
            _change(row, decoder_of, settings)
    except Exception as error:  # a bug in the new method must not end the run
        if row.place.length != length:  # the cache is incomplete: the next round would miss the start of the text
            raise
        if len(asks) > 1:  # leave out only the changes that fail
            for ask in asks:
                _take(row, decoder_of, [ask])
            return
        settings.refused.append(as_said(error))
    for refused in settings.refused:
        row.say(f"A change was refused, and the run continues without it. {refused}")


def _change(row: Row, decoder_of: Of, settings: Settings) -> None:
    """Apply settings, completely or not at all.

    Raises:
        MethodUnavailableError: the models lack a requirement of the method, or the method does not support the request.
        Exception: errors of the new parts. The sequence is then unchanged.
    """
    configured = settings.configured
    if reason := configured.why_not(row, settings.models, settings.sampling):
        raise MethodUnavailableError(f"{configured.method.title} cannot run: {reason}")
    old_promise, decoder, new_decoder = row.configured.promise, decoder_of(row.configured), decoder_of(configured)
    if new_decoder is decoder:
        decoder.change(row, settings)
    else:
        _hand_over(row, decoder, new_decoder, settings)
    if configured.promise is Promise.APPROXIMATE and old_promise is not Promise.APPROXIMATE:
        affected = "sampled text" if configured.keeps_greedy else "text, greedy or sampled,"
        assert row.trace is not None
        header = row.trace.header
        no_longer = "again does not follow" if header.promise == configured.promise.value else "no longer follows"
        row.say(
            f"From here on {affected} {no_longer} the target's distribution: {configured.method.title} with these "
            "settings is approximate. Choose a lossless verifier to keep it."
        )
        header.promise = configured.promise.value  # the guarantee of the whole text
    if configured.simulates and row.trace is not None and not row.trace.header.simulation:
        header = row.trace.header
        header.simulation = True
        if header.promise != Promise.APPROXIMATE.value:
            header.promise = Promise.SIMULATION.value
    row.report.changes += settings.changes
    if (notice := configured.notice()) and not row.has_said(notice):
        row.say(notice)


def _hand_over(row: Row, now: Decoder, then: Decoder, settings: Settings) -> None:
    """Move a sequence to another decoder, which opens before the old one closes; tentative tokens are dropped."""
    if settings.swaps:
        raise MethodUnavailableError(
            "Images and the method cannot be changed at once.", "Make one change, then the other."
        )
    now.revoke(row)
    old_values = _held(row)
    _hold(row, (settings.configured, settings.models, settings.sampling, None))
    try:
        with no_panic():
            then.open(row)
    except Exception:
        _hold(row, old_values)
        raise
    new_values = _held(row)
    _hold(row, old_values)  # the old decoder needs its own settings and state to release its resources
    close(now, row)
    _hold(row, new_values)


_held = attrgetter("configured", "models", "sampling", "state")
"""Return a sequence's settings and its decoder's state."""


def _hold(row: Row, values: tuple[Any, ...]) -> None:
    row.configured, row.models, row.sampling, row.state = values


def close(decoder: Decoder, row: Row) -> None:
    """Let a decoder release its resources for a sequence; errors are only logged."""
    try:
        with no_panic():
            decoder.close(row)
    except Exception:
        log.exception("%s could not release its resources", row.configured.name)

"""Apply changes to a running sequence between two rounds: change its settings, or move it to another decoder."""

from __future__ import annotations

import logging
from collections import abc
from collections.abc import Callable

from workbench.core.errors import MethodUnavailableError, to_workbench_error
from workbench.core.panics import convert_panics
from workbench.core.promise import Promise
from workbench.engine.decoder import Decoder
from workbench.engine.method_protocols import ConfiguredMethodProtocol
from workbench.engine.request import ENDED, Sequence
from workbench.engine.settings import Settings, SettingsChange

log = logging.getLogger(__name__)


GetDecoder = Callable[[ConfiguredMethodProtocol], Decoder]
"""Type of a function that returns the engine's decoder for a method."""


def apply_changes(sequence: Sequence, decoder_of: GetDecoder) -> None:
    """Apply the requested changes of a sequence's settings.

    If a change fails, a warning is reported, and the sequence continues with its old settings.
    """
    if changes := sequence.take_changes():
        decoder_of(sequence.configured_method).settle(sequence)
        if sequence.status in ENDED:
            return
        _apply_each(sequence, decoder_of, changes)


def _apply_each(sequence: Sequence, decoder_of: GetDecoder, changes: abc.Sequence[SettingsChange]) -> None:
    """Apply the requested changes of a sequence together or, if that fails, one by one.

    Raises:
        Exception: the target's KV cache could not be restored; the sequence cannot continue.
    """
    settings, length = sequence.settings_after(changes), sequence.cache_slot.text_length
    try:
        with convert_panics():
            _change(sequence, decoder_of, settings)
    except Exception as error:  # a bug in the new method must not end the run
        if sequence.cache_slot.text_length != length:  # the next round would miss a part of the text
            raise
        if len(changes) > 1:  # leave out only the changes that fail
            for change in changes:
                _apply_each(sequence, decoder_of, [change])
            return
        settings.refusals.append(to_workbench_error(error))
    for refused in settings.refusals:
        sequence.add_warning(f"A change was refused, and the run continues without it. {refused}")


def _change(sequence: Sequence, decoder_of: GetDecoder, settings: Settings) -> None:
    """Apply new settings to a sequence, completely or not at all.

    Raises:
        MethodUnavailableError: the models lack a requirement of the method, or the method does not support the request.
        Exception: the new method's drafter, verifier or another component raised an error. The sequence is then
            unchanged.
    """
    configured, old_max_new_tokens = settings.active.configured_method, sequence.max_new_tokens
    if reason := configured.unsupported_reason(sequence, settings.active.models, settings.active.sampling):
        raise MethodUnavailableError(f"{configured.method.title} cannot run: {reason}")
    old_promise, decoder, new_decoder = (
        sequence.configured_method.promise,
        decoder_of(sequence.configured_method),
        decoder_of(configured),
    )
    if new_decoder is decoder:
        decoder.change(sequence, settings)
    else:
        _hand_over(sequence, decoder, new_decoder, settings)
    if configured.promise is Promise.APPROXIMATE and old_promise is not Promise.APPROXIMATE:
        affected = "sampled text" if configured.keeps_greedy else "text, greedy or sampled,"
        header = sequence.trace.header
        no_longer = "again does not follow" if header.promise == configured.promise.value else "no longer follows"
        sequence.add_warning(
            f"From here on {affected} {no_longer} the target's distribution: {configured.method.title} with these "
            "settings is approximate. Choose a lossless verifier to keep this distribution."
        )
        header.promise = configured.promise.value  # the guarantee of the whole text
    if configured.simulates and not sequence.trace.header.simulation:
        header = sequence.trace.header
        header.simulation = True
        if header.promise != Promise.APPROXIMATE.value:
            header.promise = Promise.SIMULATION.value
    if sequence.max_new_tokens < old_max_new_tokens:
        sequence.add_warning(
            f"max_new_tokens was cut from {old_max_new_tokens} to {sequence.max_new_tokens}: "
            f"the text of {configured.method.title} cannot be longer than the target's context."
        )
    sequence.report.changes += settings.changes
    if (notice := configured.notice()) and not sequence.has_warning(notice):
        sequence.add_warning(notice)


def _hand_over(sequence: Sequence, now: Decoder, then: Decoder, settings: Settings) -> None:
    """Move a sequence to another decoder, and drop its tentative tokens (tokens that could still be revoked).

    The new decoder opens the sequence before the old one closes it, so that the sequence is unchanged if opening fails.
    """
    if settings.image_changes:
        raise MethodUnavailableError(
            "Images and the method cannot be changed at the same time.",
            "Change the images first, then the method, or the method first, then the images.",
        )
    now.revoke(sequence)
    old_values = sequence.settings, sequence.state
    sequence.settings, sequence.state = settings.active, None
    try:
        with convert_panics():
            then.open(sequence)
    except Exception:
        sequence.settings, sequence.state = old_values
        raise
    new_values = sequence.settings, sequence.state
    sequence.settings, sequence.state = old_values  # the old decoder needs its own to release its resources
    close(now, sequence)
    sequence.settings, sequence.state = new_values


def close(decoder: Decoder, sequence: Sequence) -> None:
    """Let a decoder release its resources for a sequence; errors are only logged."""
    try:
        with convert_panics():
            decoder.close(sequence)
    except Exception:
        log.exception("The decoder %s could not release its resources", sequence.configured_method.name)

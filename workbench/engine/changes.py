"""Changes to a running sequence between two rounds: its settings and its images."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from workbench.core.errors import MethodUnavailableError, PromptError, as_said
from workbench.core.panics import no_panic
from workbench.core.sampling import SamplingParams
from workbench.engine.configured import Chosen
from workbench.engine.decoder import Decoder
from workbench.engine.drafter_setup import prime
from workbench.engine.image_inputs import tokens_of
from workbench.engine.method import Promise
from workbench.engine.observers import put_by, remembered
from workbench.engine.parts import Drafter
from workbench.engine.request import Row
from workbench.engine.settings import BOTH, Ask, Settings, Swap
from workbench.models.image_prefill import prefill_pictures
from workbench.models.loading import Models
from workbench.models.runner import Runner

log = logging.getLogger(__name__)


Of = Callable[[Chosen], Decoder]
"""Function that returns the decoder for a method."""


def put_in_force(row: Row, decoder_of: Of) -> None:
    """Apply the requested changes. A change that fails is reported, and the run continues with its old settings."""
    if asks := row.take_changes():
        _take(row, decoder_of, asks)


def _take(row: Row, decoder_of: Of, asks: Sequence[Ask]) -> None:
    """Apply the changes of `asks` together or, if that fails, those that are possible.

    Raises:
        Exception: the target's KV cache could not be restored; the sequence cannot continue.
    """
    settings, length = row.settings_after(asks), row.place.length
    try:
        with no_panic():
            _change(row, decoder_of, settings)
    except Exception as error:  # a bug in a method that is not in force yet must not end the run
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
        MethodUnavailableError: the models lack a requirement of the method, or it does not support the request.
        Exception: errors of the new parts. The sequence is then unchanged.
    """
    configured = settings.configured
    if reason := why_not(row, configured, settings.models, settings.sampling):
        raise MethodUnavailableError(f"{configured.method.title} cannot run: {reason}")
    was, now, then = row.configured.promise, decoder_of(row.configured), decoder_of(configured)
    if then is now:
        now.change(row, settings)
    else:
        _hand_over(row, now, then, settings)
    if configured.promise is Promise.APPROXIMATE and was is not Promise.APPROXIMATE:
        which = "sampled text" if configured.verifier.keeps_greedy else "text, greedy or sampled,"
        assert row.trace is not None
        header = row.trace.header
        no_longer = "again does not follow" if header.promise == configured.promise.value else "no longer follows"
        row.say(
            f"From here on {which} {no_longer} the target's distribution: {configured.method.title} with these "
            "settings is approximate. Choose a lossless verifier to keep it."
        )
        header.promise = configured.promise.value  # the guarantee of the whole text
    if configured.simulates and row.trace is not None and not row.trace.header.simulation:
        header = row.trace.header
        header.simulation = True
        if header.promise != Promise.APPROXIMATE.value:
            header.promise = Promise.SIMULATION.value
    row.report.changes += settings.changes
    if (notice := configured.drafter.notice()) and not row.has_said(notice):
        row.say(notice)


def why_not(row: Row, configured: Chosen, models: Models, sampling: SamplingParams) -> str:
    """Return why a method cannot run for a sequence with these models and sampling; "" if it can."""
    rounds = configured.rounds
    return lacking(configured, models) or ("" if rounds is None else rounds.refusal(row, sampling))


def lacking(configured: Chosen, models: Models) -> str:
    """Return the requirements of a method that these models lack, with the command that trains a missing head; or "".

    Heads that only the bundled models' recipes train come with those models and exist for no other target.
    """
    said, own = [models.why_not(configured.needs)], configured.method.head
    if own is not None and own.train is not None and own.kind not in models.heads:
        said.append(f"Train one: workbench train {own.recipe}.")
    heads = [part.head for part in (configured.verifier, configured.policy) if part.head is not None]
    absent = [head.recipe for head in heads if head.kind not in models.heads]
    said += [f"Train one: workbench train {recipe} --set target={models.target_name}." for recipe in absent]
    return " ".join(filter(None, said))


def _hand_over(row: Row, now: Decoder, then: Decoder, settings: Settings) -> None:
    """Change from one decoder to another: the new one opens before the old one closes; tentative tokens are dropped."""
    if settings.swaps:
        raise MethodUnavailableError(
            "Images and the method cannot be changed at once.", "Make one change, then the other."
        )
    now.revoke(row)
    before = _held(row)
    _hold(row, (settings.configured, settings.models, settings.sampling, None))
    try:
        with no_panic():
            then.open(row)
    except Exception:
        _hold(row, before)
        raise
    after = _held(row)
    _hold(row, before)  # the old decoder releases its resources by its own settings and state
    close(now, row)
    _hold(row, after)


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


def switch(row: Row, target: Runner, settings: Settings) -> None:
    """Change parts, sampling, models or images of a sequence that continues to draft and verify, whole or not at all.

    A new drafter is primed with the committed tokens before the old one releases its resources. The tokens and, unless
    images change, the target's KV cache stay.

    Raises:
        Exception: errors of the new parts. The sequence is then unchanged.
    """
    configured, models, now = settings.configured, settings.models, row.configured
    policy_state = configured.policy.start() if configured.policy != now.policy else row.state.policy
    verifier, verifier_state, taps = configured.verifier, row.state.verifier, configured.taps(models)
    is_judged_anew = settings.swaps or verifier != now.verifier or (verifier.needs and models is not row.models)
    if is_judged_anew:
        verifier_state = verifier.prime(row, models)
    grower, grower_state = configured.grower, row.state.tree_builder
    is_other = configured.drafter != now.drafter or models.writer is not row.models.writer
    is_other = is_other or any(models.heads.get(need) != row.models.heads.get(need) for need in configured.needs)
    if grower != now.grower or is_other:
        grower_state = None if grower is None else grower.prime(configured.drafter, models)
    if settings.swaps or is_other:
        _change_drafter(row, target, configured.drafter, models, settings.swaps)
    row.state.tree_builder = grower_state
    row.configured, row.models, row.sampling = configured, models, settings.sampling
    row.state.policy, row.state.verifier, row.state.captured_layers = policy_state, verifier_state, taps
    if is_judged_anew:  # the old verifier's tentative tokens become final in the next round
        row.state.n_final = len(row.state.tentative)


def _change_drafter(row: Row, target: Runner, drafter: Drafter, models: Models, swaps: Sequence[Swap]) -> None:
    """Process the images that changed, prime the new drafter, release the old one."""
    slot = row.place
    length, pictured, images, pictures = slot.length, slot.pictured, row.images, row.pictures
    vision, silenced, shown = row.state.vision, row.state.no_drafts, [*row.request.swaps]
    taken = None if swaps else remembered(row, drafter, models)
    try:
        with no_panic():  # a Rust panic, too, must reach the restoration below
            for swap in swaps:
                _show(row, target, swap)
            row.state.vision = {}
            state = prime(row, drafter, models) if taken is None else taken.state
    except Exception:
        row.pictures, row.state.vision, row.state.no_drafts, row.request.swaps[:] = pictures, vision, silenced, shown
        if images is not None and any(swap.sees == BOTH for swap in swaps):
            _read(row, target, images, pictures)
        slot.length, slot.scratch, slot.pictured = length, 0, pictured
        raise
    primed, row.state.no_drafts = row.state.no_drafts, silenced  # the old drafter's value, while it is released
    put_by(row, drafter, taken)
    row.state.drafter, row.state.no_drafts = state, "" if taken is not None else primed
    row.report.image_changes = [*swaps] or row.report.image_changes


def _show(row: Row, target: Runner, swap: Swap) -> None:
    """Prefill the target with other images and the committed text after them; or show them to the drafter alone.

    Raises:
        PromptError: the prompt has no images. Nothing is changed.
    """
    if row.images is None:
        raise PromptError("This run has no images to change.", "Start a run with images.")
    row.pictures = swap.pictures
    swaps = row.request.swaps
    swaps[:] = [(n, old) for n, old in swaps if n < row.n_new or old.sees != swap.sees] + [(row.n_new, swap)]
    if swap.sees == BOTH:
        _read(row, target, swap.images, swap.pictures)
        return
    spare = target.open()
    try:
        prefill_pictures(target, spare, swap.images, tokens_of(row.models, swap.images, swap.pictures))
        row.place.pictured = spare.pictured
    finally:
        target.close(spare)


def _read(row: Row, target: Runner, images: dict[str, Any], pictures: Sequence[Any]) -> None:
    """Prefill the target again with images and the committed text after them."""
    row.images = images
    target.rewind(row.place, 0)
    prefill_pictures(target, row.place, images, tokens_of(row.models, images, pictures))
    if row.n_new:
        target.prefill(row.place, row.committed[row.place.length : -1])

"""Change the parts, sampling, draft model or images of a sequence between two rounds."""

from __future__ import annotations

from collections import abc
from typing import Any

from workbench.core.errors import PromptError
from workbench.core.panics import convert_panics
from workbench.decoders.draft_verify.drafter_lifetime import (
    find_reusable_state,
    init_drafter_state,
    replace_drafter,
)
from workbench.decoders.draft_verify.parts import Drafter
from workbench.engine.image_inputs import image_token_counts
from workbench.engine.request import Sequence
from workbench.engine.settings import BOTH, ImageChange, Settings
from workbench.models.image_prefill import prefill_images
from workbench.models.loading import Models
from workbench.models.runner import Runner


def switch(sequence: Sequence, target: Runner, settings: Settings) -> None:
    """Change parts, sampling, models or images of a sequence; either all changes are applied, or none.

    A new drafter creates its state from the committed tokens before the old one releases its resources. The tokens and,
    unless images change, the target's KV cache stay.

    Raises:
        Exception: errors of the new parts. The sequence is then unchanged.
    """
    configured, models, current = (
        settings.active.configured_method,
        settings.active.models,
        sequence.configured_method,
    )
    policy_state = configured.policy.init_state() if configured.policy != current.policy else sequence.state.policy
    verifier, verifier_state, taps = configured.verifier, sequence.state.verifier, configured.captured_layers(models)
    is_judged_anew = (
        settings.image_changes or verifier != current.verifier or (verifier.needs and models is not sequence.models)
    )
    if is_judged_anew:
        verifier_state = verifier.init_state(sequence, models)
    grower, grower_state = configured.tree_builder, sequence.state.tree_builder
    is_new_drafter = configured.drafter != current.drafter or models.draft_model is not sequence.models.draft_model
    is_new_drafter = is_new_drafter or any(
        models.heads.get(need) != sequence.models.heads.get(need) for need in configured.needs
    )
    if grower != current.tree_builder or is_new_drafter:
        grower_state = None if grower is None else grower.init_state(configured.drafter, models)
    if settings.image_changes or is_new_drafter:
        _change_drafter(sequence, target, configured.drafter, models, settings.image_changes)
    sequence.state.tree_builder = grower_state
    sequence.settings = settings.active
    sequence.state.policy, sequence.state.verifier, sequence.state.captured_layers = policy_state, verifier_state, taps
    if is_judged_anew:  # the old verifier's tentative tokens become final in the next round
        sequence.state.n_final = len(sequence.state.tentative)


def _change_drafter(
    sequence: Sequence, target: Runner, drafter: Drafter, models: Models, swaps: abc.Sequence[ImageChange]
) -> None:
    """Process changed images, create the new drafter's state, release the old drafter."""
    slot = sequence.cache_slot
    length, pictured, images, pictures = slot.length, slot.image_prefill, sequence.image_inputs, sequence.pil_images
    vision, no_drafts, old_swaps = (
        sequence.state.vision,
        sequence.state.no_draft_reason,
        [*sequence.request.image_changes],
    )
    observer = None if swaps else find_reusable_state(sequence, drafter, models)
    try:
        with convert_panics():  # a Rust panic must also reach the `except` block below
            for swap in swaps:
                _apply_image_change(sequence, target, swap)
            sequence.state.vision = {}
            state = init_drafter_state(sequence, drafter, models) if observer is None else observer.state
    except Exception:
        (
            sequence.pil_images,
            sequence.state.vision,
            sequence.state.no_draft_reason,
            sequence.request.image_changes[:],
        ) = (
            pictures,
            vision,
            no_drafts,
            old_swaps,
        )
        if images is not None and any(swap.receiver == BOTH for swap in swaps):
            _prefill_again(sequence, target, images, pictures)
        slot.length, slot.scratch, slot.image_prefill = length, 0, pictured
        raise
    new_no_drafts, sequence.state.no_draft_reason = (
        sequence.state.no_draft_reason,
        no_drafts,
    )  # the old drafter's value, while it is released
    replace_drafter(sequence, drafter, observer)
    sequence.state.drafter, sequence.state.no_draft_reason = state, "" if observer is not None else new_no_drafts
    sequence.state.image_changes = [*swaps] or sequence.state.image_changes


def _apply_image_change(sequence: Sequence, target: Runner, swap: ImageChange) -> None:
    """Prefill the target with other images and the committed text after them; or change the drafter's images only.

    Raises:
        PromptError: the prompt has no images. Nothing is changed.
    """
    if sequence.image_inputs is None:
        raise PromptError("This run has no images to change.", "Start a run with images.")
    sequence.pil_images = swap.pil_images
    swaps = sequence.request.image_changes
    swaps[:] = [(n, old) for n, old in swaps if n < sequence.n_new or old.receiver != swap.receiver] + [
        (sequence.n_new, swap)
    ]
    if swap.receiver == BOTH:
        _prefill_again(sequence, target, swap.image_inputs, swap.pil_images)
        return
    spare = target.open()
    try:
        prefill_images(
            target, spare, swap.image_inputs, image_token_counts(sequence.models, swap.image_inputs, swap.pil_images)
        )
        sequence.cache_slot.image_prefill = spare.image_prefill
    finally:
        target.close(spare)


def _prefill_again(sequence: Sequence, target: Runner, images: dict[str, Any], pictures: abc.Sequence[Any]) -> None:
    """Prefill the target again with images and the committed text after them."""
    sequence.image_inputs = images
    target.rewind(sequence.cache_slot, 0)
    prefill_images(target, sequence.cache_slot, images, image_token_counts(sequence.models, images, pictures))
    if sequence.n_new:
        target.prefill(sequence.cache_slot, sequence.committed[sequence.cache_slot.length : -1])

"""Change drafter, verifier, policy, sampling, draft model or images of a sequence between two rounds."""

from __future__ import annotations

import copy
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
    """Change drafter, verifier, policy, sampling, models or images of a sequence; apply all changes or none.

    A new drafter creates its state from the committed tokens before the old drafter releases its resources. The
    committed tokens stay, and so does the target's KV cache unless images change.

    Raises:
        Exception: the new drafter, verifier or policy raised an error. The sequence is then unchanged.
    """
    configured, models = settings.active.configured_method, settings.active.models
    current, state = sequence.configured_method, sequence.state
    policy_state = configured.policy.init_state() if configured.policy != current.policy else state.policy
    verifier, verifier_state = configured.verifier, state.verifier
    captured_layers = configured.captured_layers(models)
    is_new_verifier = (
        settings.image_changes or verifier != current.verifier or (verifier.needs and models is not sequence.models)
    )
    if is_new_verifier:
        verifier_state = verifier.init_state(sequence, models)
    builder, builder_state = configured.tree_builder, state.tree_builder
    is_new_drafter = configured.drafter != current.drafter or models.draft_model is not sequence.models.draft_model
    is_new_drafter = is_new_drafter or any(
        models.heads.get(need) != sequence.models.heads.get(need) for need in configured.needs
    )
    if builder != current.tree_builder or is_new_drafter:
        builder_state = None if builder is None else builder.init_state(configured.drafter, models)
    if settings.image_changes or is_new_drafter:
        _change_drafter(sequence, target, configured.drafter, models, settings.image_changes)
    sequence.settings = settings.active
    state.tree_builder, state.policy, state.verifier = builder_state, policy_state, verifier_state
    state.captured_layers = captured_layers
    if is_new_verifier:  # the old verifier's tentative tokens become final in the next round
        state.n_final = len(state.tentative)


def _change_drafter(
    sequence: Sequence, target: Runner, drafter: Drafter, models: Models, changes: abc.Sequence[ImageChange]
) -> None:
    """Process changed images, create the state of a sequence's new drafter, and release the old drafter."""
    slot, old_state, old_changes = sequence.cache_slot, copy.copy(sequence.state), [*sequence.request.image_changes]
    length, prefill, inputs, images = slot.length, slot.image_prefill, sequence.image_inputs, sequence.pil_images
    observer = None if changes else find_reusable_state(sequence, drafter, models)
    try:
        with convert_panics():  # a Rust panic must also reach the `except` block below
            for change in changes:
                _apply_image_change(sequence, target, change)
            sequence.state.vision = {}
            state = init_drafter_state(sequence, drafter, models) if observer is None else observer.state
    except Exception:
        sequence.state, sequence.pil_images, sequence.request.image_changes[:] = old_state, images, old_changes
        if inputs is not None and any(change.receiver == BOTH for change in changes):
            _prefill_again(sequence, target, inputs, images)
        slot.length, slot.scratch, slot.image_prefill = length, 0, prefill
        raise
    no_draft_reason = "" if observer is not None else sequence.state.no_draft_reason
    sequence.state.no_draft_reason = old_state.no_draft_reason  # while the old drafter is released
    replace_drafter(sequence, drafter, observer)
    sequence.state.drafter, sequence.state.no_draft_reason = state, no_draft_reason
    sequence.state.image_changes = [*changes] or sequence.state.image_changes


def _apply_image_change(sequence: Sequence, target: Runner, change: ImageChange) -> None:
    """Apply a change of a sequence's images.

    The target is prefilled again with the new images and the committed text, or only the drafter gets the new images.

    Raises:
        PromptError: the prompt has no images. Nothing is changed.
    """
    if sequence.image_inputs is None:
        raise PromptError("This run has no images that could be changed.", "Start a run with images.")
    sequence.pil_images = change.pil_images
    changes = sequence.request.image_changes
    changes[:] = [(n, old) for n, old in changes if n < sequence.n_new or old.receiver != change.receiver] + [
        (sequence.n_new, change)
    ]
    if change.receiver == BOTH:
        _prefill_again(sequence, target, change.image_inputs, change.pil_images)
        return
    spare = target.open()
    try:
        prefill_images(
            target,
            spare,
            change.image_inputs,
            image_token_counts(sequence.models, change.image_inputs, change.pil_images),
        )
        sequence.cache_slot.image_prefill = spare.image_prefill
    finally:
        target.close(spare)


def _prefill_again(sequence: Sequence, target: Runner, images: dict[str, Any], pictures: abc.Sequence[Any]) -> None:
    """Prefill the target again with changed images and the committed text after them."""
    sequence.image_inputs = images
    target.rewind(sequence.cache_slot, 0)
    prefill_images(target, sequence.cache_slot, images, image_token_counts(sequence.models, images, pictures))
    if sequence.n_new:
        target.prefill(sequence.cache_slot, sequence.committed[sequence.cache_slot.length : -1])

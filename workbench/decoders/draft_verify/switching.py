"""Changes of parts, models, sampling or images of a sequence that continues to draft and verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.core.errors import PromptError
from workbench.core.panics import no_panic
from workbench.decoders.draft_verify.drafter_setup import prime
from workbench.decoders.draft_verify.inactive_drafters import put_by, remembered
from workbench.decoders.draft_verify.parts import Drafter
from workbench.engine.image_inputs import tokens_of
from workbench.engine.request import Row
from workbench.engine.settings import BOTH, Settings, Swap
from workbench.models.image_prefill import prefill_pictures
from workbench.models.loading import Models
from workbench.models.runner import Runner


def switch(row: Row, target: Runner, settings: Settings) -> None:
    """Change parts, sampling, models or images of a sequence; either all changes are applied, or none.

    A new drafter is primed with the committed tokens before the old one releases its resources. The tokens and, unless
    images change, the target's KV cache stay.

    Raises:
        Exception: errors of the new parts. The sequence is then unchanged.
    """
    configured, models, current = settings.configured, settings.models, row.configured
    policy_state = configured.policy.start() if configured.policy != current.policy else row.state.policy
    verifier, verifier_state, taps = configured.verifier, row.state.verifier, configured.taps(models)
    is_judged_anew = settings.swaps or verifier != current.verifier or (verifier.needs and models is not row.models)
    if is_judged_anew:
        verifier_state = verifier.prime(row, models)
    grower, grower_state = configured.grower, row.state.tree_builder
    is_new_drafter = configured.drafter != current.drafter or models.writer is not row.models.writer
    is_new_drafter = is_new_drafter or any(
        models.heads.get(need) != row.models.heads.get(need) for need in configured.needs
    )
    if grower != current.grower or is_new_drafter:
        grower_state = None if grower is None else grower.prime(configured.drafter, models)
    if settings.swaps or is_new_drafter:
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
    vision, no_drafts, old_swaps = row.state.vision, row.state.no_drafts, [*row.request.swaps]
    observer = None if swaps else remembered(row, drafter, models)
    try:
        with no_panic():  # a Rust panic, too, must reach the restoration below
            for swap in swaps:
                _show(row, target, swap)
            row.state.vision = {}
            state = prime(row, drafter, models) if observer is None else observer.state
    except Exception:
        row.pictures, row.state.vision, row.state.no_drafts, row.request.swaps[:] = (
            pictures,
            vision,
            no_drafts,
            old_swaps,
        )
        if images is not None and any(swap.sees == BOTH for swap in swaps):
            _read(row, target, images, pictures)
        slot.length, slot.scratch, slot.pictured = length, 0, pictured
        raise
    new_no_drafts, row.state.no_drafts = row.state.no_drafts, no_drafts  # the old drafter's value, while it is released
    put_by(row, drafter, observer)
    row.state.drafter, row.state.no_drafts = state, "" if observer is not None else new_no_drafts
    row.report.image_changes = [*swaps] or row.report.image_changes


def _show(row: Row, target: Runner, swap: Swap) -> None:
    """Prefill the target with other images and the committed text after them; or change the drafter's images only.

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

"""Run extra forward passes outside the rounds, for drafters that tune themselves; the KV cache stays unchanged."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.transfer import to_device
from workbench.kernels.segment import Segment, Slot
from workbench.kernels.weight_sharing import WeightSharingCopy
from workbench.models.runner import Runner

AT_ONCE = 96
"""Number of hidden states to which the LM head is applied at once."""


@torch.inference_mode()
def recompute_logits(
    runner: Runner,
    slot: Slot,
    start: int,
    tokens: Sequence[int],
    skipped_halves: Collection[int] = (),
    shared_copy: WeightSharingCopy | None = None,
) -> Float[Tensor, "n V"]:
    """Run tokens through some layers of a model or through a weight-sharing copy, and return their logits.

    Keys and values of earlier positions are read from the KV cache as the whole model wrote them.

    Args:
        runner: runner of the model.
        slot: slot of the sequence; it is not changed.
        start: first position of the tokens.
        tokens: tokens from `start` on.
        skipped_halves: attention or MLP halves of layers that are left out (see `workbench.kernels.layers`).
        shared_copy: weight-sharing copy that runs instead of the model.
    """
    length, scratch = slot.length, slot.scratch
    with runner.cache.restore_on_exit(slot.index, start, start + len(tokens)):
        slot.length, slot.scratch = start, 0
        try:
            ids = to_device(list(tokens), runner.device, torch.long)
            return runner.forward([Segment(slot, ids)], skipped_halves=skipped_halves, shared_copy=shared_copy).logits[
                0
            ]
        finally:
            slot.length, slot.scratch = length, scratch


@torch.inference_mode()
def exit_logits(runner: Runner, slot: Slot, states: Float[Tensor, "n D"]) -> Float[Tensor, "n V"]:
    """Apply the final norm and the LM head to residual streams after any layers, and return the logits.

    Args:
        runner: runner of the model.
        slot: slot of the sequence to which the time is assigned; it is not changed.
        states: residual streams after any layers, at any positions.
    """
    last = runner.n_layers - 1
    dummy = Slot(
        slot.index, sequence_id=slot.sequence_id
    )  # a dummy position: without its attention, the layer writes no cache entry
    logits = []
    for piece in states.split(AT_ONCE):
        tokens = torch.zeros(len(piece), dtype=torch.long, device=runner.device)
        segment = Segment(dummy, tokens, states=piece)
        logits.append(runner.forward([segment], layers=[last], skipped_halves={2 * last, 2 * last + 1}).logits[0])
        dummy.scratch = 0
    return torch.cat(logits)

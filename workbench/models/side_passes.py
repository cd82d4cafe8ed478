"""Passes of a model beside the rounds, for drafters that look for the best way to draft: they leave nothing behind."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.transfer import to_device
from workbench.kernels.segment import Segment, Slot
from workbench.kernels.weight_sharing import Twin
from workbench.models.runner import Runner

AT_ONCE = 96
"""Streams that the head reads in one pass."""


@torch.inference_mode()
def read_again(
    runner: Runner,
    slot: Slot,
    start: int,
    tokens: Sequence[int],
    without: Collection[int] = (),
    twin: Twin | None = None,
) -> Float[Tensor, "n V"]:
    """Logits behind tokens that are read a second time, or for once, by a part of the model.

    What stands before them is read as the whole model left it.

    Args:
        runner: the model.
        slot: nothing of it is changed.
        start: the first position that is read.
        tokens: what stands there, and behind it.
        without: halves of layers that are left out (see `workbench.kernels.layers`).
        twin: what reads them in the model's place.
    """
    length, scratch = slot.length, slot.scratch
    with runner.cache.kept(slot.index, start, start + len(tokens)):
        slot.length, slot.scratch = start, 0
        try:
            ids = to_device(list(tokens), runner.device, torch.long)
            return runner.forward([Segment(slot, ids)], without=without, twin=twin).logits[0]
        finally:
            slot.length, slot.scratch = length, scratch


@torch.inference_mode()
def said_of(runner: Runner, slot: Slot, states: Float[Tensor, "n D"]) -> Float[Tensor, "n V"]:
    """Logits that final norm and LM head give of residual streams, whatever layers they stand behind.

    Args:
        runner: the model.
        slot: for whom it is; nothing of it is changed.
        states: of any layers and places.
    """
    last = runner.n_layers - 1
    beside = Slot(slot.index, owner=slot.owner)  # of no place in the text; an attention left out writes nowhere
    found = []
    for piece in states.split(AT_ONCE):
        blank = torch.zeros(len(piece), dtype=torch.long, device=runner.device)
        segment = Segment(beside, blank, states=piece)
        found.append(runner.forward([segment], layers=[last], without={2 * last, 2 * last + 1}).logits[0])
        beside.scratch = 0
    return torch.cat(found)

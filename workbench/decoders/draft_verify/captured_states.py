"""Hidden states of the target for a drafter's state: captured during prefill, or computed again."""

from __future__ import annotations

import torch

from workbench.core.transfer import to_device
from workbench.engine.request import Sequence
from workbench.kernels.segment import CaptureSelection, HiddenStates, PrefillHiddenStates, Segment
from workbench.models.loading import Models

CHUNK = 512
"""Number of tokens per forward pass when hidden states are computed again."""


def states_of(sequence: Sequence, models: Models, selection: CaptureSelection, first: int = 0) -> HiddenStates:
    """Return the target's hidden states at the committed positions from `first` on, except the unprocessed last one.

    States captured during prefill are used if they match. Otherwise, as after a change of drafter or images, the target
    processes the tokens again and writes the same keys and values into its KV cache. If the selection does not include
    the LM head's input, this forward pass stops after the last requested layer.
    """
    target, slot, end = models.target, sequence.cache_slot, len(sequence.committed) - 1
    if slot.prefill_states.selection == selection and slot.prefill_states.n == end:
        return slot.prefill_states.from_position(first)
    target.rewind(slot, first)
    states = PrefillHiddenStates(selection)
    layers = None if selection.features else range(max(selection.layers) + 1)
    with torch.inference_mode():
        for begin in range(first, end, CHUNK):
            chunk = to_device(sequence.committed[begin : min(begin + CHUNK, end)], target.device)
            needs_head = selection.features
            out = target.forward(
                [Segment(slot, chunk)],
                last_only=True,
                everywhere=needs_head,
                layers=layers,
                head=needs_head,
                capture_layers=selection.layers,
            )
            states.take(out, len(chunk))
            target.commit(slot, range(len(chunk)))
    return states.from_position(0)

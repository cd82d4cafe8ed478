"""Hidden states of the target for a drafter: captured during prefill, or computed again."""

from __future__ import annotations

import torch

from workbench.core.transfer import to_device
from workbench.engine.request import Row
from workbench.kernels.segment import CaptureSelection, PrefillHiddenStates, Segment, States
from workbench.models.loading import Models

CHUNK = 512
"""Tokens per forward when states are computed again."""


def states_of(row: Row, models: Models, wanted: CaptureSelection, first: int = 0) -> States:
    """Return the target's states at the committed positions from `first` on, except the last one (not yet processed).

    States captured during prefill are used if they match. Otherwise, as after a change of drafter or images, the target
    processes the tokens again and writes the same keys and values into its KV cache. If no features are requested, it
    stops after the last requested layer.
    """
    target, slot, end = models.target, row.place, len(row.committed) - 1
    if slot.prefill_states.wanted == wanted and slot.prefill_states.n == end:
        return slot.prefill_states.behind(first)
    target.rewind(slot, first)
    states = PrefillHiddenStates(wanted)
    layers = None if wanted.features else range(max(wanted.layers) + 1)
    with torch.inference_mode():
        for begin in range(first, end, CHUNK):
            chunk = to_device(row.committed[begin : min(begin + CHUNK, end)], target.device)
            needs_head = wanted.features
            out = target.forward(
                [Segment(slot, chunk)],
                last_only=True,
                everywhere=needs_head,
                layers=layers,
                head=needs_head,
                taps=wanted.layers,
            )
            states.take(out, len(chunk))
            target.commit(slot, range(len(chunk)))
    return states.behind(0)

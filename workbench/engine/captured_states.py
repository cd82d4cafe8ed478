"""What a drafter takes of the target's own reading of a text: kept while the prompt is read, or read once more."""

from __future__ import annotations

import torch

from workbench.core.transfer import to_device
from workbench.engine.request import Row
from workbench.kernels.segment import Heard, Segment, States, Wanted
from workbench.models.loading import Models

CHUNK = 512
"""Tokens that are read again at once."""


def states_of(row: Row, models: Models, wanted: Wanted, first: int = 0) -> States:
    """The target's states at the committed positions from `first` on, but for the last, which it has not read.

    Those that were kept while the prompt was read are taken. Else, as behind a change of drafter or pictures, the
    target runs over the tokens once more and writes the same entries into its cache; without features only as far as
    the last layer that is wanted.
    """
    target, slot, end = models.target, row.place, len(row.committed) - 1
    if slot.heard.wanted == wanted and slot.heard.n == end:
        return slot.heard.behind(first)
    target.rewind(slot, first)
    again = Heard(wanted)
    layers = None if wanted.features else range(max(wanted.layers) + 1)
    with torch.inference_mode():
        for at in range(first, end, CHUNK):
            piece = to_device(row.committed[at : min(at + CHUNK, end)], target.device)
            head = wanted.features
            out = target.forward(
                [Segment(slot, piece)], last_only=True, everywhere=head, layers=layers, head=head, taps=wanted.layers
            )
            again.take(out, len(piece))
            target.commit(slot, range(len(piece)))
    return again.behind(0)

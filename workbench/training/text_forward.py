"""A model's outputs over a whole text, for training data: hidden states and logits, computed in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from workbench.kernels.segment import Segment
from workbench.models.runner import Runner

CHUNK = 512
"""Number of tokens per forward pass when a model runs over a whole text."""


def forward_text(runner: Runner, ids: Sequence[int], **options: Any) -> Iterator[Any]:
    """Run a model over a text in chunks, with a new KV cache; yield the output of each chunk.

    Args:
        runner: runner of the model.
        ids: tokens of the text.
        options: further arguments of `Runner.forward`.
    """
    slot = runner.open()
    try:
        for piece in torch.tensor(ids, device=runner.device).split(CHUNK):
            output = runner.forward([Segment(slot, piece)], **options)
            runner.commit(slot, range(len(piece)))
            yield output
    finally:
        runner.close(slot)

"""A pass in two parts: some probes come in half way up, made of what the layers below think of the draft.

    layers 1 … l      root, draft
    layers l + 1 … L  root, draft, probes made of the streams behind layer l

No layer reads a token twice, and what the target says of the draft is what it says without the probes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.tree import DraftTree
from workbench.engine.request import Row
from workbench.engine.verification_input import Block
from workbench.kernels.segment import Output, Segment
from workbench.kernels.self_test import ROUNDING, logits_error
from workbench.models.loading import Models
from workbench.models.runner import Runner


def forward_entering(
    models: Models, batch: Sequence[tuple[Row, Block]], layer: int, taps: Collection[int] = ()
) -> Output:
    """As `Runner.forward` of whole blocks, whose probes come in behind so many layers.

    Args:
        models: their target.
        batch: one block a row, in the order of the rows in the cache.
        layer: the same for all of them, 1 … L.
        taps: of any layers; the lower ones' hold nothing of such probes.
    """
    target = models.target
    first = [block.below().segment(row, models) for row, block in batch]
    low = {tap for tap in taps if tap < layer}
    below, streams = _below(target, first, layer, low)
    whole = [
        replace(block.segment(row, models), states=block.entered(stream[: len(segment.tokens)]))
        for (row, block), segment, stream in zip(batch, first, streams, strict=True)
    ]
    out = target.forward(whole, layers=range(layer, target.n_layers), taps={tap for tap in taps if tap >= layer})
    out.taps |= {tap: below.taps[tap] for tap in low}
    return out


def _below(
    target: Runner, batch: Sequence[Segment], layer: int, taps: Collection[int]
) -> tuple[Output, Float[Tensor, "B n D"]]:
    """The first layers over a batch, and the stream behind them, which compiled layers give in float32."""
    out = target.forward(batch, layers=range(layer), head=False, taps={*taps, layer - 1})
    return out, out.taps[layer - 1] if out.hidden.dtype == target.dtype else out.hidden


def may_enter(row: Row, models: Models, layer: int) -> bool:
    """Whether a target's pass can be parted behind so many layers: one that hands on more than its stream cannot.

    Found out once for a target, by reading the row's last token both ways.
    """
    key = ("enters", layer)
    if key not in models.shared:
        block, target = Block(DraftTree.empty(device=models.target.device)), models.target
        with torch.inference_mode():
            whole = target.forward([block.segment(row, models)]).logits[0, :1]
            parted = forward_entering(models, [(row, block)], layer).logits[0, :1]
        row.place.scratch = 0
        models.shared[key] = logits_error(parted, whole) <= ROUNDING[target.dtype]
    return models.shared[key]

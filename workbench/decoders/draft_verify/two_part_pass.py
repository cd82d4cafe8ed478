"""A target forward in two parts: some probe positions enter at a middle layer, with states computed from the draft's.

    layers 1 … l      root, draft
    layers l + 1 … L  root, draft, probes computed from the residual streams after layer l

No layer processes a token twice, and the results for the draft are the same as without the probes.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Collection
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.verification_input import VerificationInput
from workbench.engine.request import Sequence
from workbench.kernels.segment import Output, Segment
from workbench.kernels.self_test import ROUNDING, logits_error
from workbench.models.loading import Models
from workbench.models.runner import Runner


def forward_entering(
    models: Models,
    batch: abc.Sequence[tuple[Sequence, VerificationInput]],
    layer: int,
    capture_layers: Collection[int] = (),
) -> Output:
    """Run `Runner.forward` for inputs whose probes enter after `layer` layers.

    Args:
        models: models with the target.
        batch: one input per sequence, in the order of the KV cache slots.
        layer: number of layers, the same for all of them, 1 … L.
        capture_layers: indices of layers to capture; states of layers below `layer` do not contain these probes.
    """
    target = models.target
    lower_segments = [block.below().segment(row, models) for row, block in batch]
    lower_taps = {tap for tap in capture_layers if tap < layer}
    lower_out, streams = _below(target, lower_segments, layer, lower_taps)
    full_segments = [
        replace(block.segment(row, models), states=block.entry_states(stream[: len(segment.tokens)]))
        for (row, block), segment, stream in zip(batch, lower_segments, streams, strict=True)
    ]
    out = target.forward(
        full_segments,
        layers=range(layer, target.n_layers),
        capture_layers={tap for tap in capture_layers if tap >= layer},
    )
    out.layer_states |= {tap: lower_out.layer_states[tap] for tap in lower_taps}
    return out


def _below(
    target: Runner, batch: abc.Sequence[Segment], layer: int, taps: Collection[int]
) -> tuple[Output, Float[Tensor, "B n D"]]:
    """Run the first layers over a batch; return the output and the residual stream (float32 from compiled layers)."""
    out = target.forward(batch, layers=range(layer), head=False, capture_layers={*taps, layer - 1})
    return out, out.layer_states[layer - 1] if out.hidden.dtype == target.dtype else out.hidden


def may_enter(sequence: Sequence, models: Models, layer: int) -> bool:
    """Whether a target's forward can be split after `layer` layers; it cannot if layers pass on several tensors.

    Tested once per target, by processing the sequence's last token both ways.
    """
    key = ("enters", layer)
    if key not in models.shared:
        block, target = VerificationInput(DraftTree.empty(device=models.target.device)), models.target
        with torch.inference_mode():
            one_pass = target.forward([block.segment(sequence, models)]).logits[0, :1]
            two_parts = forward_entering(models, [(sequence, block)], layer).logits[0, :1]
        sequence.cache_slot.scratch = 0
        models.shared[key] = logits_error(two_parts, one_pass) <= ROUNDING[target.dtype]
    return models.shared[key]

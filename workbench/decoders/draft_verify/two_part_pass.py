"""Run the target's forward pass in two parts, because some probe positions (never accepted) enter at a middle layer.

    layers 1 … l      root, draft
    layers l + 1 … L  root, draft, probes computed from the residual streams after layer l

No layer processes a token twice, and the results for the draft are the same as without the probes.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Collection

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.transfer import to_device
from workbench.engine.request import Sequence
from workbench.kernels.segment import Output, Segment
from workbench.kernels.self_test import ROUNDING, logits_error
from workbench.models.loading import Models
from workbench.models.runner import Runner

WholeSegment = Callable[[Float[Tensor, "n D"]], Segment]
"""Type of a function that returns a sequence's input of the later layers, with its probe positions (never accepted).

Its argument has the residual streams of the tokens before the probe positions.
"""


def forward_entering(
    models: Models,
    batch: abc.Sequence[tuple[Segment, WholeSegment]],
    layer: int,
    capture_layers: Collection[int] = (),
) -> Output:
    """Run the target's forward pass for inputs whose probe positions are added after `layer` layers.

    Probe positions are processed after the draft, but never accepted.

    Args:
        models: models with the target.
        batch: for each sequence, in the order of the KV cache slots, the input of the first layers, and the function
            that builds the input of the other layers.
        layer: number of first layers, 1 … L, equal for all sequences.
        capture_layers: indices of layers whose hidden states are captured; those of layers below `layer` do not contain
            these probe positions.
    """
    target = models.target
    lower_segments = [segment for segment, _ in batch]
    lower_layers = {captured for captured in capture_layers if captured < layer}
    lower_out, streams = _below(target, lower_segments, layer, lower_layers)
    out = target.forward(
        [whole(stream[: len(segment.tokens)]) for (segment, whole), stream in zip(batch, streams, strict=True)],
        layers=range(layer, target.n_layers),
        capture_layers={captured for captured in capture_layers if captured >= layer},
    )
    out.layer_states |= {captured: lower_out.layer_states[captured] for captured in lower_layers}
    return out


def _below(
    target: Runner, batch: abc.Sequence[Segment], layer: int, captured: Collection[int]
) -> tuple[Output, Float[Tensor, "B n D"]]:
    """Run the target's first layers over a batch; return the output and the residual stream.

    The residual stream is float32 if the layers are compiled.
    """
    out = target.forward(batch, layers=range(layer), head=False, capture_layers={*captured, layer - 1})
    return out, out.layer_states[layer - 1] if out.hidden.dtype == target.dtype else out.hidden


def may_enter(sequence: Sequence, models: Models, layer: int) -> bool:
    """Return whether a target's forward pass can be split after `layer` layers, so that probes can be added there.

    Probes are extra positions that are never accepted.

    Each layer must output a single tensor.

    The test runs once per target: it processes the sequence's last token with and without a split.
    """
    key, slot, target = ("enters", layer), sequence.cache_slot, models.target
    if key not in models.shared:

        def last_token(states: Float[Tensor, "1 D"] | None = None) -> Segment:
            slot.scratch = 0
            return Segment(slot, to_device(sequence.committed[-1:], target.device), states=states)

        with torch.inference_mode():
            one_pass = target.forward([last_token()]).logits[0, :1]
            two_parts = forward_entering(models, [(last_token(), last_token)], layer).logits[0, :1]
        slot.scratch = 0
        models.shared[key] = logits_error(two_parts, one_pass) <= ROUNDING[target.dtype]
    return models.shared[key]

"""Training-time test: in training, compute drafts of several steps after every position of a text in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.methods.common.feature_net import FeatureNet


def unroll(
    net: FeatureNet,
    next_embeds: Callable[[int], Float[Tensor, "B n D"]],
    features: Float[Tensor, "B n F"],
    steps: int,
) -> Iterator[Float[Tensor, "B n D"]]:
    """Yield, step by step, the layer's states of drafts that begin at every position of a text (training-time test).

    The drafts after all n positions are computed together. Entry s of step i (i = 0, 1, …) belongs to the draft that
    begins at position s, and is at position s + i. It attends to the text's pairs up to s, and to the entries of the
    same draft in the steps 1 … i.

    Args:
        net: feature net.
        next_embeds: function that returns, given i, for each position the embedding of the token i + 1 positions later.
        features: features of the target, as input of `FeatureNet.combine_hidden_states`.
        steps: number of draft steps.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, §3.2.
    """
    n, state = features.shape[1], net.combine_hidden_states(features)
    places = torch.arange(n, device=features.device)
    same_column = torch.eye(n, dtype=torch.bool, device=features.device)
    mask = same_column.new_ones(n, n).tril()
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(steps):
        stream, attention_input = net.attention_inputs(net.make_pairs(next_embeds(step), state))
        queries, key, value = net.project_qkv(attention_input, places + step)
        keys, values = [*keys, key], [*values, value]
        mask = torch.cat([mask, same_column], 1) if step else mask
        attention = nn.functional.scaled_dot_product_attention(queries, torch.cat(keys, 2), torch.cat(values, 2), mask)
        state = net.output_state(net.add_attention(attention, stream))
        yield state

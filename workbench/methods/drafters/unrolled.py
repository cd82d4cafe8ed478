"""Drafts after every position of a text at once, as drafting would make them one by one, for training."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.methods.drafters.feature_net import FeatureNet


def unroll(
    net: FeatureNet,
    following: Callable[[int], Float[Tensor, "B n D"]],
    features: Float[Tensor, "B n F"],
    steps: int,
) -> Iterator[Float[Tensor, "B n D"]]:
    """Yield the states of each draft step after every pair of a text, all at once (training-time test).

    In step i column s is at position s + i. It attends to what a draft there would: the true pairs up to s, and in each
    later step the one entry of its own column.

    Args:
        net: the net.
        following: i → embeddings of the tokens i + 1 positions ahead.
        features: of the target, as `FeatureNet.taken` returns them.
        steps: number of draft steps.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, §3.2.
    """
    n, state = features.shape[1], net.taken(features)
    places = torch.arange(n, device=features.device)
    own = torch.eye(n, dtype=torch.bool, device=features.device)
    mask = own.new_ones(n, n).tril()
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(steps):
        stream, read = net.reads(net.pairs(following(step), state))
        queries, key, value = net.turned(read, places + step)
        keys, values = [*keys, key], [*values, value]
        mask = torch.cat([mask, own], 1) if step else mask
        seen = nn.functional.scaled_dot_product_attention(queries, torch.cat(keys, 2), torch.cat(values, 2), mask)
        state = net.left(net.mixed(seen, stream))
        yield state

"""MSD: text and vision enter the drafter decoupled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.methods.drafters.feature import FeatureDrafter
from workbench.methods.drafters.feature_net import FeatureNet, Seen, View


class MSDNet(FeatureNet):
    """A word has a next word, a patch has none: text enters as pairs, a picture as its raw vision embeddings.

    So the target's features at vision positions are not used at all. Where text stops before a picture, the first
    embedding behind the picture counts as the next one.
    """

    kind = "msd"

    def following(self, seen: Seen) -> Float[Tensor, "B n_minus_1 D"]:
        """The next embedding of text: pictures are skipped."""
        n = seen.embeds.shape[1]
        next_one = list(range(1, n))
        for start, end in reversed(seen.spans):
            if start:  # pictures that touch: the text behind the last of them
                next_one[start - 1] = next_one[end - 1] if end < n else end - 1
        return seen.embeds[:, torch.tensor(next_one, dtype=torch.long, device=seen.embeds.device)]

    def look(self, seen: Seen, pairs: Float[Tensor, "B n_minus_1 D"], picture: int, how: Any = None) -> View:
        """The vision embeddings as the projector made them."""
        start, end = seen.spans[picture]
        inputs = seen.embeds[:, start : min(end, pairs.shape[1])]
        return View(inputs, torch.arange(inputs.shape[1], device=inputs.device))


@dataclass(frozen=True)
class MSD(FeatureDrafter):
    """Words enter with the target's feature and the next word's embedding, patches as what the projector gave.

    Source: Lin et al. 2025, Speculative decoding reimagined for multimodal large language models, arXiv:2505.14260, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (MSDNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = MSDNet

"""MSD: text enters the drafter as pairs of feature and embedding, images as vision embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.methods.common.feature import FeatureDrafter
from workbench.methods.common.feature_net import CompressedImage, FeatureNet, PromptFeatures


class MSDNet(FeatureNet):
    """Feature net that reads text as pairs of feature and next embedding, and images as raw vision embeddings.

    The target's features at vision positions are not used. At the last position before an image, the next embedding is
    the first one after the image.
    """

    kind = "msd"

    def next_embeddings(self, prompt: PromptFeatures) -> Float[Tensor, "B n_minus_1 D"]:
        """Return the embedding of the next text token after each position. Images are skipped."""
        n = prompt.embeds.shape[1]
        next_one = list(range(1, n))
        for start, end in reversed(prompt.spans):
            if start:  # adjacent images: use the text after the last of them
                next_one[start - 1] = next_one[end - 1] if end < n else end - 1
        return prompt.embeds[:, torch.tensor(next_one, dtype=torch.long, device=prompt.embeds.device)]

    def compress_image(
        self, prompt: PromptFeatures, pairs: Float[Tensor, "B n_minus_1 D"], image: int, options: Any = None
    ) -> CompressedImage:
        """Return an image's vision embeddings, the outputs of the target's projector."""
        start, end = prompt.spans[image]
        inputs = prompt.embeds[:, start : min(end, pairs.shape[1])]
        return CompressedImage(inputs, torch.arange(inputs.shape[1], device=inputs.device))


@dataclass(frozen=True)
class MSD(FeatureDrafter):
    """Draft from text as pairs of feature and next embedding, and from images as outputs of the target's projector.

    Source: Lin et al. 2025, Speculative decoding reimagined for multimodal large language models, arXiv:2505.14260, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (MSDNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = MSDNet

"""SpecVLM: an elastic compressor reduces the vision tokens of an image for the drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbench.core.params import param
from workbench.methods.common import compressors
from workbench.methods.common.feature import FeatureDrafter
from workbench.methods.common.feature_net import CompressedImage, FeatureNet, PromptFeatures

MENU = ("prune", "pool", "conv", "resample", "none")
"""Operations for compressing an image's vision tokens, among which SpecVLM's gate chooses."""
RATIOS = (1, 2, 4, 8, 16)
"""Compression ratios of images, one of which is sampled for each training batch."""
EVEN = 0.5
"""Share of training prompts whose compression operation is drawn uniformly instead of by the gate. So every
operation is trained."""


@dataclass(frozen=True, slots=True)
class Compression:
    """Options for the compression of an image.

    Attributes:
        compressor: operation, one of `MENU`; "gate": the gate chooses the operation; "all": the image is not
            compressed.
        ratio: number of vision tokens per remaining token, for prune, pool and conv.
        seed: seed of the random subset that pruning retains.
        noise: in training, Gumbel noise for each prompt and operation, with which the gate samples its choice.
        even: in training, whether the operation of each prompt is drawn uniformly.
    """

    compressor: str = "gate"
    ratio: int = 4
    seed: int = 0
    noise: Float[Tensor, "B menu"] | None = None
    even: Bool[Tensor, "B 1"] | None = None


class SpecVLMNet(FeatureNet):
    """EagleVLM's net with images compressed by one of five operations, which a gate chooses from the question.

    In drafting the gate chooses the operation with the largest weight. In training it samples by the Gumbel trick: all
    operations run in parallel, the outputs of those not sampled are masked, and the output of the sampled one is scaled
    by a weight whose value is 1 and whose gradient is that of the gate's softmax (straight-through).
    """

    kind = "specvlm"
    no_random_init = ("queries",)

    def __init__(self, width: int, heads: int, ffn: int, context: int = 1024) -> None:
        super().__init__(width, heads, ffn, context)
        self.conv, self.resample = compressors.Convolution(width), compressors.Resampler(width)
        self.gate = nn.Linear(width, len(MENU))

    def compress_image(
        self, prompt: PromptFeatures, pairs: Float[Tensor, "B n_minus_1 D"], image: int, options: Any = None
    ) -> CompressedImage:
        """Return the drafter's inputs at an image's positions, compressed by the chosen operation.

        Args:
            prompt: features of the prompts.
            pairs: fused features and embeddings of all positions.
            image: index of the image in the prompt.
            options: a `Compression`; None: the default `Compression()`.
        """
        options = options or Compression()
        full_view = super().compress_image(prompt, pairs, image)
        if options.compressor == "all":
            return full_view
        if options.compressor != "gate":
            return self.compress(full_view.inputs, prompt.grids[image], options.compressor, options)
        logits = self.gate(self.norm_feature(prompt.mean_question_feature()))  # [B, menu]
        if options.noise is not None:
            return self._drawn(full_view.inputs, prompt.grids[image], logits, options)
        gate = logits.softmax(-1)[0]
        view = self.compress(full_view.inputs, prompt.grids[image], MENU[int(gate.argmax())], options)
        view.gate = dict(zip(MENU, gate.tolist(), strict=True))
        return view

    def compress(
        self, x: Float[Tensor, "B N D"], grid: tuple[int, int], name: str, options: Compression
    ) -> CompressedImage:
        """Apply one compression operation to an image.

        Args:
            x: fused features and embeddings at the image's N positions.
            grid: number of rows and of columns of the image's vision tokens.
            name: operation, one of `MENU`.
            options: compression ratio and seed of the pruning.
        """
        rows, cols = grid if grid[0] * grid[1] == x.shape[1] else (1, x.shape[1])
        if name == "prune":
            indices = compressors.subset(x.shape[1], compressors.n_kept(x.shape[1], options.ratio), options.seed)
            return compressors.prune(x, indices)
        if name == "pool":
            return compressors.pool(x, rows, cols, options.ratio)
        if name == "conv":
            return self.conv(x, rows, cols, options.ratio)
        return self.resample(x) if name == "resample" else compressors.drop_all(x)

    def sample_options(self, n_prompts: int, rand: Callable[..., Tensor], step: int) -> Compression:
        """Return random compression options for a training step: ratio, seed for pruning, and noise for the gate."""
        ratio = RATIOS[int(rand(1) * len(RATIOS))]
        uniform = rand(n_prompts, len(MENU)).clamp(1e-6, 1 - 1e-6)
        is_uniform = rand(n_prompts, 1) < EVEN
        return Compression("gate", ratio, seed=step, noise=-(-uniform.log()).log(), even=is_uniform)

    def _drawn(self, x: Tensor, grid: tuple[int, int], logits: Tensor, options: Compression) -> CompressedImage:
        """Return the concatenated outputs of all compression operations for an image.

        For each prompt, the outputs of operations that were not sampled are masked.
        """
        assert options.noise is not None
        gate_logits = logits if options.even is None else logits.masked_fill(options.even, 0)
        probs = (gate_logits + options.noise).softmax(-1)
        one_hot = torch.zeros_like(probs).scatter_(1, probs.argmax(1, keepdim=True), 1.0)
        weight = one_hot + probs - probs.detach()
        views = [self.compress(x, grid, name, options) for name in MENU]
        sizes = [view.inputs.shape[1] for view in views]
        n_each = torch.tensor(sizes, device=x.device)
        operation = torch.arange(len(MENU), device=x.device).repeat_interleave(n_each)
        inputs = torch.cat([view.inputs for view in views], 1) * weight[:, operation].unsqueeze(-1)
        cost = (logits.softmax(-1) @ n_each.to(x)).mean() / x.shape[1]
        return CompressedImage(
            inputs, torch.cat([view.positions for view in views]), "gate", visible=one_hot[:, operation] > 0, cost=cost
        )


@dataclass(frozen=True)
class SpecVLM(FeatureDrafter):
    """Draft as EagleVLM with fewer vision tokens: a gate chooses to prune, pool, convolve, resample or drop them.

    Source: Huang et al. 2025, SpecVLM, arXiv:2509.11815, §3.2 (compressor), §3.3 (online-logit distillation).
    """

    needs: ClassVar[tuple[str, ...]] = (SpecVLMNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = SpecVLMNet
    compressor: str = param("gate", choices=("gate", "all", *MENU), doc="how the image is compressed for the drafter")
    ratio: int = param(
        4,
        ge=1,
        le=64,
        doc=("compression ratio of prune, pool and conv: vision tokens of the image per vision token kept"),
    )

    @property
    def image_options(self) -> Compression:
        return Compression(self.compressor, self.ratio)

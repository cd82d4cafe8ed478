"""S2D's drafter: a small language model with exits after some layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.kernels.packed import pack
from workbench.methods.common.attention_net import EPS, DecoderLayer, DraftKVCache, Norm
from workbench.methods.common.trained_net import TrainedNet


class S2DLayer(DecoderLayer):
    """Decoder layer of S2D's language model, without an output norm."""

    def __init__(self, width: int, heads: int, ffn: int, context: int, head_size: int) -> None:
        super().__init__(width, heads, context, head_size=head_size)
        del self.after  # all exits share one norm
        self.add_mlp(ffn)

    def forward(
        self,
        x: Float[Tensor, "B n W"],
        positions: Int[Tensor, " n"],
        mask: Bool[Tensor, "n used"] | None = None,
        kv_cache: DraftKVCache | None = None,
    ) -> Float[Tensor, "B n W"]:
        """Return the residual stream after the decoder layer. The arguments are those of `AttentionNet.attend`."""
        return self.apply_mlp(self.attend(x, positions, mask, kv_cache))


class S2DNet(TrainedNet):
    """S2D's drafter: a language model of a few layers with exits after some of them.

    Args:
        width: the target's hidden size D. It is only used to check that the net fits the target.
        heads: number of attention heads.
        ffn: width of the gated MLP.
        cond: the drafter's own hidden size W.
        vocabulary: size V of the target's vocabulary. The embeddings are tied with the LM head.
        exits: number of layers before each exit, ascending. The last is the number of all layers.
        context: maximum sequence length, in positions.
        head_size: size of an attention head; 0: W divided by the number of heads.

    Raises:
        ValueError: exits are not distinct and ascending from 1, or the heads do not divide the width.

    Source: Kavehzadeh et al. 2024, S2D, arXiv:2407.01955, §3; one norm and LM head for all exits: Valipour et al. 2023,
    SortedNet, arXiv:2309.00255.
    """

    kind: ClassVar[str] = "s2d"

    def __init__(
        self,
        width: int,
        heads: int,
        ffn: int,
        cond: int = 96,
        vocabulary: int = 4096,
        exits: Sequence[int] = (1, 2, 4),
        context: int = 1024,
        head_size: int = 0,
    ) -> None:
        super().__init__()
        if not exits or any(a >= b for a, b in pairwise((0, *exits))):
            raise ValueError(f"exits={list(exits)}: give layer numbers from 1, ascending and distinct")
        self.width, self.heads, self.exits = width, heads, tuple(exits)
        self.embed = nn.Linear(cond, vocabulary, bias=False)
        self.layers = nn.ModuleList(S2DLayer(cond, heads, ffn, context, head_size) for _ in range(exits[-1]))
        self.after = Norm(cond, eps=EPS)

    @property
    def blocks(self) -> list[list[S2DLayer]]:
        """Return the drafter's layers in blocks: each block has the layers after one exit, up to the next exit."""
        layers = cast(Sequence[S2DLayer], self.layers)
        return [list(layers[first:end]) for first, end in pairwise((0, *self.exits))]

    def embed_tokens(self, tokens: Int[Tensor, "*b n"]) -> Float[Tensor, "*b n W"]:
        """Return the embeddings of tokens, the residual stream before the first layer."""
        return nn.functional.embedding(tokens, self.embed.weight)

    def forward(self, tokens: Int[Tensor, "B n"]) -> list[Float[Tensor, "B n W"]]:
        """Return the LM head inputs at each exit of the drafter for whole texts, for training."""
        x, outputs, places = (
            self.embed_tokens(tokens),
            list[Tensor](),
            torch.arange(tokens.shape[1], device=tokens.device),
        )
        for block in self.blocks:
            for layer in block:
                x = layer(x, places)
            outputs.append(self.after(x))
        return outputs

    def prepare_for_drafting(self) -> S2DNet:
        """Prepare the S2D draft model for drafting: disable gradients, and copy its weights into a faster layout."""
        super().prepare_for_drafting()
        for layer in cast(Sequence[S2DLayer], self.layers):
            layer.prepare_for_drafting()
        pack(self.embed)
        return self

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild the S2D draft model."""
        layer, (vocabulary, cond) = self.blocks[0][0], self.embed.weight.shape
        return {
            "width": self.width, "heads": self.heads, "ffn": layer.down.in_features, "cond": cond,
            "vocabulary": vocabulary, "exits": list(self.exits), "head_size": layer.head_size,
        }  # fmt: skip

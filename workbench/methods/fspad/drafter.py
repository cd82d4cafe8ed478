"""FSPAD: the drafted token's embedding gates the feature; the LM head reads a projection of the predicted feature.

EAGLE's layer has two weaknesses. A feature f(s) represents all tokens that may follow, and the embedding e(s + 1) of
the drawn token has to select one of them; a single projection of both selects weakly. At the output, one vector has to
approximate the next feature, because it is fed back, and also has to give a peaked distribution. FSPAD separates these
tasks:

    selection   g(s) = W ( silu( S e(s + 1) ) ⊙ ( O f(s) ) )     in a space `wide` times as wide
    prediction  f̂(s + 1) = layer( g(≤ s) )                       trained towards f(s + 1), and fed back
    output      f̂ + V f̂  →  LM head  →  distribution of x(s + 2) trained on the distribution alone
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from workbench.methods.common.feature import FeatureDrafter
from workbench.methods.common.feature_net import NORMS, FeatureNet


class FSPADNet(FeatureNet):
    """EAGLE's layer with a gated input (feature sampling) and a separate output for the LM head (partial alignment).

    Args:
        width: the target's hidden size D.
        heads: number of attention heads.
        ffn: inner width of the gated MLP.
        context: maximum sequence length, in positions.
        wide: width of the gated space, in multiples of D.
        apart: whether the LM head reads the predicted feature plus a learned projection of it, instead of the predicted
            feature.
        norms: names of the norms of the layer, from `NORMS`.
        head_size: size of an attention head; 0: the width divided by the number of heads.
        options: further arguments of `AttentionNet`.

    Raises:
        ValueError: `wide` is less than 1.

    Source: Gui et al. 2024, FSPAD, arXiv:2408.15562, §3. No code was released, so the details are ours. The layer's
    state is trained to equal the target's feature, because it is the layer's next input; the LM head reads the state
    plus a learned projection of it.
    """

    kind: ClassVar[str] = "fspad"
    packed_layers: ClassVar[tuple[str, ...]] = ("select", "offer", *FeatureNet.packed_layers)
    no_random_init: ClassVar[tuple[str, ...]] = ("voice",)

    def __init__(
        self, width: int, heads: int, ffn: int, context: int = 1024, wide: int = 2, apart: bool = True,
        norms: Sequence[str] = NORMS, head_size: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(width, heads, ffn, context, norms, head_size=head_size, **options)
        if wide < 1:
            raise ValueError(f"wide={wide}: give a whole number of 1 or more (gated width / hidden size)")
        self.wide = wide
        self.select = nn.Linear(width, wide * width, bias=False)
        self.offer = nn.Linear(width, wide * width, bias=False)
        self.fuse = nn.Linear(wide * width, width, bias=False)
        self.voice = nn.Linear(width, width, bias=False) if apart else None
        if self.voice is not None:
            nn.init.zeros_(self.voice.weight)  # initialised as EAGLE: the LM head reads the prediction

    def make_pairs(self, next_embeds: Float[Tensor, "*b D"], features: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Return the layer's inputs: the target's features, each gated by the embedding of the next token."""
        gate = nn.functional.silu(self._times("select", self.norm_embed(next_embeds)))
        return self._times("fuse", gate * self._times("offer", self.norm_feature(features)))

    def lm_head_input(self, state: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Return the LM head's input: the predicted feature, plus a learned projection of it if `apart` is set."""
        return state if self.voice is None else state + self.voice(state)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild FSPAD's net."""
        return super().sizes | {"wide": self.wide, "apart": self.voice is not None}


@dataclass(frozen=True)
class FSPAD(FeatureDrafter):
    """Draft EAGLE-2's tree with FSPAD's layer.

    Source: Gui et al. 2024, FSPAD, arXiv:2408.15562, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (FSPADNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = FSPADNet
    recipe: ClassVar[str] = "chat-heads"

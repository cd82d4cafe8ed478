"""FSPAD: EAGLE's layer, but the drawn token selects from the feature, and what speaks need not be a feature.

Two things are asked of EAGLE's layer that get into each other's way. A feature f(s) holds all tokens that may follow;
which of them was drawn is told by its embedding, and one projection of both is a weak way to pick it out. And one
vector answers: it is held against the next feature, because it will enter in its place, and has to make a sure law.

    selects     g(s) = W ( silu( S e(s + 1) ) ⊙ ( O f(s) ) )     in a space some times as wide
    answers     f̂(s + 1) = layer( g(≤ s) )                       held against f(s + 1), and enters the next step
    says        f̂ + V f̂  →  LM head  →  law of x(s + 2)          of which nothing is asked but the law
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from workbench.methods.drafters.feature import FeatureDrafter
from workbench.methods.drafters.feature_net import NORMS, FeatureNet


class FSPADNet(FeatureNet):
    """Feature sampling in front of EAGLE's layer, and partial alignment behind it.

    Args:
        width: the target's hidden size D.
        heads: attention heads.
        ffn: width of the gated feed-forward.
        context: longest sequence, in positions.
        wide: in so many times D numbers the token selects.
        apart: whether the LM head reads a map of the guess, and not the guess itself.
        norms: as of `FeatureNet`.
        head_size: as of `FeatureNet`.
        options: of `AttentionNet`.

    Raises:
        ValueError: `wide` is less than 1.

    Source: Gui et al. 2024, FSPAD, arXiv:2408.15562, §3. The wiring is ours: no code was released. What is aligned is
    the state, so that it can go on as it is, and what speaks is a map of it.
    """

    kind: ClassVar[str] = "fspad"
    layers: ClassVar[tuple[str, ...]] = ("select", "offer", *FeatureNet.layers)
    begins: ClassVar[tuple[str, ...]] = ("voice",)

    def __init__(
        self, width: int, heads: int, ffn: int, context: int = 1024, wide: int = 2, apart: bool = True,
        norms: Sequence[str] = NORMS, head_size: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(width, heads, ffn, context, norms, head_size=head_size, **options)
        if wide < 1:
            raise ValueError(f"wide={wide}: give 1 or more, a multiple of the hidden size")
        self.wide = wide
        self.select = nn.Linear(width, wide * width, bias=False)
        self.offer = nn.Linear(width, wide * width, bias=False)
        self.fuse = nn.Linear(wide * width, width, bias=False)
        self.voice = nn.Linear(width, width, bias=False) if apart else None
        if self.voice is not None:
            nn.init.zeros_(self.voice.weight)  # it begins as EAGLE: what speaks is the guess

    def pairs(self, following: Float[Tensor, "*b D"], features: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Of each feature what the token that follows it selects."""
        gate = nn.functional.silu(self._times("select", self.norm_embed(following)))
        return self._times("fuse", gate * self._times("offer", self.norm_feature(features)))

    def said(self, state: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """What the LM head reads: the guess, moved to where it speaks."""
        return state if self.voice is None else state + self.voice(state)

    @property
    def sizes(self) -> dict[str, Any]:
        """What the constructor needs to build it again."""
        return super().sizes | {"wide": self.wide, "apart": self.voice is not None}


@dataclass(frozen=True)
class FSPAD(FeatureDrafter):
    """The layer drafts EAGLE-2's tree.

    Source: Gui et al. 2024, FSPAD, arXiv:2408.15562, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (FSPADNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = FSPADNet
    recipe: ClassVar[str] = "chat-heads"

"""PARD on the target's features: one pass over the text and a few masks guesses as many tokens at once.

Behind the newest pair of a true feature and the token that follows it stand masks, all of them one learned vector. Each
knows by its place alone how far ahead it is to guess, and sees the true pairs and the masks before it:

    place       s              s + 1     s + 2
    enters      f(s), e(s + 1) mask      mask
    answers     law of x(s + 2) x(s + 3)  x(s + 4)

So guesses know nothing of each other's tokens, as Medusa's heads, but the pass is one, whatever K is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.engine.models import Models
from workbench.engine.request import Request, Row
from workbench.methods.drafters.attention_net import Norm
from workbench.methods.drafters.feature import FeatureDrafter, FeatureState
from workbench.methods.drafters.feature_net import FeatureNet
from workbench.methods.drafters.medusa import RANKS, HeadsGrowth


class PardNet(FeatureNet):
    """EAGLE's layer, C numbers wide, and one mask for all of the places that it guesses without knowing their tokens.

    Args:
        width: the target's hidden size D.
        blocks: K, tokens guessed at once: the pair's and those of K − 1 masks.
        inner: C, the width of the layer.
        inner_heads: its attention heads.
        ffn: width of its feed-forward.
        context: longest sequence, in positions.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.2 (one mask for all places: §4.4); features beside the
    embeddings: An et al. 2026, PARD-2, arXiv:2605.08632 (its target-dependent mode).
    """

    kind: ClassVar[str] = "pard"

    def __init__(
        self, width: int, blocks: int = 6, inner: int = 96, inner_heads: int = 4, ffn: int = 192, context: int = 1024
    ) -> None:
        super().__init__(inner, inner_heads, ffn, context)
        self.width, self.blocks, self.inner = width, blocks, inner
        self.accuracy: tuple[tuple[float, ...], ...] = ()
        """How often the r-th best token of each place was right on held-out text, [K, 10]."""
        self.norm_embed, self.norm_feature = (Norm(width, eps=self.eps) for _ in range(2))
        self.fuse = nn.Linear(2 * width, inner, bias=False)
        self.widen = nn.Linear(inner, width, bias=False)
        self.mask = nn.Parameter(torch.empty(inner).normal_(std=0.5))

    def masks(self, like: Float[Tensor, "B m C"], n: int) -> Float[Tensor, "B n C"]:
        """So many masks for each of the texts."""
        return self.mask.to(like.dtype).expand(like.shape[0], n, -1)

    def unroll(self, pairs: Float[Tensor, "B n C"], kept: Sequence[Tensor]) -> list[Tensor]:
        """Training's one pass: guesses at features behind every pair of a text, and those of the masks behind some.

        Args:
            pairs: true ones.
            kept: of each mask, the first one first, the columns behind whose pair it stands, int64 [m].

        Returns:
            The guesses of the pairs and of each of the masks, in the order of these columns, [B, m, D].
        """
        columns = [torch.arange(pairs.shape[1], device=pairs.device), *kept]
        base = torch.cat(columns)
        step = torch.cat([torch.full_like(each, i) for i, each in enumerate(columns)])
        inputs = torch.cat([pairs, self.masks(pairs, len(base) - len(columns[0]))], 1)
        states = self(inputs, base + step, sees(base, step))
        return list(self.widen(states).split([len(each) for each in columns], 1))

    @property
    def sizes(self) -> dict[str, Any]:
        """What the constructor needs to build it again."""
        own = {"blocks": self.blocks, "inner": self.inner, "inner_heads": self.heads, "ffn": self.down.in_features}
        return {"width": self.width} | own

    def config(self) -> dict[str, Any]:
        return super().config() | {"head_accuracy": self.accuracy}

    @classmethod
    def of(cls, config: Mapping[str, Any], context: int = 1024) -> PardNet:
        net = cls(**config["net"], context=context)
        net.accuracy = tuple(map(tuple, config["head_accuracy"]))
        return net


def sees(base: Int[Tensor, " n"], step: Int[Tensor, " n"]) -> Bool[Tensor, "n n"]:
    """Who sees whom: everybody the true pairs up to its own column, and of its own column the masks before it, itself.

    Args:
        base: columns.
        step: 0 for a pair, i for the i-th mask behind it.
    """
    before = (step == 0) & (base <= base[:, None])
    return before | (base == base[:, None]) & (step <= step[:, None])


@dataclass(slots=True)
class PardState(FeatureState):
    """A feature drafter's state whose `guess` is K features, [K, D], the mask's entries gone."""

    net: PardNet

    def stay(self, x: Float[Tensor, "1 n C"], places: Int[Tensor, " n"]) -> Float[Tensor, "K D"]:
        """Read true inputs, whose entries stay, and behind them the masks, whose entries do not."""
        n, more = len(places), self.net.blocks - 1
        ahead = places[-1] + torch.arange(1, more + 1, device=places.device)
        states = self._run(torch.cat([x, self.net.masks(x, more)], 1), torch.cat([places, ahead]))
        self.entries.keep(self.entries.stable + n)
        return self.net.widen(states[0, n - 1 :])

    def whole(self, hidden: Float[Tensor, "B K D"], level: int) -> Float[Tensor, "B V"]:
        """Logits of one level over all of the target's tokens; −∞ for those that it does not keep."""
        return self.head.whole(hidden[:, level])


@dataclass(frozen=True)
class Pard(FeatureDrafter):
    """Guess K tokens in one pass: the newest pair and K − 1 masks behind it.

    What was accepted since the last round is read in the same pass. Masks' entries are dropped right behind it.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (PardNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = PardNet
    state: ClassVar[type[FeatureState]] = PardState
    usual: ClassVar[None] = None
    recipe: ClassVar[str] = "chat-heads"

    def reach(self, row: Row) -> int:
        """One level a place."""
        return row.state.net.blocks

    def begin(self, row: Row) -> HeadsGrowth | None:
        """Read what was accepted; a prompt of one token has nothing to go on from."""
        state: PardState = row.state
        guess = state.newest()
        return None if guess is None else HeadsGrowth(row, guess, *state.best(guess, RANKS))

    def explain(
        self, models: Models, request: Request, tokens: Sequence[int], told: Callable[[float], None] = lambda _: None
    ) -> None:
        """It was taught by text alone, so there is no map of a picture."""

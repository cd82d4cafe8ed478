"""PARD: all tokens of a draft in one pass of the drafter, at places that hold a mask where no token is known yet.

Whoever drafts one token after the other runs the drafter once for each. Here the pass that reads what was accepted goes
on over as many masks as there are more tokens to draft, and every place says its own:

    place     t                     t + 1          t + 2
    enters    f(t), e(x(t + 1))     f(t), m        f(t), m
    law of    x(t + 2)              x(t + 3)       x(t + 4)

The mask m is one learned embedding for all places, so a draft may be longer than any in training; in place of a feature
beside it stands the last one that is known. A mask sees the text and the masks before it, and no drafted token: what is
said of a place is the same whatever was drafted before it. That is what the one pass costs in acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.engine.parts import Grower
from workbench.engine.request import Row
from workbench.engine.tree_building import Growth
from workbench.methods.drafters.feature import FeatureDrafter, FeatureState
from workbench.methods.drafters.feature_net import OWN_WAY, FeatureNet
from workbench.methods.drafters.medusa import RANKS, HeadsGrowth
from workbench.methods.growers.chain import Chain


class PARDNet(FeatureNet):
    """EAGLE's layer with a mask, whose states are asked for good laws alone, as multi-token prediction's are.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.1 (masks); one mask for all places, as released.
    """

    kind: ClassVar[str] = "pard"
    guesses_features: ClassVar[bool] = False
    enters: ClassVar[str] = OWN_WAY
    accuracy: ClassVar[tuple[tuple[float, ...], ...]] = ()
    """How often each rank of each place is right was not measured."""

    def __init__(
        self, width: int, heads: int, ffn: int, context: int = 1024, head_size: int = 0, **options: Any
    ) -> None:
        super().__init__(width, heads, ffn, context, head_size=head_size, **options)
        self.mask = nn.Parameter(torch.randn(width) * width**-0.5)

    def masks(self, known: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """What enters where no token is known yet, beside these features."""
        return self.pairs(self.mask.expand_as(known), self.taken(known))

    def drafts(
        self,
        following: Float[Tensor, "B n D"],
        features: Float[Tensor, "B n D"],
        columns: Sequence[Int[Tensor, " _"]],
    ) -> list[Float[Tensor, "B _ D"]]:
        """What drafting says behind the pairs of a text, all at once: what it learns from.

        Of the draft behind the pair at s, step 0 is the pair itself, and step i the mask at s + i. It sees the true
        pairs up to s, and of the masks those of its own draft up to itself.

        Args:
            following: embeddings of the tokens that follow the features.
            features: of the target.
            columns: of each step, behind which pairs it is asked for: step 0 behind all, each later step behind some of
                those of the step before, whose masks it sees.

        Returns:
            The states of each step.
        """
        column = torch.cat(list(columns))
        step = torch.cat([torch.full_like(asked, number) for number, asked in enumerate(columns)])
        pairs = self.pairs(following, self.taken(features))
        masks = self.masks(features[:, column[features.shape[1] :]])
        text = (step == 0) & (column <= column[:, None])
        own = (column == column[:, None]) & (step <= step[:, None])
        states = self(torch.cat([pairs, masks], 1), column + step, text | own)
        return list(states.split([len(asked) for asked in columns], 1))


@dataclass(slots=True)
class PARDState(FeatureState):
    """What the drafter knows about one text. Its guesses at a place know nothing of those at the places before it."""

    def draft(self, masks: Float[Tensor, "1 k D"]) -> Float[Tensor, "k_plus_1 W"]:
        """Logits at the newest pair and at the masks behind it, by one pass that also reads what was accepted.

        Of the masks no entries stay.
        """
        clock = self.models.target.clock
        start = clock.mark()
        pairs = self.fresh()
        x = masks if pairs is None else torch.cat([pairs, masks], 1)
        read = x.shape[1] - masks.shape[1]
        states = self.net(x, torch.arange(self.place, self.place + x.shape[1], device=x.device), None, self.entries)[0]
        self.entries.keep(self.entries.stable + read)
        self.place += read
        if read:
            self.guess = states[read - 1 : read]
        assert self.guess is not None
        said = self.head(self.net.said(torch.cat([self.guess, states[read:]]))).float()
        self.models.meter.add(start, clock.mark())
        return said

    def whole(self, said: Float[Tensor, "1 K W"], level: int) -> Float[Tensor, "1 V"]:
        """Logits of one place of the draft, from 0, over all of the target's tokens: those of all places are known."""
        return self.head.spread(said[:, level])


@dataclass(frozen=True)
class PARD(FeatureDrafter):
    """As many levels as the plan has, by one pass of the layer and one product with the target's LM head.

    A tree over them is Medusa's: the law of a level is the same behind all nodes of the level before.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.1 (the pass). Its drafter is a language model of its own; here it
    reads the target's features, as PARD-2 (An et al. 2026, arXiv:2605.08632) lets it.
    """

    needs: ClassVar[tuple[str, ...]] = (PARDNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = PARDNet
    state: ClassVar[type[FeatureState]] = PARDState
    usual: ClassVar[Grower | None] = Chain()
    recipe: ClassVar[str] = "chat-heads"

    def begin(self, row: Row) -> Growth | None:
        """Draft all levels; a prompt of one token has nothing to go on from: the target has read nothing yet."""
        state: PARDState = row.state
        known = row.place.last_hidden
        if known is None:
            return None
        assert isinstance(state.net, PARDNet)
        said = state.draft(state.net.masks(known.expand(1, row.plan.depth - 1, -1)))
        return HeadsGrowth(row, said, *state.head.ranked(said, RANKS))

"""PARD: draft all tokens in one pass of the drafter, with masks at the positions of unknown tokens.

A drafter that drafts one token after the other runs once per token. Here the pass that reads the accepted tokens
continues over one mask for each further token of the draft, and every position predicts its own:

    position          t                     t + 1          t + 2
    input             f(t), e(x(t + 1))     f(t), m        f(t), m
    distribution of   x(t + 2)              x(t + 3)       x(t + 4)

The mask m is one learned embedding for all positions, so a draft may be longer than any in training; the last known
feature is fused with it. A mask attends to the text and the masks before it, and to no drafted token: its prediction
does not depend on earlier tokens of the draft, which lowers acceptance.

"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.decoders.draft_verify.parts import TreeBuilder
from workbench.decoders.draft_verify.tree_building import Growth
from workbench.engine.request import Row
from workbench.methods.drafters.feature import FeatureDrafter, FeatureState
from workbench.methods.drafters.feature_net import OWN_WAY, FeatureNet
from workbench.methods.drafters.medusa import RANKS, HeadsGrowth
from workbench.methods.tree_builders.chain import Chain


class PARDNet(FeatureNet):
    """EAGLE's layer with a mask; its states are trained on distributions alone, as multi-token prediction's are.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.1 (masks); one mask for all positions, as released.
    """

    kind: ClassVar[str] = "pard"
    guesses_features: ClassVar[bool] = False
    enters: ClassVar[str] = OWN_WAY
    accuracy: ClassVar[tuple[tuple[float, ...], ...]] = ()
    """Empty: the accuracy of each rank at each position was not measured."""

    def __init__(
        self, width: int, heads: int, ffn: int, context: int = 1024, head_size: int = 0, **options: Any
    ) -> None:
        super().__init__(width, heads, ffn, context, head_size=head_size, **options)
        self.mask = nn.Parameter(torch.randn(width) * width**-0.5)

    def masks(self, known: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Return the inputs of masks, fused with these features."""
        return self.pairs(self.mask.expand_as(known), self.taken(known))

    def drafts(
        self,
        following: Float[Tensor, "B n D"],
        features: Float[Tensor, "B n D"],
        columns: Sequence[Int[Tensor, " _"]],
    ) -> list[Float[Tensor, "B _ D"]]:
        """Return the outputs after the pairs of a text, all at once, for training.

        In the draft after the pair at s, step 0 is the pair itself, and step i the mask at s + i. It attends to the
        true pairs up to s, and to the masks of its own draft up to itself.

        Args:
            following: embeddings of the tokens that follow the features.
            features: features of the target.
            columns: per step, the pairs after which it is computed: step 0 after all, each later step after a subset of
                those of the step before, whose masks it attends to.

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
    """State of the drafter for one text. Its prediction at a position does not depend on earlier drafted tokens."""

    def draft(self, masks: Float[Tensor, "1 k D"]) -> Float[Tensor, "k_plus_1 W"]:
        """Return logits at the newest pair and at the masks after it, by one pass that also reads accepted pairs.

        No entries of masks are kept.
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
        said = self.head(self.net.lm_head_input(torch.cat([self.guess, states[read:]]))).float()
        self.models.meter.add(start, clock.mark())
        return said

    def whole(self, said: Float[Tensor, "1 K W"], level: int) -> Float[Tensor, "1 V"]:
        """Return logits of one position of the draft, from 0, over all of the target's tokens."""
        return self.head.spread(said[:, level])


@dataclass(frozen=True)
class PARD(FeatureDrafter):
    """Draft all levels of the plan by one pass of the layer and one product with the target's LM head.

    A tree over them is built as Medusa's: all nodes of a level have the same distribution for their children.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.1 (the pass). Its drafter is a separate language model; here it
    reads the target's features, as in PARD-2 (An et al. 2026, arXiv:2605.08632).
    """

    needs: ClassVar[tuple[str, ...]] = (PARDNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = PARDNet
    state: ClassVar[type[FeatureState]] = PARDState
    usual: ClassVar[TreeBuilder | None] = Chain()
    recipe: ClassVar[str] = "chat-heads"

    def begin(self, row: Row) -> Growth | None:
        """Draft all levels, or return None after a prompt of one token: the target has no feature yet."""
        state: PARDState = row.state.drafter
        known = row.place.last_hidden
        if known is None:
            return None
        assert isinstance(state.net, PARDNet)
        said = state.draft(state.net.masks(known.expand(1, row.state.plan.depth - 1, -1)))
        return HeadsGrowth(row, said, *state.head.ranked(said, RANKS))

"""PARD: draft all tokens in one forward pass of the drafter, with mask embeddings at future positions.

A drafter that drafts one token after the other runs once per token. Here one forward pass reads the accepted tokens and
one mask m for each further token of the draft, and every position predicts its own next token. f is a feature of the
target, e an embedding:

    position          t                     t + 1          t + 2
    input             f(t), e(x(t + 1))     f(t), m        f(t), m
    distribution of   x(t + 2)              x(t + 3)       x(t + 4)

The mask m is one learned embedding for all positions, so a draft may be longer than any in training. It is fused with
the last known feature. A mask attends to the text and to earlier masks, but to no drafted token. Its prediction does
not depend on earlier tokens of the draft, which lowers acceptance.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.decoders.draft_verify.parts import TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine.request import Sequence
from workbench.methods.common.feature import FeatureDrafter, FeatureState
from workbench.methods.common.feature_net import CUSTOM, FeatureNet
from workbench.methods.medusa.drafter import RANKS, HeadsGrowth
from workbench.methods.tree_builders.chain import Chain


class PARDNet(FeatureNet):
    """EAGLE's layer with a learned mask embedding, trained with a loss on distributions alone.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.1 (mask tokens); one mask token for all positions, as released.
    """

    kind: ClassVar[str] = "pard"
    predicts_features: ClassVar[bool] = False
    input_fusion: ClassVar[str] = CUSTOM
    accuracy: ClassVar[tuple[tuple[float, ...], ...]] = ()
    """Accuracy of the r-th most likely token at each draft position; empty, because it is not measured for this net."""

    def __init__(
        self, width: int, heads: int, ffn: int, context: int = 1024, head_size: int = 0, **options: Any
    ) -> None:
        super().__init__(width, heads, ffn, context, head_size=head_size, **options)
        self.mask = nn.Parameter(torch.randn(width) * width**-0.5)

    def mask_inputs(self, features: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Return the drafter layer's inputs at mask positions: the mask embedding, fused with each given feature."""
        return self.make_pairs(self.mask.expand_as(features), self.combine_hidden_states(features))

    def forward_drafts(
        self,
        next_embeds: Float[Tensor, "B n D"],
        features: Float[Tensor, "B n D"],
        columns: abc.Sequence[Int[Tensor, " _"]],
    ) -> list[Float[Tensor, "B _ D"]]:
        """Return the drafter layer's outputs for a text and for the drafts after its positions, for training.

        The text's input at position s is a pair: the feature at s, and the embedding of the token at s + 1. In the
        draft after this pair, step 0 is the pair itself, and step i is the mask at s + i. A mask attends to the pairs
        up to s, and to the masks of its own draft up to itself.

        Args:
            next_embeds: embeddings of the tokens that follow the features.
            features: features of the target.
            columns: for each draft step, the indices of the pairs after which it is computed. Step 0 is computed at all
                pairs, each later step after a subset of the previous step's pairs.

        Returns:
            Layer outputs, one tensor per step.
        """
        column = torch.cat(list(columns))
        step = torch.cat([torch.full_like(part, index) for index, part in enumerate(columns)])
        pairs = self.make_pairs(next_embeds, self.combine_hidden_states(features))
        masks = self.mask_inputs(features[:, column[features.shape[1] :]])
        text = (step == 0) & (column <= column[:, None])
        same_draft = (column == column[:, None]) & (step <= step[:, None])
        states = self(torch.cat([pairs, masks], 1), column + step, text | same_draft)
        return list(states.split([len(part) for part in columns], 1))


@dataclass(slots=True)
class PARDState(FeatureState):
    """Drafting state of PARD for one text. The prediction at a position does not depend on earlier drafted tokens."""

    def draft(self, masks: Float[Tensor, "1 k D"]) -> Float[Tensor, "k_plus_1 W"]:
        """Return logits at the newest token and at k mask embeddings after it.

        The same forward pass reads the accepted tokens. The KV cache entries of masks are dropped afterwards.
        """
        clock = self.models.target.clock
        start = clock.mark()
        pairs = self.take_new_pairs()
        x = masks if pairs is None else torch.cat([pairs, masks], 1)
        n_pairs = x.shape[1] - masks.shape[1]
        states = self.net(
            x, torch.arange(self.position, self.position + x.shape[1], device=x.device), None, self.kv_cache
        )[0]
        self.kv_cache.truncate(self.kv_cache.n_stable + n_pairs)
        self.position += n_pairs
        if n_pairs:
            self.guess = states[n_pairs - 1 : n_pairs]
        assert self.guess is not None
        logits = self.head(self.net.lm_head_input(torch.cat([self.guess, states[n_pairs:]]))).float()
        self.models.meter.add(start, clock.mark())
        return logits

    def level_logits(self, logits: Float[Tensor, "1 K W"], level: int) -> Float[Tensor, "1 V"]:
        """Return the logits over the target's V tokens at one position of a draft.

        Args:
            logits: result of `draft`, over the W tokens of the draft vocabulary.
            level: index of the position, from 0.
        """
        return self.head.scatter_logits(logits[:, level])


@dataclass(frozen=True)
class PARD(FeatureDrafter):
    """Draft all levels of the plan with one forward pass of the layer and one product with the target's LM head.

    A tree is built as in Medusa: all nodes of a level have the same distribution for their children.

    Source: An et al. 2025, PARD, arXiv:2504.18583, §3.1 (the forward pass). The paper's drafter is a separate language
    model; this one reads the target's features, as in PARD-2 (An et al. 2026, arXiv:2605.08632).
    """

    needs: ClassVar[tuple[str, ...]] = (PARDNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = PARDNet
    state: ClassVar[type[FeatureState]] = PARDState
    default_tree_builder: ClassVar[TreeBuilder | None] = Chain()
    recipe: ClassVar[str] = "chat-heads"

    def begin(self, sequence: Sequence) -> PartialTree | None:
        """Predict all draft levels at once, and start a tree; None if the target has no feature yet."""
        state: PARDState = sequence.state.drafter
        feature = sequence.cache_slot.last_hidden
        if feature is None:
            return None
        assert isinstance(state.net, PARDNet)
        logits = state.draft(state.net.mask_inputs(feature.expand(1, sequence.state.plan.depth - 1, -1)))
        return HeadsGrowth(sequence, logits, *state.head.top_tokens(logits, RANKS))

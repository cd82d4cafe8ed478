"""Multi-token prediction, as DeepSeek-V3 has it: a module behind the target that says one token more, again and again.

The module joins the norms of a hidden state and of the token behind it by one projection, has one transformer layer,
and speaks by the target's own embedding and output head. Applied to its own states it says the tokens after that, too:

    depth 1     h(s), e(s + 1)            →  h'(s + 1),  law of x(s + 2) by the head behind a norm
    depth k     h'(s + k − 1), e(s + k)   →  h'(s + k),  law of x(s + k + 1)

That is EAGLE's layer but for one thing: EAGLE's state is a guess at the target's feature, held against it in training;
here nothing is asked of h' but good laws. So h' goes on as the layer left it, and the last norm belongs to the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.methods.drafters.feature import FeatureDrafter
from workbench.methods.drafters.feature_net import FeatureNet


class MTPNet(FeatureNet):
    """One module for all depths, as engines apply it; the paper has one of each depth, and released a single one.

    Source: DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, §2.2; the norm before the head and the order of what is
    joined, embedding first, are those of its released weights.
    """

    kind: ClassVar[str] = "mtp"
    guesses_features: ClassVar[bool] = False


@dataclass(frozen=True)
class MTP(FeatureDrafter):
    """The module drafts a tree; each node enters with the module's own state at its parent.

    Source: DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, §2.2 (the module; MTP in inference).
    """

    needs: ClassVar[tuple[str, ...]] = (MTPNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = MTPNet
    recipe: ClassVar[str] = "chat-heads"

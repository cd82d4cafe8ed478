"""Multi-token prediction as in DeepSeek-V3: a module after the target repeatedly predicts one more token.

The module fuses a normalised hidden state h and the normalised embedding e of the next token by one projection. It has
one transformer layer, and uses the target's own embedding and LM head. Applied to its own output h', it predicts later
tokens:

    depth 1     h(s), e(s + 1)            →  h'(s + 1),  distribution of x(s + 2) by norm and LM head
    depth k     h'(s + k − 1), e(s + k)   →  h'(s + k),  distribution of x(s + k + 1)

This is EAGLE's layer with one difference: EAGLE's output is trained to match the target's feature, but h' is trained on
the distributions alone. So h' is fed back without the last norm, which belongs to the LM head.

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.methods.common.feature import FeatureDrafter
from workbench.methods.common.feature_net import FeatureNet


class MTPNet(FeatureNet):
    """Prediction module shared by all depths, as in inference engines. In the paper, each depth has its own module.

    Source: DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, §2.2; the norm before the LM head and the order of the
    fused inputs, embedding first, are those of the released weights.
    """

    kind: ClassVar[str] = "mtp"
    predicts_features: ClassVar[bool] = False


@dataclass(frozen=True)
class MTP(FeatureDrafter):
    """Draft a tree with the prediction module. The input of each node uses the module's own output at its parent.

    Source: DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, §2.2 (the module; MTP in inference).
    """

    needs: ClassVar[tuple[str, ...]] = (MTPNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = MTPNet
    recipe: ClassVar[str] = "chat-heads"

"""EAGLE for vision-language targets: the drafter is fed everything the target saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.methods.drafters.feature import FeatureDrafter
from workbench.methods.drafters.feature_net import FeatureNet


class EagleVLMNet(FeatureNet):
    """Every position enters alike: its feature, fused with the embedding that follows it, whether word or patch."""

    kind = "eagle-vlm"


@dataclass(frozen=True)
class EagleVLM(FeatureDrafter):
    """The whole prompt, vision tokens and all, goes into a one-layer drafter with EAGLE-2's tree.

    Source: Huang et al. 2025, SpecVLM, arXiv:2509.11815, §3.1: the baseline EagleVLM.
    """

    needs: ClassVar[tuple[str, ...]] = (EagleVLMNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = EagleVLMNet

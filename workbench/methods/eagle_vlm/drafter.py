"""EAGLE for vision-language targets: the drafter reads the whole prompt, images included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.methods.common.feature import FeatureDrafter
from workbench.methods.common.feature_net import FeatureNet


class EagleVLMNet(FeatureNet):
    """Feature net that treats text and image positions alike: each feature is fused with the next embedding."""

    kind = "eagle-vlm"


@dataclass(frozen=True)
class EagleVLM(FeatureDrafter):
    """Draft EAGLE-2's tree with one decoder layer that reads the whole prompt, vision tokens included.

    Source: Huang et al. 2025, SpecVLM, arXiv:2509.11815, §3.1: the baseline EagleVLM.
    """

    needs: ClassVar[tuple[str, ...]] = (EagleVLMNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = EagleVLMNet

"""EAGLE-2: one decoder layer on the target's features grows a tree where it is sure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.methods.drafters.feature import FeatureDrafter
from workbench.methods.drafters.feature_net import FeatureNet


@dataclass(frozen=True)
class Eagle(FeatureDrafter):
    """Features and the tokens that follow them go into one decoder layer; its guesses grow a tree by their promise.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, §4.1 (the layer); EAGLE-2, arXiv:2406.16858, §4 (the tree).
    """

    needs: ClassVar[tuple[str, ...]] = (FeatureNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = FeatureNet
    recipe: ClassVar[str] = "chat-heads"

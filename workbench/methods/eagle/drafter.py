"""EAGLE and EAGLE-2: draft a tree with one decoder layer on the target's features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.methods.common.feature import FeatureDrafter
from workbench.methods.common.feature_net import FeatureNet


@dataclass(frozen=True)
class Eagle(FeatureDrafter):
    """Draft a tree with one decoder layer that reads the target's features and the tokens after them.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, §4.1 (the layer); EAGLE-2, arXiv:2406.16858, §4 (the tree).
    """

    needs: ClassVar[tuple[str, ...]] = (FeatureNet.kind, "trees")
    net: ClassVar[type[FeatureNet]] = FeatureNet
    recipe: ClassVar[str] = "chat-heads"

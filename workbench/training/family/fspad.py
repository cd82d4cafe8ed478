"""Training of FSPAD's layer: as for EAGLE's layer, on features and distributions."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.drafters.fspad import FSPADNet
from workbench.training.family.eagle import FeatureHeadOptions
from workbench.training.family.eagle import train as train


@dataclass
class Options(FeatureHeadOptions):
    """Options for training FSPAD's layer.

    Attributes:
        wide: Width of the gated space, as a multiple of the target's hidden size.
        apart: Let the LM head read a learned projection of the predicted feature, not the feature itself.
    """

    method: str = FSPADNet.kind
    loss: str = "smooth_l1:10+ce_soft:1"
    wide: int = 2
    apart: bool = True

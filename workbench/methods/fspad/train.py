"""Training of FSPAD's layer on the target's features and distributions, like EAGLE's layer."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.eagle.train import FeatureHeadOptions
from workbench.methods.eagle.train import train as train
from workbench.methods.fspad.drafter import FSPADNet


@dataclass
class Options(FeatureHeadOptions):
    """Options for training FSPAD's layer.

    Attributes:
        wide: Width of the gated space, as a multiple of the target's hidden size.
        apart: Let the LM head read the predicted feature plus a learned projection of it, not the feature alone.
    """

    method: str = FSPADNet.kind
    loss: str = "smooth_l1:10+ce_soft:1"
    wide: int = 2
    apart: bool = True

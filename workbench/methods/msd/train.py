"""Training of MSD's drafter by the recipe `vision-heads`: first on text alone, then also on images."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.msd.drafter import MSDNet
from workbench.training.heads.recipe import VisionHeadOptions


@dataclass
class Options(VisionHeadOptions):
    """Options for training MSD's drafter."""

    method: str = MSDNet.kind
    curriculum: bool = True

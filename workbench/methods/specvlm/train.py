"""Training of SpecVLM's drafter and its compressor, by the recipe `vision-heads`."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.specvlm.drafter import SpecVLMNet
from workbench.training.heads.recipe import VisionHeadOptions


@dataclass
class Options(VisionHeadOptions):
    """Options for training SpecVLM's drafter.

    Attributes:
        price: Weight of the penalty on the expected share of an image's vision tokens that remain after compression.
    """

    method: str = SpecVLMNet.kind
    price: float = 0.02

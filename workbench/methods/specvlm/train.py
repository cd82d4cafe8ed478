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
        price: Penalty per vision token that the gate keeps, in units of the loss for the whole image.
    """

    method: str = SpecVLMNet.kind
    price: float = 0.02

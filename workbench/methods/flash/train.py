"""Training of FLASH's drafter, by the recipe `vision-heads`."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.flash.drafter import FlashNet
from workbench.training.heads.recipe import VisionHeadOptions


@dataclass
class Options(VisionHeadOptions):
    """Options for training FLASH's drafter.

    Attributes:
        latents: Number of latent vectors per image.
        ahead: Number of future features predicted from one hidden state.
    """

    method: str = FlashNet.kind
    latents: int = 8
    ahead: int = 4

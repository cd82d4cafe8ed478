"""Training of EagleVLM's drafter, by the recipe `vision-heads`."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.eagle_vlm.drafter import EagleVLMNet
from workbench.training.heads.recipe import VisionHeadOptions


@dataclass
class Options(VisionHeadOptions):
    """Options for training EagleVLM's drafter."""

    method: str = EagleVLMNet.kind

"""Training of Hydra++'s heads and prefix layer on the target's distributions, with Hydra's training code."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.hydra import train as hydra
from workbench.methods.hydra.train import train as train
from workbench.methods.hydra_plus_plus.drafter import HydraPlusPlusHeads


@dataclass
class Options(hydra.Options):
    """Options for training Hydra++'s heads.

    Attributes:
        cond: Internal width of the layers.
        ffn: Width of the prefix layer's gated MLP.
    """

    method: str = HydraPlusPlusHeads.kind
    ffn: int = 1024

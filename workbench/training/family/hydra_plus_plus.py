"""Training of Hydra++'s heads and their prefix layer: as for Hydra, on the target's distributions alone."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.methods.drafters.hydra_plus_plus import HydraPlusPlusHeads
from workbench.training.family import hydra
from workbench.training.family.hydra import train as train


@dataclass
class Options(hydra.Options):
    """Options for training Hydra++'s heads.

    Attributes:
        cond: Internal width of the layers.
        ffn: Width of the prefix layer's gated MLP.
    """

    method: str = HydraPlusPlusHeads.kind
    ffn: int = 1024

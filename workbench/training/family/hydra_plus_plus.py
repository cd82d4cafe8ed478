"""How Hydra++'s heads learn: as Hydra's, and through them the prefix layer, from the target's laws alone."""

from __future__ import annotations

from workbench.training.family.hydra import train as train

"""Training of Hydra++'s heads and their prefix layer: as for Hydra, on the target's distributions alone."""

from __future__ import annotations

from workbench.training.family.hydra import train as train

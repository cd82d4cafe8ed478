"""Measure a claim of a paper with `TextLab`, or with `VisionLab` if the claim is about a target that reads images."""

from __future__ import annotations

from workbench.bench.claims import Claim, Measurement, Scale
from workbench.models.bundle import VISION_TARGET


def measure(claim: Claim, scale: Scale) -> Measurement | None:
    """Measure a claim of a paper; return None if the claim defines no measurement.

    `scale` sets target, prompts and repeats of claims about text. For claims about images, `VisionLab` defines the
    models and the number of scenes.
    """
    if claim.measure is None:
        return None
    if claim.home == VISION_TARGET:
        from workbench.bench.vision_lab import VisionLab

        return claim.measure(VisionLab(claim.method))
    from workbench.bench.text_lab import TextLab

    return claim.measure(TextLab(claim.method, scale))

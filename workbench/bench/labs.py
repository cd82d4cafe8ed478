"""Measurement of a claim, by the text lab or the vision lab, depending on its target."""

from __future__ import annotations

from workbench.bench.claims import Claim, Measurement, Scale
from workbench.models.bundle import VISION_TARGET


def measure(claim: Claim, scale: Scale) -> Measurement | None:
    """Measure a claim at a scale; return None if it has no measurement. Claims about images have their own scale."""
    if claim.measure is None:
        return None
    if claim.home == VISION_TARGET:
        from workbench.bench.vision_lab import VisionLab

        return claim.measure(VisionLab(claim.method))
    from workbench.bench.text_lab import TextLab

    return claim.measure(TextLab(claim.method, scale))

"""The laboratory that measures a claim: the one of its target."""

from __future__ import annotations

from workbench.bench.claims import Claim, Measured, Scale
from workbench.models.bundle import VISION_TARGET


def measure(claim: Claim, scale: Scale) -> Measured | None:
    """What a claim comes to at a scale; None where nothing measures it. Claims about pictures have their own scale."""
    if claim.measure is None:
        return None
    if claim.home == VISION_TARGET:
        from workbench.bench.vision_lab import VisionLab

        return claim.measure(VisionLab(claim.method))
    from workbench.bench.text_lab import TextLab

    return claim.measure(TextLab(claim.method, scale))

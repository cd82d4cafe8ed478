"""Unified layer skipping: a draft skips evenly spaced layers of the target, the same layers for every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.core.params import param
from workbench.engine.request import Sequence
from workbench.methods.common.layer_skipping import HalfLayers, LayerSkippingDrafter, evenly_skipped


@dataclass(frozen=True)
class UnifiedSkip(LayerSkippingDrafter):
    """Draft with L / s of the target's L layers, evenly spread, including the first and the last.

    s is the intended speed-up. The layers depend on s alone, not on tokens, so all sequences of a batch run the same
    layers.

    Source: Liu et al. 2024, Unified Layer Skipping, arXiv:2404.06954, §3.
    """

    source: ClassVar[str] = "unified-skip"
    speedup: float = param(
        1.25, ge=1.0, le=8.0, doc="s, desired speed-up of a drafter pass; the drafter uses L / s of the L layers"
    )

    def skipped_half_layers(self, sequence: Sequence) -> HalfLayers:
        """Return the attention blocks and MLPs to skip.

        Of the target's L layers, L / (intended speed-up) run, rounded, but at least two.
        """
        n = sequence.models.target.n_layers
        return evenly_skipped(n, min(n, max(2, round(n / self.speedup))))

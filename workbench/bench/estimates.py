"""Figures of a cell with their 95 % intervals: speeds by `workbench.trace.speedup`, others by scipy's bootstrap."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.bench.bootstrap import bounds
from workbench.bench.paired import decode_rates, pays, speedup_of
from workbench.bench.sample import Sample
from workbench.trace import speedup
from workbench.trace.whatif import laws

if TYPE_CHECKING:
    from workbench.bench.compare import Measured

METRICS = {
    "speedup": "speed-up against plain decoding",
    "tau": "mean accepted length τ",
    "acceptance_rate": "accepted / tested",
    "tokens_per_second": "tokens per second",
}
"""What a cell shows, with its words."""
THEORY = {
    "speedup": {"speedup_iid": "formula: every draft accepted alike, at the costs measured"},
    "tau": {"tau_iid": "E[τ]: every draft accepted alike", "tau_by_position": "E[τ]: acceptance by position"},
}
"""What theory makes of the measured acceptance, drawn over a metric (`whatif.laws`, `paired.pays`)."""


def estimate(values: Sequence[float]) -> dict[str, Any] | None:
    """The mean with its percentile bootstrap interval: value, low, high, n. One value has no interval.

    For figures that are no speeds: τ and rates of acceptance, one value a prompt.

    Example:
        >>> estimate([2.0, 2.0])
        {'value': 2.0, 'low': 2.0, 'high': 2.0, 'n': 2}
    """
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) == 1 or min(values) == max(values):
        edge = None if len(values) == 1 else mean
        return {"value": mean, "low": edge, "high": edge, "n": len(values)}
    low, high = bounds(np.mean, values)
    return {"value": mean, "low": low, "high": high, "n": len(values)}


def estimates(lane: Measured, plain: Measured | None) -> dict[str, Any]:
    """Each metric of a lane. Times vary, so every repeat counts for them; what a seed decides counts once a prompt."""
    runs = list(lane.samples.values())
    first = {s.prompt: s for s in reversed(runs)}
    faster, rate = speedup_of(lane, plain), speedup.estimate(speedup.by_prompt(decode_rates(lane)))
    predicted = [found for t in lane.traces.values() if (found := laws(t.rounds))["rate"] is not None]
    formula = pays(lane, plain) if plain is not None and lane is not plain else None
    return {
        "speedup": faster and faster.to_wire(),
        "tau": estimate([len(s.token_ids) / s.rounds for s in first.values() if s.rounds]),
        "acceptance_rate": estimate([a for s in first.values() if (a := _acceptance(s)) is not None]),
        "tokens_per_second": rate and rate.to_wire(),
        "speedup_iid": estimate([formula["predicted"]] if formula else []),
        "tau_iid": estimate([found["tau_iid"] for found in predicted]),
        "tau_by_position": estimate([found["tau_by_position"] for found in predicted]),
    }


def _acceptance(sample: Sample) -> float | None:
    return sample.figures["accepted"] / sample.figures["tested"] if sample.figures["tested"] else None

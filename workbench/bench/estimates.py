"""Figures of a cell with their 95 % intervals, by `workbench.bench.statistics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.bench.comparison_figures import break_even
from workbench.bench.statistics import Totals, average_rate, geometric_mean, mean, rates, speedup_of
from workbench.trace.whatif import predict_tau

if TYPE_CHECKING:
    from workbench.bench.comparison_runs import LaneRuns

METRICS = {
    "speedup": "speed-up against plain decoding",
    "tau": "mean accepted length τ",
    "acceptance_rate": "accepted / tested",
    "tokens_per_second": "tokens per second",
}
"""Metrics of a cell, with their descriptions."""
THEORY = {
    "speedup": {"speedup_iid": "formula with a constant acceptance rate, at measured costs"},
    "tau": {"tau_iid": "E[τ] with a constant acceptance rate", "tau_by_position": "E[τ] by acceptance per position"},
}
"""Theoretical predictions from the measured acceptance, drawn over a metric (`predict_tau`, `break_even`)."""


def estimates(lane: LaneRuns, plain: LaneRuns | None) -> dict[str, Any]:
    """Return each metric of a lane with its interval.

    Times vary between repeats, so all repeats count for them; the other figures depend on the seed alone and count once
    per prompt.
    """
    runs = list(lane.samples.values())
    first = [Totals.of([s]) for s in {s.prompt: s for s in reversed(runs)}.values()]
    faster, rate = speedup_of(lane, plain), average_rate(rates(runs))
    predicted = [theory for t in lane.traces.values() if (theory := predict_tau(t.rounds))["rate"] is not None]
    formula = break_even(lane, plain) if plain is not None and lane is not plain else None
    return {
        "speedup": faster and faster.to_wire(),
        "tau": geometric_mean([t.tau for t in first if t.tau is not None]),
        "acceptance_rate": mean([t.acceptance_rate for t in first if t.acceptance_rate is not None]),
        "tokens_per_second": rate and rate.to_wire(),
        "speedup_iid": mean([formula["predicted"]] if formula else []),
        "tau_iid": geometric_mean([theory["tau_iid"] for theory in predicted]),
        "tau_by_position": geometric_mean([theory["tau_by_position"] for theory in predicted]),
    }

"""Predict, without a model, the speed of a recorded run with other drafts, and explain the run's time.

Predictions from the recorded verification results are exact for drafters whose proposals depend only on the text, as in
greedy drafting. Predictions from the run's mean times are marked as estimates. `workbench.bench.whatif_suite` measures
the error of each prediction against real runs; the error is shown with the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from workbench.trace import acceptance, metrics
from workbench.trace.events import Trace
from workbench.trace.speedup import Estimate
from workbench.trace.whatif.against_theory import compare_with_theory, compare_with_transport_bound
from workbench.trace.whatif.combination import Combination, combine
from workbench.trace.whatif.lengths import Alternative, Costs, LengthPredictions, fit_costs, predict_draft_lengths
from workbench.trace.whatif.tau_prediction import predict_tau
from workbench.trace.whatif.timing import TimeBreakdown, time_breakdown
from workbench.trace.whatif.width import EmittedTokenRanks, WidthEstimate, estimate_widths, rank_emitted_tokens
from workbench.trace.whatif.wording import explain_speed

__all__ = [
    "Alternative",
    "Combination",
    "Costs",
    "EmittedTokenRanks",
    "LengthPredictions",
    "TimeBreakdown",
    "WidthEstimate",
    "analyse",
    "combine",
    "compare_with_theory",
    "compare_with_transport_bound",
    "estimate_widths",
    "explain_speed",
    "fit_costs",
    "predict_draft_lengths",
    "predict_tau",
    "rank_emitted_tokens",
    "time_breakdown",
]  # fmt: skip
PLAIN = "autoregressive"


def analyse(
    trace: Trace,
    others: Sequence[Trace] = (),
    measured: Estimate | None = None,
    errors: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return all predictions and explanations of a recorded run as JSON data, for the command line and the Live page.

    Args:
        trace: trace of the run.
        others: other runs of the prompt: plain decoding becomes the baseline, any other run is combined with `trace`.
        measured: speed-up over plain decoding, measured with several pairs of runs, if available.
        errors: text about the measured error of each prediction (`workbench.bench.whatif_errors.errors`).
    """
    plain = next((t for t in others if t.header.method == PLAIN), None)
    time_budget, rounds = time_breakdown(trace, plain), trace.rounds
    is_tentative = any(len(r.nodes) and (r.placed or r.revoked) for r in rounds)  # tokens per round are not recorded
    lengths = predict_draft_lengths(trace, plain) if metrics.count_drafted(rounds) and not is_tentative else None
    return {
        "method": trace.header.method,
        "target": trace.header.target,
        "budget": time_budget.to_wire(),
        "words": explain_speed(time_budget, lengths, measured),
        "lengths": lengths.to_wire() if lengths else None,
        "combinations": [combine(trace, t).to_wire() for t in others if t.header.method != PLAIN],
        "rescues": [entry.to_wire() for entry in rank_emitted_tokens(rounds)],
        "widths": [asdict(entry) for entry in estimate_widths(rounds)] if lengths else [],
        "theory": compare_with_theory(trace, plain),
        "errors": dict(errors or {}),
        "definitions": [d.to_wire() for d in acceptance.definitions(rounds, trace.header.rules)],
    }

"""What a recorded run says about runs that were not made: where its time went, and what other drafts could have given.

No model is asked. What follows from the recorded verdicts is exact for a drafter whose proposals depend on the text
alone, as greedy drafting does; what is estimated from the run's mean times says so. Each prediction was held against
real runs: see `workbench.bench.whatif_suite`, whose error stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from workbench.trace import acceptance, metrics
from workbench.trace.events import Trace
from workbench.trace.speedup import Estimate
from workbench.trace.whatif.against_theory import overlay, transport
from workbench.trace.whatif.combination import Combination, combine
from workbench.trace.whatif.lengths import Alternative, Costs, Lengths, costs, draft_lengths
from workbench.trace.whatif.predicted import laws
from workbench.trace.whatif.timing import Budget, budget
from workbench.trace.whatif.width import Rescue, Width, rescues, widths
from workbench.trace.whatif.wording import words

__all__ = [
    "Alternative", "Budget", "Combination", "Costs", "Lengths", "Rescue", "Width", "analyse", "budget", "combine",
    "costs", "draft_lengths", "laws", "overlay", "rescues", "transport", "widths", "words",
]  # fmt: skip
PLAIN = "autoregressive"


def analyse(
    trace: Trace,
    others: Sequence[Trace] = (),
    measured: Estimate | None = None,
    errors: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything at once, as plain JSON: what the command line prints and the Live page draws.

    Args:
        trace: the run that is looked at.
        others: plain decoding of the same prompt serves as baseline; any other run is combined with `trace`.
        measured: speed-up over plain decoding from several pairs of runs like these two, where it was measured.
        errors: the measured error of each prediction, in words (`workbench.bench.whatif_errors.errors`).
    """
    plain = next((t for t in others if t.header.method == PLAIN), None)
    found, rounds = budget(trace, plain), trace.rounds
    is_held = any(len(r.nodes) and (r.placed or r.revoked) for r in rounds)  # rounds do not say what they gave
    lengths = draft_lengths(trace, plain) if metrics.drafted(rounds) and not is_held else None
    return {
        "method": trace.header.method,
        "target": trace.header.target,
        "budget": found.to_wire(),
        "words": words(found, lengths, measured),
        "lengths": lengths.to_wire() if lengths else None,
        "combinations": [combine(trace, t).to_wire() for t in others if t.header.method != PLAIN],
        "rescues": [entry.to_wire() for entry in rescues(rounds)],
        "widths": [asdict(entry) for entry in widths(rounds)] if lengths else [],
        "theory": overlay(trace, plain),
        "errors": dict(errors or {}),
        "definitions": [d.to_wire() for d in acceptance.definitions(rounds, trace.header.rules)],
    }

"""Fields of a round in the trace that all decoders fill in: settings, signals, warnings, phases and times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from workbench.engine.round_timing import Timing
from workbench.trace.events import Phase
from workbench.trace.metrics import DELAY

if TYPE_CHECKING:
    from workbench.engine.request import Sequence


def common_round_fields(sequence: Sequence, timing: Timing) -> dict[str, Any]:
    """Return the fields of a `Round` in the trace that all decoders fill in: settings, signals, warnings, timing.

    The phase that `Timing` calls "accept" has the name "judge" in traces.
    """
    times = sequence.times
    assert times.origin is not None
    assert times.origin_s is not None
    t_end, report = time.perf_counter(), sequence.report
    still_s = sequence.pace.paused_s  # delays and pauses do not count in the trace's times
    origin, origin_s = times.origin.seconds + still_s, times.origin_s + still_s
    seconds = t_end - timing.started_s
    drafted, verified, overhead_s = timing.draft_work, timing.verify_work, max(0.0, seconds - timing.forwards_s)
    parts = {"draft_s": drafted.part_s, "verify_s": verified.part_s, "overhead_s": overhead_s / timing.n_sequences}
    return {
        "index": len(sequence.trace.rounds),
        "method": sequence.configured_method.name,
        "params": sequence.params,
        "phases": [
            *_draft_phases(timing, origin),
            Phase("verify", timing.verify.seconds - origin, timing.accept.seconds - origin),
            Phase("judge", timing.accept.seconds - origin, timing.commit.seconds - origin),
            Phase("commit", timing.commit.seconds - origin, t_end - origin_s),
            *(
                Phase(name, start.seconds - origin, end.seconds - origin, lane)
                for name, start, end, lane in report.other_work
            ),
        ],
        "started_s": timing.started_s - origin_s,
        "seconds": seconds,
        "draft_s": drafted.seconds,
        "verify_s": verified.seconds,
        "overhead_s": overhead_s,
        "waited_s": timing.waited_s if timing.n_sequences > 1 else 0.0,
        "shared": {"rows": timing.n_sequences, **parts} if timing.n_sequences > 1 else {},
        "draft_forwards": drafted.forwards,
        "target_forwards": verified.forwards,
        "changes": report.changes,
        "signals": report.signals
        | ({DELAY: sequence.pace.paused_before_s} if sequence.pace.paused_before_s > 0 else {}),
        "notes": list(report.notes),
        "revoked": [*report.revoked],
    }


def _draft_phases(timing: Timing, origin: float) -> list[Phase]:
    """Return the drafting phase of one sequence, and its waits while the decoder drafted for other sequences.

    Times are in seconds after `origin`.
    """
    drafting = timing.drafting
    if timing.n_sequences == 1:
        return [Phase("draft", timing.start.seconds - origin, timing.verify.seconds - origin)]
    edges = [mark.seconds - origin for mark in (timing.start, drafting.start, drafting.end, timing.verify)]
    stretches = zip(("wait", "draft", "wait"), edges[:-1], edges[1:], strict=True)
    return [Phase(name, start, end) for name, start, end in stretches if end > start]

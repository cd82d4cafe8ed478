"""Trace records of rounds: settings, timing and other fields that rounds of every decoder have."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from workbench.engine.request import Sequence
from workbench.engine.run_checks import warnings_for
from workbench.engine.settings import SAMPLING_NAMES
from workbench.trace.events import Phase, Round
from workbench.trace.metrics import DELAY
from workbench.trace.nodes import Nodes
from workbench.trace.tokens import EmittedToken, TentativeTokenRecord

if TYPE_CHECKING:
    from workbench.engine.round_timing import Timing


def current_params(sequence: Sequence) -> dict[str, object]:
    """Return the current parameters and sampling of a sequence."""
    return {**sequence.configured_method.values, **{name: getattr(sequence.sampling, name) for name in SAMPLING_NAMES}}


def record_placed(
    sequence: Sequence,
    emitted: list[EmittedToken],
    placed: list[TentativeTokenRecord],
    revoked: list[int],
    timing: Timing,
    t_round: float,
) -> Round:
    """Return the trace record of a round without a draft tree, whose tokens may be tentative (`Round.placed`)."""
    fields = common_round_fields(sequence, timing, t_round)
    fields["revoked"] += revoked
    fields["phases"] = [phase for phase in fields["phases"] if phase.name != "draft"]
    return Round(**fields, nodes=Nodes(), path=[], bonus=None, bonus_kind=None, emitted=emitted, placed=placed)


def append_round(sequence: Sequence, record: Round) -> None:
    """Append the finished round to the trace, and pass it to the request's callback."""
    assert sequence.trace is not None
    sequence.trace.rounds.append(record)
    sequence.report.revoked, sequence.report.other_work = [], []
    sequence.pace.end_round(len(record.emitted))
    for warning in warnings_for(sequence, sequence.models):
        if warning not in sequence.trace.footer.warnings:
            sequence.trace.footer.warnings.append(warning)
            record.notes.append(warning)
    if sequence.request.on_round is not None:
        sequence.request.on_round(record)


def common_round_fields(sequence: Sequence, timing: Timing, t_round: float) -> dict[str, Any]:
    """Return the fields that rounds of every decoder have: current settings, and timing."""
    assert sequence.trace is not None
    assert sequence.origin is not None
    assert sequence.origin_s is not None
    t_end, report = time.perf_counter(), sequence.report
    still_s = sequence.pace.paused_s  # delays and pauses do not count in the trace's times
    origin, origin_s, seconds = sequence.origin.seconds + still_s, sequence.origin_s + still_s, t_end - t_round
    drafted, verified, overhead_s = timing.draft_work, timing.verify_work, max(0.0, seconds - timing.forwards_s)
    parts = {"draft_s": drafted.part_s, "verify_s": verified.part_s, "overhead_s": overhead_s / timing.n_sequences}
    return {
        "index": len(sequence.trace.rounds),
        "method": sequence.configured_method.name,
        "params": current_params(sequence),
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
        "started_s": t_round - origin_s,
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
    """Return the phase of the sequence's own drafting, and the waits while the decoder drafted for other sequences."""
    drafting = timing.drafting
    if timing.n_sequences == 1:
        return [Phase("draft", timing.start.seconds - origin, timing.verify.seconds - origin)]
    edges = [mark.seconds - origin for mark in (timing.start, drafting.start, drafting.end, timing.verify)]
    stretches = zip(("wait", "draft", "wait"), edges[:-1], edges[1:], strict=True)
    return [Phase(name, start, end) for name, start, end in stretches if end > start]

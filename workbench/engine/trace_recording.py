"""Trace records of rounds: settings, timing and facts that rounds of every decoder have."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from workbench.engine.request import Row
from workbench.engine.run_checks import warnings_for
from workbench.engine.settings import SAMPLING_NAMES
from workbench.trace.events import Phase, Round
from workbench.trace.metrics import HELD
from workbench.trace.nodes import Nodes
from workbench.trace.tokens import Emitted, Placed

if TYPE_CHECKING:
    from workbench.engine.round_timing import Timing


def params_of(row: Row) -> dict[str, object]:
    """Return the current parameters and sampling of a sequence."""
    return {**row.configured.values, **{name: getattr(row.sampling, name) for name in SAMPLING_NAMES}}


def record_placed(
    row: Row, emitted: list[Emitted], placed: list[Placed], revoked: list[int], timing: Timing, t_round: float
) -> Round:
    """Return the trace record of a round without a draft tree: see `Round.placed`. Its timing has no drafting."""
    fields = fields_of_any_round(row, timing, t_round)
    fields["revoked"] += revoked
    fields["phases"] = [phase for phase in fields["phases"] if phase.name != "draft"]
    return Round(**fields, nodes=Nodes(), path=[], bonus=None, bonus_kind=None, emitted=emitted, placed=placed)


def keep_round(row: Row, record: Round) -> None:
    """Append the finished round to the trace, and pass it to the request's callback."""
    assert row.trace is not None
    row.trace.rounds.append(record)
    row.report.revoked, row.report.other_work = [], []
    row.pace.emitted(len(record.emitted))
    for warning in warnings_for(row, row.models):
        if warning not in row.trace.footer.warnings:
            row.trace.footer.warnings.append(warning)
            record.notes.append(warning)
    if row.request.on_round is not None:
        row.request.on_round(record)


def fields_of_any_round(row: Row, timing: Timing, t_round: float) -> dict[str, Any]:
    """Return the fields that rounds of every decoder have: current settings, and timing."""
    assert row.trace is not None
    assert row.origin is not None
    assert row.origin_s is not None
    t_end, report = time.perf_counter(), row.report
    still_s = row.pace.still_s  # delays and pauses do not count in the trace's times
    origin, origin_s, seconds = row.origin.seconds + still_s, row.origin_s + still_s, t_end - t_round
    drafted, verified, overhead_s = timing.drafted, timing.verified, max(0.0, seconds - timing.forwards_s)
    parts = {"draft_s": drafted.part_s, "verify_s": verified.part_s, "overhead_s": overhead_s / timing.rows}
    return {
        "index": len(row.trace.rounds),
        "method": row.configured.name,
        "params": params_of(row),
        "phases": [
            *_draft_phases(timing, origin),
            Phase("verify", timing.verify.seconds - origin, timing.judge.seconds - origin),
            Phase("judge", timing.judge.seconds - origin, timing.commit.seconds - origin),
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
        "waited_s": timing.waited_s if timing.rows > 1 else 0.0,
        "shared": {"rows": timing.rows, **parts} if timing.rows > 1 else {},
        "draft_forwards": drafted.forwards,
        "target_forwards": verified.forwards,
        "changes": report.changes,
        "signals": report.signals | ({HELD: row.pace.before_s} if row.pace.before_s > 0 else {}),
        "notes": list(report.notes),
        "revoked": [*report.revoked],
    }


def _draft_phases(timing: Timing, origin: float) -> list[Phase]:
    """Return the phase of the sequence's own drafting, and the waits while other sequences were drafted for."""
    drafting = timing.drafting
    if timing.rows == 1:
        return [Phase("draft", timing.start.seconds - origin, timing.verify.seconds - origin)]
    edges = [mark.seconds - origin for mark in (timing.start, drafting.start, drafting.end, timing.verify)]
    stretches = zip(("wait", "draft", "wait"), edges[:-1], edges[1:], strict=True)
    return [Phase(name, start, end) for name, start, end in stretches if end > start]

"""Pace of a run that is slowed down for display: start of the next round, and delays excluded from measurement."""

from __future__ import annotations

from itertools import pairwise

import model_helpers
import pytest

from workbench.engine import Engine, Request
from workbench.engine.pacing import Pace
from workbench.engine.request import ENDED
from workbench.methods import registry
from workbench.trace import metrics
from workbench.trace.events import Trace


class ManualClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_next_round_waits_for_the_display_time_of_its_tokens() -> None:
    clock = ManualClock()
    pace = Pace(8, clock)
    assert pace.remaining_s == 0  # the first round has no delay
    pace.end_round(4)
    assert pace.remaining_s == pytest.approx(0.5)
    clock.s += 0.3
    assert pace.remaining_s == pytest.approx(0.2)
    pace.set_rate(40)  # the time of four tokens at 40 per second is already over
    assert pace.remaining_s == 0
    pace.set_rate(2)
    assert pace.remaining_s == pytest.approx(1.7)
    pace.is_waived = True
    assert pace.remaining_s == 0
    pace.set_rate(0)
    pace.is_waived = False
    assert pace.remaining_s == 0


def test_paused_time_counts_between_rounds() -> None:
    clock = ManualClock()
    pace = Pace(8, clock)
    pace.end_round(4)
    clock.s += 0.1
    pace.set_paused(True)
    clock.s += 0.3
    pace.set_paused(True)
    assert pace.paused_s == pytest.approx(0.4)
    clock.s += 0.1
    pace.set_paused(False)
    clock.s += 5  # the round itself
    assert pace.paused_s == pytest.approx(0.5)


def run_with_pace(rate: float, pause: bool = False) -> tuple[list[float], Trace]:
    """Run the engine with a clock that moves only while the sequence waits; return the times at which rounds ended."""
    engine = Engine(model_helpers.make_models("llama", noise=0.15))
    row = engine.submit(Request([1, 2, 3], registry.get("draft-model"), max_new_tokens=12, pace=rate))
    clock, ends = ManualClock(), []
    tick = 0.04 / (rate or 1)  # a small part of a token's time, so that rounds start with little delay
    row.pace = Pace(rate, clock)
    while row.status not in ENDED:
        if engine.step():
            assert row.trace is not None
            if len(row.trace.rounds) > len(ends):
                ends.append(clock.s)
                if pause and len(ends) == 2:
                    row.pause()
        elif row.status == "paused":
            clock.s += 50
            row.step()
        else:
            clock.s += tick
    assert row.trace is not None
    return ends, row.trace


def test_paced_sequence_waits_between_rounds() -> None:
    ends, trace = run_with_pace(4)
    lengths = [len(r.emitted) for r in trace.rounds]
    gaps = [b - a for a, b in pairwise(ends)]
    assert gaps == pytest.approx([n / 4 for n in lengths[:-1]], abs=0.011)
    free, plain = run_with_pace(0)
    assert free == [100.0] * len(free)  # no delay
    assert [r.emitted for r in trace.rounds] == [r.emitted for r in plain.rounds]


def test_trace_records_delayed_rounds_and_their_delay() -> None:
    ends, trace = run_with_pace(4)
    delays = [r.signals.get(metrics.DELAY, 0.0) for r in trace.rounds]
    assert delays == pytest.approx([0.0, *(b - a for a, b in pairwise(ends))])
    assert metrics.summary(trace)["delayed_rounds"] == len(trace.rounds) - 1
    _, free = run_with_pace(0)
    assert metrics.count_delayed_rounds(free.rounds) == 0
    _, stepped = run_with_pace(0, pause=True)
    assert metrics.count_delayed_rounds(stepped.rounds) == len(stepped.rounds) - 2, (
        "a pause cools CPU caches as a delay does"
    )


def test_single_step_is_not_delayed() -> None:
    ends, _ = run_with_pace(4, pause=True)
    gaps = [b - a for a, b in pairwise(ends[1:])]
    assert gaps == pytest.approx([50] * len(gaps))


def test_paused_time_is_subtracted_from_every_time_of_a_trace() -> None:
    """Delays use another clock than measurements here, so that subtracting them gives negative times."""
    ends, trace = run_with_pace(0.001)
    last, stood = trace.rounds[-1], ends[-1] - 100.0
    assert stood > 5000
    for seconds in (trace.footer.seconds, last.started_s, last.phases[0].start_s, last.phases[-1].end_s):
        assert seconds == pytest.approx(-stood, abs=600)
    assert 0 < last.seconds < 600

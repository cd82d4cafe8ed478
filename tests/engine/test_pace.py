"""A run that is held back so that people can follow: when the next round may start, and what does not count."""

from __future__ import annotations

from itertools import pairwise

import model_helpers
import pytest

from workbench.engine import Engine, Request
from workbench.engine.pacing import Pace
from workbench.methods import registry
from workbench.trace import metrics
from workbench.trace.events import Trace


class ManualClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_the_next_round_waits_for_the_time_its_tokens_take_to_show() -> None:
    clock = ManualClock()
    pace = Pace(8, clock)
    assert pace.remaining_s == 0  # the first round comes at once
    pace.end_round(4)
    assert pace.remaining_s == pytest.approx(0.5)
    clock.s += 0.3
    assert pace.remaining_s == pytest.approx(0.2)
    pace.set_rate(40)  # four tokens at forty a second are over already
    assert pace.remaining_s == 0
    pace.set_rate(2)
    assert pace.remaining_s == pytest.approx(1.7)
    pace.is_waived = True
    assert pace.remaining_s == 0
    pace.set_rate(0)
    pace.is_waived = False
    assert pace.remaining_s == 0


def test_time_stood_still_counts_from_the_end_of_the_last_round_to_the_next() -> None:
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
    """Run the engine against a clock that stands still unless a row is held back. Times at which rounds ended."""
    engine = Engine(model_helpers.make_models("llama", noise=0.15))
    row = engine.submit(Request([1, 2, 3], registry.get("draft-model"), max_new_tokens=12, pace=rate))
    clock, ends = ManualClock(), []
    tick = 0.04 / (rate or 1)  # a small part of a token's time, so that few of the looks at the clock are in vain
    row.pace = Pace(rate, clock)
    while not row.ended.is_set():
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


def test_the_engine_holds_a_paced_row_back_between_rounds_and_counts_none_of_it() -> None:
    ends, trace = run_with_pace(4)
    lengths = [len(r.emitted) for r in trace.rounds]
    gaps = [b - a for a, b in pairwise(ends)]
    assert gaps == pytest.approx([n / 4 for n in lengths[:-1]], abs=0.011)
    free, plain = run_with_pace(0)
    assert free == [100.0] * len(free)  # nothing is held back
    assert [r.emitted for r in trace.rounds] == [r.emitted for r in plain.rounds]


def test_a_trace_says_which_rounds_were_held_back_and_for_how_long() -> None:
    ends, trace = run_with_pace(4)
    said = [r.signals.get(metrics.DELAY, 0.0) for r in trace.rounds]
    assert said == pytest.approx([0.0, *(b - a for a, b in pairwise(ends))])
    assert metrics.summary(trace)["held_rounds"] == len(trace.rounds) - 1
    _, free = run_with_pace(0)
    assert metrics.count_delayed_rounds(free.rounds) == 0
    _, stepped = run_with_pace(0, pause=True)
    assert metrics.count_delayed_rounds(stepped.rounds) == len(stepped.rounds) - 2, (
        "a pause cools caches as a pace does"
    )


def test_a_step_is_not_held_back() -> None:
    ends, _ = run_with_pace(4, pause=True)
    gaps = [b - a for a, b in pairwise(ends[1:])]
    assert gaps == pytest.approx([50] * len(gaps))


def test_what_a_run_stood_still_is_taken_out_of_every_time_of_its_trace() -> None:
    """It stands still by another clock than it runs by: what is taken out shows as less than nothing."""
    ends, trace = run_with_pace(0.001)
    last, stood = trace.rounds[-1], ends[-1] - 100.0
    assert stood > 5000
    for seconds in (trace.footer.seconds, last.started_s, last.phases[0].start_s, last.phases[-1].end_s):
        assert seconds == pytest.approx(-stood, abs=600)
    assert 0 < last.seconds < 600

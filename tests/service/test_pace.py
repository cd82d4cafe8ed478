"""Runs slowed down for display: other runs are not delayed, and timed runs and statistics are not affected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workbench.core.errors import ParameterError
from workbench.service import Backend

from .conftest import PROMPT, rounds, wait_until

NEVER = 0.001
"""Tokens per second: the second round of such a run comes after more than a quarter of an hour."""


def test_a_slowed_run_can_be_changed_stepped_and_released_while_another_runs(
    backend: Callable[..., Backend],
) -> None:
    bench = backend()
    whole = bench.start(PROMPT, "autoregressive", max_new_tokens=30).wait(60).token_ids
    run = bench.start(PROMPT, "draft-model", {"depth": 3}, max_new_tokens=30, pace=NEVER)
    wait_until(lambda: rounds(run) == 1)
    assert bench.start(PROMPT, "autoregressive", max_new_tokens=30).wait(60).token_ids == whole  # not slowed
    assert (rounds(run), run.state, run.since(0)["pace"]) == (1, "running", NEVER)
    run.change(method="prompt-lookup")
    run.step()
    wait_until(lambda: rounds(run) == 2 and run.state == "paused")
    assert run.trace is not None
    assert run.trace.rounds[1].method == "prompt-lookup"
    run.change(pace=0)
    run.resume()
    assert run.wait(60).token_ids == whole
    assert run.since(0)["pace"] == 0


def test_queued_runs_do_not_wait_for_a_slowed_run(backend: Callable[..., Backend]) -> None:
    bench = backend(max_sequences=1)
    slow = bench.start(PROMPT, "autoregressive", max_new_tokens=6, user="a", pace=NEVER)
    wait_until(lambda: rounds(slow) == 1)
    waiting = bench.start(PROMPT, "autoregressive", max_new_tokens=6, user="b")
    assert len(waiting.wait(60).token_ids) == 6
    assert slow.ended


def test_timed_runs_are_never_slowed(backend: Callable[..., Backend]) -> None:
    bench = backend()
    run = bench.start(PROMPT, "autoregressive", max_new_tokens=6, is_timed=True, pace=NEVER)
    assert len(run.wait(60).token_ids) == 6


def test_the_delay_is_not_in_the_histogram_of_run_times(backend: Callable[..., Backend]) -> None:
    bench = backend()
    run = bench.start(PROMPT, "autoregressive", max_new_tokens=6, pace=NEVER)
    wait_until(lambda: rounds(run) == 1)
    stood = run.paused_s
    wait_until(lambda: run.paused_s > stood)
    run.cancel()
    wait_until(lambda: run.ended)
    assert run.ended_at is not None
    seconds = next(
        float(line.split()[1])
        for line in bench.metrics_text().splitlines()
        if line.startswith("workbench_run_seconds_sum")
    )
    assert seconds == pytest.approx(run.ended_at - run.created - run.paused_s)
    assert run.paused_s > stood


@pytest.mark.parametrize("wrong", [-1, float("nan"), 1e9, True, "8"])
def test_an_invalid_pace_is_refused(backend: Callable[..., Backend], wrong: object) -> None:
    with pytest.raises(ParameterError, match="tokens per second"):
        backend().start(PROMPT, "autoregressive", pace=wrong)  # type: ignore[arg-type]

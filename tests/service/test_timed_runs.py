"""A timed run has the device to itself; the other runs' paused time is not counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workbench.service import Backend, Run
from workbench.service.run import HELD_MESSAGE

from .conftest import PROMPT, rounds, wait_until


def watch(bench: Backend, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Return the list of the run of every round, in the engine's order."""
    order: list[Run] = []
    whole = bench.record_round

    def record_round(run: Run, record: Any) -> None:
        order.append(run)
        whole(run, record)

    monkeypatch.setattr(bench, "record_round", record_round)
    return order


def test_other_runs_pause_during_a_timed_run_and_continue_between_timed_runs(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = backend()
    order = watch(bench, monkeypatch)
    whole = bench.start(PROMPT, "autoregressive", max_new_tokens=110).wait(60).token_ids
    other = bench.start(PROMPT, "autoregressive", max_new_tokens=110, paused=True, user="other")
    wait_until(lambda: other.state == "paused")
    first_timed = bench.start(PROMPT, "draft-model", max_new_tokens=20, paused=True, is_timed=True)
    wait_until(lambda: first_timed.state == "paused")
    timed = [first_timed, bench.start(PROMPT, "draft-model", max_new_tokens=20, is_timed=True)]
    other.resume()
    wait_until(lambda: other.state == "running")
    first_timed.resume()
    traces = [run.wait(60) for run in timed]
    seconds = [trace.header.prefill_s + trace.footer.seconds for trace in traces]
    done = other.wait(60)
    first, second = ([i for i, run in enumerate(order) if run is one] for one in timed)
    assert first == list(range(first[0], first[-1] + 1)), "no other run had a round in between"
    assert second == list(range(second[0], second[-1] + 1))
    assert second[0] > first[-1] + 1, "the other run had its turn before the second"
    assert order[-1] is other
    assert done.token_ids == whole, "pausing does not change the text"
    [said] = [w for w in done.footer.warnings if "was suspended" in w]
    assert other.held_s >= sum(seconds)
    assert f"{other.held_s:.1f} s" in said
    assert not any("was suspended" in w for trace in traces for w in trace.footer.warnings)


def test_a_timed_run_does_not_wait_for_a_paused_one_and_its_cancel_releases_the_others(
    backend: Callable[..., Backend],
) -> None:
    bench = backend()
    paused = bench.start(PROMPT, "autoregressive", max_new_tokens=8, paused=True, user="paused")
    wait_until(lambda: paused.state == "paused")
    timed = bench.start(PROMPT, "autoregressive", max_new_tokens=100, paused=True, is_timed=True)
    wait_until(lambda: timed.state == "paused")
    later = bench.start(PROMPT, "autoregressive", max_new_tokens=4, user="later")
    paused.resume()
    wait_until(lambda: paused.message == HELD_MESSAGE)
    assert rounds(paused) == 0
    assert later.since(0)["queue"] == {"position": 1, "of": 1}
    timed.cancel()
    assert paused.wait(120).footer.reason == later.wait(30).footer.reason == "length"
    assert timed.state == "cancelled"


def test_a_dropped_run_is_removed_when_it_ends(backend: Callable[..., Backend]) -> None:
    bench = backend()
    run = bench.start(PROMPT, "autoregressive", max_new_tokens=2, is_timed=True)
    bench.drop_run(run)
    assert bench.run(run.id) is run, "a run in progress is not removed"
    run.wait(120)
    bench.drop_run(run)
    assert len(bench._runs) == 0

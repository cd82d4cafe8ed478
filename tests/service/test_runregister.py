"""Ended runs stay available for a limited time, number and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sizes import size_of

from workbench.core.errors import UnknownNameError
from workbench.service import Backend, Limits
from workbench.service.run import round_bytes
from workbench.trace.events import Round

from .conftest import PROMPT, wait_until


def run_to_end(bench: Backend, **options: Any) -> Any:
    run = bench.start(PROMPT, options.pop("method", "autoregressive"), **{"max_new_tokens": 3, **options})
    run.wait(120)
    return run


def is_known(bench: Backend, run: Any) -> bool:
    try:
        return bench.run(run.id) is run
    except UnknownNameError:
        return False


def test_an_ended_run_can_be_fetched_for_its_time_and_not_longer(backend: Callable[..., Backend]) -> None:
    bench = backend(limits=Limits(kept_s=1.5))
    run = run_to_end(bench)
    assert is_known(bench, run)
    assert bench.run(run.id).since(0)["seq"] == 3
    wait_until(lambda: not is_known(bench, run))
    assert len(bench._runs) == 0
    with pytest.raises(UnknownNameError, match="Start a new run"):
        bench.run(run.id)


def test_the_oldest_of_too_many_ended_runs_are_removed(backend: Callable[..., Backend]) -> None:
    bench = backend(limits=Limits(kept_runs=3))
    runs = [run_to_end(bench) for _ in range(5)]
    wait_until(lambda: len(bench._runs) == 3)
    assert [is_known(bench, run) for run in runs] == [False, False, True, True, True]


def test_traces_of_all_users_together_stay_within_the_memory_limit(backend: Callable[..., Backend]) -> None:
    bench = backend()
    one = run_to_end(bench, method="draft-model", max_new_tokens=8).trace_bytes
    small = backend(limits=Limits(trace_bytes=int(2.5 * one)))
    runs = [run_to_end(small, method="draft-model", max_new_tokens=8, user=f"user {i}") for i in range(6)]
    wait_until(lambda: small.health()["memory"]["traces"] <= 2.5 * one)
    assert [is_known(small, run) for run in runs] == [False] * 4 + [True] * 2


def test_a_trace_that_alone_exceeds_the_memory_limit_ends_its_run(backend: Callable[..., Backend]) -> None:
    bench = backend(limits=Limits(trace_bytes=100_000))
    run = bench.start(PROMPT, "draft-tree", {"nodes": 16}, max_new_tokens=110)
    other = bench.start(PROMPT, "autoregressive", max_new_tokens=3)
    wait_until(lambda: run.ended)
    assert run.state == "cancelled"
    assert "smaller tree or fewer tokens" in run.message
    assert other.wait(120).footer.reason == "length"


@pytest.mark.parametrize(
    ("method", "params"), [("autoregressive", {}), ("draft-model", {"depth": 4}), ("draft-tree", {"nodes": 30})]
)
def test_the_estimated_size_of_a_trace_is_accurate(
    backend: Callable[..., Backend], method: str, params: dict[str, Any]
) -> None:
    recorded: list[Round] = run_to_end(backend(), method=method, params=params, max_new_tokens=25).trace.rounds
    seen: set[int] = set()
    real, about = sum(size_of(r, seen) for r in recorded), sum(map(round_bytes, recorded))
    assert 0.8 < about / real < 1.25

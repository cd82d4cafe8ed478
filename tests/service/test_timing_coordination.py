"""While a run is timed, no model is built and no run explained."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from workbench.service import Backend, run_control
from workbench.service.timing_coordination import TimingCoordinator

from .conftest import PROMPT, wait_until


def start_side_work(turns: TimingCoordinator, leave: threading.Event) -> threading.Event:
    """Do work outside of rounds in a thread until `leave` is set; return an event that is set when it has started."""
    inside = threading.Event()

    def work() -> None:
        with turns.exclude_timed_runs():
            inside.set()
            leave.wait(120)

    threading.Thread(target=work, daemon=True).start()
    return inside


def test_a_timed_run_waits_for_work_under_way_and_keeps_new_work_out() -> None:
    woken: list[int] = []
    turns, first, second = TimingCoordinator(lambda: woken.append(1)), threading.Event(), threading.Event()
    assert start_side_work(turns, first).wait(120)
    assert not turns.request_device(), "a model is being built"
    late = start_side_work(turns, second)
    wait_until(lambda: turns._waiting == 1)
    assert not late.is_set()
    first.set()
    wait_until(lambda: bool(woken))
    assert turns.request_device(), "the earlier work has ended"
    assert not late.is_set(), "the timed run has the device"
    turns.release_device()
    assert late.wait(120)
    assert not turns.request_device(), "work that waited goes before the next timed run"
    second.set()
    wait_until(lambda: turns._working == 0)
    assert turns.request_device()


def test_waiting_work_runs_before_the_next_timed_run() -> None:
    """Even if that run requests the device when it is released, before the waiting thread has woken up."""
    turns, leave = TimingCoordinator(), threading.Event()
    assert turns.request_device()
    late = start_side_work(turns, leave)
    wait_until(lambda: turns._waiting == 1)
    with turns._changed:  # blocks the other threads until its end
        turns.release_device()
        assert not turns.request_device()
    assert late.wait(120)
    leave.set()


@pytest.fixture
def bench(backend: Callable[..., Backend]) -> Backend:
    made = backend()
    made.load()
    return made


def test_a_model_is_built_before_or_after_a_timed_run_never_during_it(
    bench: Backend, folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    pool = bench._pool
    build = pool._build_drafter
    bench.unload(folders[0])
    bench.load(drafter="none")
    timed = bench.start(PROMPT, "autoregressive", drafter="none", max_new_tokens=60, paused=True, is_timed=True)
    wait_until(lambda: timed.state == "paused")

    def building(*given: Any) -> Any:
        seen.append(timed.ended)
        return build(*given)

    monkeypatch.setattr(pool, "_build_drafter", building)
    other = bench.start(PROMPT, "draft-model", max_new_tokens=4, user="other")
    wait_until(lambda: bench._timing._waiting == 1)
    assert not seen
    timed.resume()
    timed.wait(60)
    other.wait(60)
    assert seen == [True]


def test_a_run_is_explained_before_or_after_a_timed_run_and_reports_progress(
    bench: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.start(PROMPT, "autoregressive", max_new_tokens=4)
    run.wait(60)
    seen: list[tuple[bool, float | None]] = []

    def explain(
        models: Any, request: Any, trace: Any, drafter: Any, on_progress: Callable[[float], None]
    ) -> dict[str, Any]:
        seen.append((timed.ended, run.explain_progress))
        on_progress(0.5)
        seen.append((timed.ended, run.explain_progress))
        return {}

    monkeypatch.setattr(run_control, "explain", explain)
    monkeypatch.setattr(run.request, "image_inputs", {})
    timed = bench.start(PROMPT, "autoregressive", max_new_tokens=60, paused=True, is_timed=True)
    wait_until(lambda: timed.state == "paused")
    asking = threading.Thread(target=run.explain, daemon=True)
    asking.start()
    wait_until(lambda: bench._timing._waiting == 1)
    assert not seen
    assert run.explain_progress == 0.0
    timed.resume()
    timed.wait(60)
    asking.join(30)
    assert seen == [(True, 0.0), (True, 0.5)]
    assert run.explain_progress is None


def test_a_timed_run_cancelled_before_its_turn_releases_the_waiting_work(bench: Backend) -> None:
    leave, done = threading.Event(), threading.Event()
    assert start_side_work(bench._timing, leave).wait(120)
    timed = bench.start(PROMPT, "autoregressive", max_new_tokens=4, is_timed=True)
    wait_until(lambda: bench._timing._timed)
    timed.cancel()
    done.set()
    assert start_side_work(bench._timing, done).wait(120), "no run requests the device any more"
    leave.set()

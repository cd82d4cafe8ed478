"""Logs of a training run: raw losses, figures at checkpoints, and a checkpoint at a requested stop."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from workbench.core.errors import ParameterError, WorkbenchError
from workbench.trace.curves import read_curves
from workbench.training import monitor
from workbench.training.clock import RunClock
from workbench.training.loop import LoopOptions, RunResult, run_loop
from workbench.training.monitor import TrainingMonitor
from workbench.training.stopping import StoppedError


def loop(folder: Path, steps: int, **more: Any) -> LoopOptions:
    checkpoint = folder / "run.pt"
    return LoopOptions("toy", RunClock(None, steps), checkpoint, True, 0.0, curves=folder / "curves", **more)


def train(options: LoopOptions, stop_at: int = 0) -> RunResult:
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"params": layer.parameters(), "peak": 0.1}], lr=0.1)

    def step(number: int) -> tuple[int, dict[str, float]]:
        layer(torch.ones(1, 1)).sum().backward()
        if number + 1 == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return 1, {"head 1": float(number)}

    def measure(result: RunResult) -> str:
        result.held = {"agreement 1": result.steps / 10, "agreement 2": 0.0}
        return ""

    return run_loop(options, layer, [optimizer], step, lambda _: None, measure)


def test_a_run_logs_raw_losses_and_the_figures_of_each_checkpoint(tmp_path: Path) -> None:
    train(loop(tmp_path, 3, on_policy=lambda: {"on-policy/tau": 2.0}))
    curves = read_curves(tmp_path / "curves")
    assert curves["loss/head 1"] == [(1, 0.0), (2, 1.0), (3, 2.0)], "not smoothed"
    assert curves["on-policy/tau"][-1] == (3, 2.0)
    assert [round(value, 3) for step, value in curves["teacher-forced/position 1"] if step == 3][-1] == 0.3
    assert "teacher-forced/position 2" in curves
    assert "seconds/evaluating" in curves


def test_the_drafting_time_before_a_stop_counts_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    monkeypatch.setattr(RunClock, "pause", lambda _: nullcontext())
    for steps in (2, 4):
        train(loop(tmp_path, steps, on_policy=lambda: {"on-policy/tau": 2.0}))
    spent = [value for _, value in read_curves(tmp_path / "curves")["seconds/evaluating"]]
    assert spent == sorted(spent)
    assert spent[-1] == len(spent), "one second each, including those before the stop"


def test_a_nan_loss_ends_a_run_before_the_weights_change(tmp_path: Path) -> None:
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"params": layer.parameters(), "peak": 0.1}], lr=0.1)

    def step(number: int) -> tuple[int, dict[str, float]]:
        (layer(torch.ones(1, 1)).sum() * (float("nan") if number == 2 else 1.0)).backward()
        return 1, {"head 1": 1.0, "head 2": float("nan") if number == 2 else 1.0}

    with pytest.raises(WorkbenchError, match="toy: head 2 is infinite or NaN at step 3") as ended:
        run_loop(loop(tmp_path, 5), layer, [optimizer], step, lambda _: None)
    assert "matrix_rate" in ended.value.remedy
    assert bool(torch.isfinite(layer.weight).all())
    assert torch.load(tmp_path / "run.pt", weights_only=True)["steps"] == 2


@pytest.mark.parametrize("damage", [b"", b"no checkpoint", None])
def test_a_damaged_checkpoint_is_reported_and_not_overwritten(tmp_path: Path, damage: bytes | None) -> None:
    train(loop(tmp_path, 2))
    kept = tmp_path / "run.pt"
    kept.write_bytes(kept.read_bytes()[: kept.stat().st_size // 2] if damage is None else damage)
    before = kept.read_bytes()
    with pytest.raises(ParameterError, match=r"run\.pt is damaged: it cannot be read") as refused:
        train(loop(tmp_path, 4))
    assert "resume=false" in refused.value.remedy
    assert kept.read_bytes() == before


def test_a_stopped_run_saves_its_step_and_resumes_there(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedError, match="step 2"):
        train(replace(loop(tmp_path, 5), every_seconds=1e9), stop_at=2)
    assert signal.getsignal(signal.SIGTERM) is before
    assert train(loop(tmp_path, 5)).steps == 5
    assert [step for step, _ in read_curves(tmp_path / "curves")["loss/head 1"]] == [1, 2, 3, 4, 5]


def test_on_policy_drafting_does_not_count_towards_the_time_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def draft() -> dict[str, float]:
        now[0] += 50
        return {}

    options = replace(loop(tmp_path, 5, on_policy=draft), clock=RunClock(None, 5, 0.0, 0.0))
    now[0] += 7
    watch = TrainingMonitor.of(options.name, options.clock, options.curves, options.on_policy, 0)
    watch.record_evaluation(1, {}, lambda _: None)
    assert (options.clock.seconds, watch.evaluation_seconds) == (7, 50)


def test_missing_tensorboardx_is_reported_before_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(WorkbenchError, match="not installed"):
        train(loop(tmp_path, 1))


def test_a_run_without_a_checkpoint_does_not_handle_sigterm(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        train(replace(loop(tmp_path, 4), checkpoint=None), stop_at=2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM], "the earlier handler gets the signal, because there is no checkpoint to save"


def test_a_checkpoint_measures_the_saved_weights_and_each_step_once(tmp_path: Path) -> None:
    saved: list[int] = []
    options = replace(loop(tmp_path, 3), on_policy=lambda: {"on-policy/tau": float(saved[-1])})
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"params": layer.parameters(), "peak": 0.1}], lr=0.1)

    def step(number: int) -> tuple[int, dict[str, float]]:
        layer(torch.ones(1, 1)).sum().backward()
        return 1, {"head 1": 0.0}

    def keep(result: RunResult) -> str:
        saved.append(result.steps)
        return ""

    run_loop(options, layer, [optimizer], step, lambda _: None, keep)
    assert read_curves(tmp_path / "curves")["on-policy/tau"] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert saved == [1, 2, 3], "the last step is saved once, although the run ends there"
    late = replace(options, every_seconds=1e9, checkpoint=tmp_path / "late.pt", curves=tmp_path / "late")
    run_loop(replace(late, clock=RunClock(None, 3)), layer, [optimizer], step, lambda _: None, keep)
    assert read_curves(tmp_path / "late")["on-policy/tau"] == [(3, 3.0)], "the final weights are measured"


def test_a_resumed_run_has_the_remaining_time(tmp_path: Path) -> None:
    train(loop(tmp_path, 2))
    kept = torch.load(tmp_path / "run.pt", weights_only=True)
    assert kept["seconds"] > 0
    torch.save(kept | {"seconds": 59.9}, tmp_path / "run.pt")
    options = replace(loop(tmp_path, 2), clock=RunClock(1.0, None))
    assert train(options).seconds >= 60
    assert options.clock.earlier_seconds == 59.9


def test_the_learning_rate_decays_and_gradients_are_clipped_as_configured(tmp_path: Path) -> None:
    layer, rates, moved = nn.Linear(1, 1, bias=False), list[float](), list[float]()
    optimizer = torch.optim.SGD([{"params": layer.parameters(), "peak": 0.1}], lr=0.1)

    def step(number: int) -> tuple[int, dict[str, float]]:
        rates.append(optimizer.param_groups[0]["lr"])
        moved.append(float(layer.weight.detach()))
        (1000 * layer(torch.ones(1, 1))).sum().backward()
        return 1, {}

    run_loop(
        replace(loop(tmp_path, 20), decay=0.8, clip=0.5, checkpoint=None), layer, [optimizer], step, lambda _: None
    )
    assert rates[10] < 0.8 * max(rates), "the rate decays during four fifths of the run"
    steps = [abs(a - b) for a, b in pairwise(moved)]
    assert all(step <= 0.5 * rate * 1.001 for step, rate in zip(steps, rates, strict=False))
    assert max(steps) > 0

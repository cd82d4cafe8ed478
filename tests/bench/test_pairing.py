"""Background pairs of runs: interleaved, alone on the device, stopped by a rule, and interrupted by other runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from workbench import Workbench
from workbench.bench import backend_run, retried_action
from workbench.bench.pairing import LONGEST_S, MAX_PAIRS, Pairs, TimedPair, TimedRun, measure_pairs, stop_reason
from workbench.core.errors import CapacityError, WorkbenchError
from workbench.trace.events import ABORT_REASONS, Footer, Round
from workbench.trace.nodes import Nodes
from workbench.trace.tokens import EmittedToken


class FakeRun:
    """A run that ends at the second poll, unless it is cancelled first."""

    def __init__(self, seconds: float, n: int) -> None:
        self.looks, self.cancelled, self.background = 0, False, False
        self.state, self.message, self.seconds, self.n, self.reason = "running", "", seconds, n, "length"

    @property
    def ended(self) -> bool:
        return self.cancelled or self.looks > 1

    def wait(self, timeout: float | None = None) -> Any:
        self.looks += 1
        if timeout is not None:
            raise TimeoutError
        reason = "cancelled" if self.cancelled else self.reason
        nodes = Nodes([], [], [], [], [], [], [], [], [], [], [])
        emitted = [EmittedToken(1, "a", i, i + 1, "plain", None, i, 0.5) for i in range(self.n)]
        return _Trace([Round(0, "m", {}, nodes, [], 1, "plain", emitted, seconds=self.seconds)], Footer(reason))

    def cancel(self) -> None:
        self.cancelled = self.cancelled or not self.ended


@dataclass
class _Trace:
    rounds: list[Round]
    footer: Footer


class Device:
    """A backend whose runs take `seconds(method, number)`."""

    def __init__(self, seconds: Callable[[str, int], float]) -> None:
        self.seconds, self.started, self.is_timed = seconds, [], []
        self.busy: list[bool] = []
        self.forgotten, self.reason = 0, "length"

    def start(self, prompt: Any, method: str, *, is_timed: bool, max_new_tokens: int, **asked: Any) -> FakeRun:
        self.is_timed.append(is_timed)
        self.started.append((method, asked["params"], max_new_tokens))
        n = sum(m == method for m, _, _ in self.started)
        made = FakeRun(self.seconds(method, n), max_new_tokens)
        made.reason = self.reason
        return made

    def drop_run(self, run: Any) -> None:
        self.forgotten += 1

    def has_other_runs(self, excluding: Any = None) -> bool:
        return self.busy.pop(0) if self.busy else False


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_run, "POLL_S", 0)


def collect_pairs(device: Device, **more: Any) -> list[Pairs]:
    asked = {"params": {"depth": 3, "temperature": 0.5}, "max_new_tokens": 30} | more
    return list(measure_pairs(device, "Once", "draft-model", **asked))


def test_runs_are_interleaved_and_differ_only_in_the_method() -> None:
    device = Device(lambda method, n: (1.0 if method == "draft-model" else 2.0) * (1 + 0.01 * n))
    last = collect_pairs(device)[-1]
    warm, timed = device.started[:2], device.started[2:]
    assert [n for _, _, n in warm] == [24, 24]
    assert [method for method, _, _ in timed[:4]] == ["draft-model", "autoregressive", "autoregressive", "draft-model"]
    assert {str(params) for method, params, _ in timed if method == "autoregressive"} == {"{'temperature': 0.5}"}
    assert all(device.is_timed)
    assert device.forgotten == len(device.started)
    assert last.ended == "the speed-up's interval lies entirely on one side of 1×"
    assert last.estimate is not None
    assert last.estimate.verdict == "faster"


def test_other_runs_have_priority_and_the_interrupted_pair_is_repeated() -> None:
    """The plain run of the second pair is interrupted: neither of that pair's runs counts."""
    device = Device(lambda method, n: 1.0 if method == "draft-model" else 2.0)
    updates: list[Pairs] = []
    interrupted, last = False, Pairs()
    for news in measure_pairs(device, "Once", "draft-model", {}, max_new_tokens=30):
        if len(news.ratios) == 1 and not interrupted:
            interrupted = True
            device.busy = [False, True, True, True, False]  # free, taken while it runs, waits twice, free again
        updates += [news] if news.waiting else []
        last = news
    assert updates
    assert updates[0].text == "waiting: another run is using the device"
    assert last.ratios == (2.0,) * len(last.ratios)
    plain = sum(method == "autoregressive" for method, _, _ in device.started)
    assert plain == len(last.ratios) + 2, "one run to warm up, one interrupted"


def test_the_typical_pair_is_the_one_closest_to_the_estimate() -> None:
    def timed(rate: float) -> TimedRun:
        return TimedRun(rate, 1.0, (1 / rate, 2 / rate))

    pairs = Pairs(tuple(TimedPair(timed(10 * ratio), timed(10.0)) for ratio in (1.0, 1.9, 4.0)))
    assert pairs.typical is pairs.pairs[1]
    assert pairs.to_wire()["typical"] == {
        "method": {"rate": 19.0, "ends": [1 / 19, 2 / 19]},
        "plain": {"rate": 10.0, "ends": [0.1, 0.2]},
    }
    assert Pairs().typical is None
    device = Device(lambda method, n: 1.0 if method == "draft-model" else 2.0)
    *_, last = measure_pairs(device, "Once", "draft-model", {}, max_new_tokens=30)
    assert last.typical is not None
    assert last.typical.ratio == pytest.approx(last.typical.plain.ends[-1] / last.typical.method.ends[-1])


def test_a_stop_keeps_the_measured_pairs() -> None:
    device = Device(lambda method, n: 1.0 + 0.3 * (n % 2) * (method == "draft-model"))
    seen = [Pairs()]
    for news in measure_pairs(device, "Once", "draft-model", {}, stopped=lambda: len(seen[-1].ratios) == 2):
        seen[-1] = news
    assert (len(seen[-1].ratios), seen[-1].ended) == (2, "stopped")


@pytest.mark.parametrize("reason", ABORT_REASONS)
def test_a_stopped_run_does_not_count(reason: str) -> None:
    device = Device(lambda method, n: 1.0)
    device.reason = reason
    with pytest.raises(WorkbenchError, match="cancelled"):
        collect_pairs(device)
    assert (len(device.started), device.forgotten) == (1, 1)


def test_stopping_rule_of_paired_measurement() -> None:
    assert stop_reason([2.0, 2.0], 0) == ""
    assert "one side" in stop_reason([2.0, 2.1, 2.05], 0)
    assert stop_reason([1.0, 1.01, 0.99, 1.0], 0) == "the speed-up is known to ±5%"
    scattered = [0.5, 2.0] * (MAX_PAIRS // 2)
    assert stop_reason(scattered[:-1], 0) == ""
    assert stop_reason(scattered, 0) == f"{MAX_PAIRS} pairs"
    assert stop_reason(scattered[:4], 61) == "60 s of measuring"


def test_testing_after_every_pair_does_not_inflate_false_differences() -> None:
    """Seeded: two equal programs, 400 times. With 95 % at each look, 14 % of the measurements would differ."""
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(400):
        ratios = np.exp(rng.normal(0, 0.3, MAX_PAIRS))
        ends = (stop_reason(ratios[:n].tolist(), 0) for n in range(3, MAX_PAIRS + 1))
        alarms += next(why for why in ends if why).endswith("side of 1×")
    assert alarms / 400 <= 0.06


def test_the_backend_measures_pairs_and_other_runs_have_priority() -> None:
    with Workbench(device="cpu") as bench:
        backend = bench._backend
        pairs: Any = bench.stream_pairs("Once upon a time", "draft-model", {"depth": 3}, max_new_tokens=8)
        news = next(news for news in pairs if news.ratios)
        assert news.estimate is not None
        own = [run for run in backend._runs.active() if run.background]
        other = bench.start("The fox", "autoregressive", max_new_tokens=400)
        assert backend.has_other_runs()
        waits = next(news for news in pairs if news.waiting)
        assert len(waits.ratios) >= 1
        assert all(run.ended for run in own)
        other.pause()
        until = time.monotonic() + 60
        while backend.has_other_runs():
            assert time.monotonic() < until
        assert next(news for news in pairs if len(news.ratios) > len(waits.ratios)), (
            "a paused run does not block the pairs"
        )
        pairs.close()
        assert not [run for run in backend._runs.active() if run.background]
        other.cancel()


class Clock:
    """Stands in for the module `time`: seconds pass only in a sleep or while a run is awaited."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(backend_run, "POLL_S", 0.2)
    monkeypatch.setattr(backend_run, "time", clock)
    monkeypatch.setattr(retried_action, "time", clock)
    return clock


class ThrottledDevice(Device):
    """A backend that refuses runs for `owes_s` seconds after the warm-up (token limit); each run takes two seconds."""

    def __init__(self, seconds: Callable[[str, int], float], clock: Clock, owes_s: int) -> None:
        super().__init__(seconds)
        self.clock, self.owes_s, self.asked_at = clock, owes_s, list[float]()
        self.until = 0.0

    def start(self, prompt: Any, method: str, **asked: Any) -> FakeRun:
        self.asked_at.append(self.clock.now)
        if len(self.started) == 2 and not self.until:
            self.until = self.clock.now + self.owes_s
        if self.clock.now < self.until:
            raise CapacityError("Tokens are owed.", "Later.", self.owes_s)
        made, wait, clock = super().start(prompt, method, **asked), FakeRun.wait, self.clock

        def slowly(timeout: float | None = None) -> Any:
            clock.now += timeout is not None
            return wait(made, timeout)

        made.wait = slowly  # type: ignore[method-assign]
        return made


def test_waiting_for_the_token_limit_does_not_count_and_is_not_retried_early(clock: Clock) -> None:
    device = ThrottledDevice(lambda method, n: 1.0 if (method == "draft-model") == (n % 2) else 1.4, clock, owes_s=57)
    updates = collect_pairs(device)
    waits = [p.text for p in updates if p.waiting]
    assert set(waits) == {"waiting: Tokens are owed."}
    assert len(waits) > 200, "the measurement can be stopped at any time"
    at, again = device.asked_at[2:4]
    assert 57 <= again - at < 58
    assert len(device.asked_at) == len(device.started) + 1
    assert clock.now > LONGEST_S
    assert (updates[-1].ended, len(updates[-1].ratios)) == (f"{MAX_PAIRS} pairs", MAX_PAIRS)


def test_a_stop_takes_effect_while_waiting_for_the_limit(clock: Clock) -> None:
    device = ThrottledDevice(lambda method, n: 1.0, clock, owes_s=57)
    assert collect_pairs(device, stopped=lambda: clock.now > 10)[-1].ended == "stopped"
    assert clock.now < 11


def test_a_run_that_starts_during_the_wait_has_priority(clock: Clock) -> None:
    device = ThrottledDevice(lambda method, n: 1.0 if method == "draft-model" else 2.0, clock, owes_s=2)
    updates: list[str] = []
    for news in measure_pairs(device, "Once", "draft-model", {}, max_new_tokens=30):
        if news.waiting and not device.busy and "another run is using the device" not in updates:
            device.busy = [True, True]
        updates += [news.text.removeprefix("waiting: ")] if news.waiting else []
        if "another run" in news.text:
            assert len(device.started) == 2, "no pair starts during the other run"
    assert "another run is using the device" in updates

"""Rate limits per address and minute, with a simulated clock, and runs that exceed the time limit."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.bench import backend_run, compare, retried_action, worker_groups
from workbench.bench.grid import Sweep
from workbench.bench.worker_groups import END, measure_cell
from workbench.client.wire import error_from_wire, error_to_wire
from workbench.core.errors import CapacityError
from workbench.service import Backend, Limits
from workbench.service.rate_limiter import MANY, RateLimiter
from workbench.service.runregister import RunRegister
from workbench.service.users import LOCAL, user_key

from .conftest import PROMPT, wait_until

ONE, OTHER = "203.0.113.7", "198.51.100.9"


class Clock:
    """A clock that the test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    monotonic = __call__
    """The clock stands in for the module `time`, too."""

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def let_in(meter: RateLimiter, address: str, n: int) -> int:
    """Return how many of `n` requests, each with another user name, are accepted."""
    count = 0
    for i in range(n):
        try:
            meter.admit_request(user_key(address, f"made up {i}"))
        except CapacityError:
            continue
        count += 1
    return count


def test_requests_per_minute_are_limited_per_address_for_any_user_names() -> None:
    clock = Clock()
    meter = RateLimiter(Limits(requests_per_minute=30), clock)
    assert let_in(meter, ONE, 40) == 30
    assert let_in(meter, OTHER, 1) == 1
    with pytest.raises(CapacityError, match=r"30 requests per minute.* Try again in 2 s") as refused:
        meter.admit_request(user_key(ONE))
    assert refused.value.retry_after_s == 2
    clock.now = 2.0
    assert let_in(meter, ONE, 40) == 1  # the stated waiting time was right
    clock.now = 1000.0
    assert let_in(meter, ONE, 40) == 30  # unused requests accumulate for at most a minute
    assert sum(meter.admit_request(LOCAL) is None for _ in range(99)) == 99


def test_tokens_are_charged_in_advance_and_debts_are_waited_for() -> None:
    clock = Clock()
    meter = RateLimiter(Limits(tokens_per_minute=60), clock)
    meter.admit_request(ONE)
    meter.charge(ONE, 100)  # one request may be larger than a minute's worth
    with pytest.raises(CapacityError, match="60 tokens per minute") as refused:
        meter.admit_request(ONE)
    assert refused.value.retry_after_s == 40
    meter.charge(ONE, -70)
    meter.admit_request(ONE)


def test_timed_runs_do_not_count_as_requests_and_wait_until_the_token_debt_is_paid() -> None:
    register = RunRegister(Limits(requests_per_minute=1, tokens_per_minute=1000))
    runs: list[Any] = [
        SimpleNamespace(user=user_key(ONE), is_timed=True, id=str(i), ended=True, charged_tokens=0) for i in range(4)
    ]
    for run in runs[:2]:
        register.add(run, 600)  # two runs of one comparison
    with pytest.raises(CapacityError, match="1,000 tokens per minute"):
        register.add(runs[2], 600)


def test_a_comparison_waits_for_the_token_limit_between_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, begun = Clock(), list[float]()
    monkeypatch.setattr(retried_action, "time", clock)
    monkeypatch.setattr(backend_run, "time", clock)

    class Owing:
        """A backend whose second run is refused twice, and whose next one fails."""

        def start(self, *_: Any, **__: Any) -> Any:
            begun.append(clock.now)
            if len(begun) > 1:
                raise CapacityError("Tokens are owed.", "", 2) if len(begun) < 4 else CapacityError("It never fits.")
            trace = SimpleNamespace(footer=SimpleNamespace(reason="tokens"))
            return SimpleNamespace(ended=True, wait=lambda *_: trace, cancel=lambda: None)

        def drop_run(self, run: Any) -> None:
            """Do nothing: no run is stored."""

    steps = list(compare.measure(Owing(), "x", ["autoregressive", "draft-model"], repeats=1))  # type: ignore[arg-type]
    assert {step.waiting for step in steps} == {"", "waiting: Tokens are owed."}
    assert sum(step.waiting != "" for step in steps) > 10, "the comparison can be stopped at any time"
    assert begun[:4] == [0, 0, pytest.approx(2, abs=0.3), pytest.approx(4, abs=0.5)], (
        "runs are not retried before the stated time"
    )


def test_a_sweep_retries_after_the_stated_time_and_can_be_stopped_while_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, asked = Clock(), list[float]()
    monkeypatch.setattr(retried_action, "time", clock)
    monkeypatch.setattr(worker_groups, "time", clock)

    class Owing:
        """A backend that refuses comparisons for 57 s."""

        def stream_comparison(self, prompts: Any, lanes: Any, **options: Any) -> Any:
            asked.append(clock.now)
            if clock.now < 57:
                raise CapacityError("Tokens are owed.", "", 57)
            return iter(["begun"])

        def conditions(self, lane: Any, target: str | None = None) -> None:
            """Not used in this test."""

    cell = Sweep.of({"depth": [1]}, prompts=(PROMPT,)).cells()[0]
    said = list(worker_groups._steps_when_admitted(Owing(), cell, lambda: False, "a"))
    assert asked == [0, pytest.approx(57, abs=0.5)]
    assert (said[0], said[-1], len(said) > 100) == ("waiting: Tokens are owed.", "begun", True)
    clock.now = 0.0
    assert len(list(worker_groups._steps_when_admitted(Owing(), cell, lambda: clock.now > 1, "a"))) < 10


def test_addresses_without_debts_are_removed() -> None:
    clock = Clock()
    meter = RateLimiter(Limits(requests_per_minute=60, tokens_per_minute=60), clock)
    for i in range(3 * MANY):
        clock.now += 0.01
        meter.admit_request(f"address{i}")
    assert len(meter._buckets) <= MANY + 202, "plus the addresses of one second"
    meter = RateLimiter(Limits(requests_per_minute=1), clock)
    for i in range(MANY + 2):
        meter.admit_request(f"address{i}")
    with pytest.raises(CapacityError):  # an address with a debt is not removed, so the limit still holds
        meter.admit_request("address0")


def test_the_cost_of_a_request_does_not_grow_with_the_number_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = Clock(), list[float]()
    meter = RateLimiter(Limits(requests_per_minute=1), clock)
    monkeypatch.setattr(meter, "_drop_full", looks.append)
    for clock.now, n in ((5.0, MANY + 300), (5.9, 300), (6.0, 300)):
        for i in range(n):
            meter.admit_request(f"address {round(10 * clock.now)} {i}")
    assert looks == [5.0, 6.0]


def test_the_retry_time_is_sent_to_clients() -> None:
    error = error_from_wire(error_to_wire(CapacityError("Too many.", "Later.", 7)))
    assert isinstance(error, CapacityError)
    assert (error.retry_after_s, str(error)) == (7, "Too many. Later.")
    assert "retry_after_s" not in error_to_wire(CapacityError("Too many."))


def test_unused_tokens_of_a_run_are_refunded(backend: Callable[..., Backend]) -> None:
    bench = backend(limits=Limits(tokens_per_minute=100))
    bench.load()
    level = lambda: bench._runs.rate_limiter._bucket("a", "tokens").level  # type: ignore[union-attr]  # noqa: E731
    bench._runs.rate_limiter._clock = Clock()
    bench._runs.rate_limiter.charge("a", 0)
    run = bench.start(PROMPT, "autoregressive", user="a", max_new_tokens=90, paused=True)
    assert level() == 100 - 90 - len(PROMPT)
    run.step()
    wait_until(lambda: run.trace is not None and len(run.trace.rounds) == 1)
    run.cancel()
    wait_until(lambda: run.ended and not run.charged_tokens)
    assert level() == 100 - len(PROMPT) - len(run.trace.token_ids)  # type: ignore[union-attr]
    with pytest.raises(Exception, match=r"."):
        bench.start("", "autoregressive", user="a")
    assert bench.start(PROMPT, "autoregressive", user="a", max_new_tokens=99).wait(120).footer.reason == "length"
    with pytest.raises(CapacityError, match="tokens per minute"):
        bench.start(PROMPT, "autoregressive", user="a", max_new_tokens=1)
    assert bench.start(PROMPT, "autoregressive", user="b", max_new_tokens=2).wait(120)


def test_a_comparison_is_one_request_and_a_sweep_waits_for_the_next_minute(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = backend(limits=Limits(requests_per_minute=1))
    clock = bench._runs.rate_limiter._clock = Clock()
    monkeypatch.setattr(retried_action, "time", clock)
    cells = Sweep.of(
        {"method": ["prompt-lookup", "early-exit"]}, prompts=(PROMPT,), max_new_tokens=4, repeats=1
    ).cells()
    events: list[Any] = []
    for cell in cells[:2]:
        for event in measure_cell(bench, cell, lambda: False, "a"):
            events.append(event)
            if "requests per minute" in getattr(event[2], "text", ""):
                clock.now += 60
    ends = [event[2][0] for event in events if event[0] == END]
    assert [end.state for end in ends] == ["done", "done"]
    assert any("waiting" in getattr(event[2], "text", "") for event in events)


def test_a_run_that_takes_too_long_is_ended_with_the_reason(backend: Callable[..., Backend]) -> None:
    bench = backend(limits=Limits(run_s=3600))
    run = bench.start(PROMPT, "autoregressive", user="a", max_new_tokens=4, paused=True)
    wait_until(lambda: run.sequence is not None)
    assert not run.ended
    run.created -= 3601  # as if started 3,601 s ago
    wait_until(lambda: run.ended)
    assert run.trace is not None
    assert (run.state, run.trace.footer.reason) == ("cancelled", "limit")
    assert "longer than this server's time limit of 3600 s" in run.message

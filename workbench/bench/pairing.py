"""Measure a method's speed-up by pairs of background runs (method and plain decoding) until it is conclusive.

One pair of runs is not conclusive. Here both runs are repeated, each alone on the device, with the same prompt, seed
and settings, in changing order: a `Study` whose next run depends on the results so far. After each pair the interval is
reported. The measurement ends when the interval is conclusive. Other users' runs have priority: they interrupt the
current pair, which starts again when the device is free.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Any, Protocol, runtime_checkable

from workbench.bench.backend_run import WARM_UP_TOKENS, BackendRun, StopError
from workbench.bench.backend_run import RunBackend as Hosting
from workbench.bench.lanes import BASELINE
from workbench.bench.study import BEGIN, STEP, Run, Study, in_turn, interleaved_runs, rotate
from workbench.core.params import params_of
from workbench.core.sampling import SamplingParams
from workbench.trace.metrics import tokens_per_second
from workbench.trace.speedup import Estimate, estimate

MAX_PAIRS, LONGEST_S, MAX_HALF_WIDTH = 12, 60.0, 0.05
"""Stopping limits: number of pairs of runs, seconds of measuring, relative half-width of the speed-up's interval."""
MIN_PAIRS = 3
"""Smallest number of pairs of runs before the interval of the speed-up can end the measurement."""
STOPPING_CONFIDENCE = 0.99
"""Confidence of the speed-up's interval in the check after each pair of runs.

The measurement ends when this interval excludes 1. With up to twelve checks at 95 %, a wrong conclusion would be far
more frequent than one in twenty. With 99 % per check, it is about one in twenty in total.

Source: Pocock 1977, doi:10.1093/biomet/64.2.191, table 1.
"""


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Times of one run of the method or of plain decoding.

    Attributes:
        rate: tokens per second.
        seconds: duration of the run, without waiting for the device or the models.
        ends: end of each round, in seconds after the prefill.
    """

    rate: float
    seconds: float
    ends: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TimedPair:
    """A run with the method and one of plain decoding, with the same prompt and seed."""

    method: TimedRun
    plain: TimedRun

    @property
    def ratio(self) -> float:
        """Return the speed-up of the method over plain decoding in this pair of runs."""
        return self.method.rate / self.plain.rate

    def to_wire(self) -> dict[str, Any]:
        """Return the tokens per second and the end times of the rounds of both runs as plain JSON."""
        sides = {"method": self.method, "plain": self.plain}
        return {name: {"rate": run.rate, "ends": list(run.ends)} for name, run in sides.items()}


@runtime_checkable
class SharedBackend(Hosting, Protocol):
    """Protocol of a backend that reports whether other users' runs are active."""

    def has_other_runs(self, excluding: Any = None) -> bool:
        """Return whether another user's run is active; the run `excluding` and background measurements do not count."""
        ...


@dataclass(frozen=True, slots=True)
class Pairs:
    """Progress of a measurement by pairs of runs, one with the method and one of plain decoding.

    Attributes:
        pairs: finished pairs.
        text: current action, for display.
        waiting: whether the measurement waits: another run is using the device, or the user's rate limit is reached.
        ended: reason for the end of the measurement; empty before the end.
    """

    pairs: tuple[TimedPair, ...] = ()
    text: str = ""
    waiting: bool = False
    ended: str = ""

    @property
    def ratios(self) -> tuple[float, ...]:
        """Return the speed-up of each finished pair of runs."""
        return tuple(pair.ratio for pair in self.pairs)

    @property
    def typical(self) -> TimedPair | None:
        """Return the pair of runs whose speed-up is closest to that over all pairs; None before the first pair."""
        overall = self.estimate
        return overall and min(self.pairs, key=lambda pair: abs(log(pair.ratio / overall.value)))

    @property
    def estimate(self) -> Estimate | None:
        """Return the speed-up over all pairs of runs, which all have the same prompt; None before the first pair."""
        return estimate({0: self.ratios})

    def to_wire(self) -> dict[str, Any]:
        """Return the progress and the results of the pairs so far as plain JSON."""
        result, typical = self.estimate, self.typical
        return {
            "ratios": list(self.ratios), "estimate": result and result.to_wire(), "text": self.text, "most": MAX_PAIRS,
            "waiting": self.waiting, "ended": self.ended, "typical": typical and typical.to_wire(),
        }  # fmt: skip


def stop_reason(ratios: Sequence[float], seconds: float) -> str:
    """Return the reason why no further pair of runs is needed; empty if another pair is needed.

    Args:
        ratios: speed-ups of the pairs so far.
        seconds: time of measuring, without waiting.
    """
    strict = estimate({0: ratios}, STOPPING_CONFIDENCE) if len(ratios) >= MIN_PAIRS else None
    if strict is not None and strict.low is not None and strict.high is not None:
        if strict.low > 1 or strict.high < 1:
            return "the speed-up's interval lies entirely on one side of 1×"
        overall = estimate({0: ratios})
        if overall is not None and overall.high is not None and overall.high / overall.value <= 1 + MAX_HALF_WIDTH:
            return f"the speed-up is known to ±{MAX_HALF_WIDTH:.0%}"
    if len(ratios) >= MAX_PAIRS:
        return f"{MAX_PAIRS} pairs"
    return f"{LONGEST_S:.0f} s of measuring" if seconds >= LONGEST_S else ""


def measure_pairs(
    backend: SharedBackend,
    prompt: str | list[int],
    method: str,
    params: dict[str, Any],
    *,
    target: str | None = None,
    drafter: str | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    stop: Sequence[str] = (),
    images: Sequence[Any] = (),
    user: str = "local",
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Pairs]:
    """Measure a method's speed-up, pair by pair of runs. Closing the iterator ends the current run.

    Args:
        backend: backend that runs both sides.
        prompt: prompt of both runs.
        method: registry name of the method.
        params: parameters of the method and of sampling; the plain run uses only the sampling parameters.
        target: name of the target; by default the target of the backend.
        drafter: name of the method's draft model; by default the draft model that belongs to the target.
        max_new_tokens: length limit of every run.
        seed: seed of every run, so that all pairs generate the same texts.
        stop: strings that end a text.
        images: images of the prompt.
        user: opaque key of the user, for limits and for turns between users.
        stopped: function that is called often; after it returns True, the final result is yielded.

    Yields:
        the results so far; the last one contains the reason for the end.

    Raises:
        WorkbenchError: the backend refuses a run.
    """
    shared = {"target": target, "seed": seed, "stop": tuple(stop), "user": user}
    shared |= {"images": images} if images else {}
    sampling = {name: value for name, value in params.items() if name in params_of(SamplingParams())}
    sides = {
        "method": {"method": method, "params": params, "drafter": drafter, **shared},
        "plain": {"method": BASELINE, "params": sampling, **shared},
    }
    pairs: list[TimedPair] = []
    seconds, reason = 0.0, ""

    def choose_runs() -> Iterator[Run]:
        """Yield warm-up runs, then pairs of runs until the measurement can end; an interrupted pair starts again."""
        yield from interleaved_runs(list(sides), 0, 0, warm_up=1)
        for attempt in itertools.count():
            for side in rotate(list(sides), len(pairs)):
                if reason:
                    return
                yield (run := Run(side, 0, attempt))
                if study.results[run] is None:
                    break

    def measure(run: Run) -> Generator[tuple[str, bool], None, TimedRun | None]:
        """Do one run once the device is free; yield (reason for waiting, whether the run is not admitted yet).

        The result is the times of the run; None if another user's run interrupted it.
        """
        length = min(max_new_tokens, WARM_UP_TOKENS) if run.is_warm_up else max_new_tokens
        start = partial(backend.start, prompt, is_timed=True, max_new_tokens=length, **sides[run.contender])
        background = BackendRun(backend, start, stopped, backend.has_other_runs)
        with contextlib.closing(background.follow()) as reasons:
            for waits in reasons:
                yield waits, background.run is None
        trace = background.trace
        if trace is None:
            return None
        ends = tuple((record.started_s or 0.0) + record.seconds for record in trace.rounds)
        return TimedRun(tokens_per_second(trace.rounds) or 0.0, background.seconds, ends)

    study = Study[Run, "TimedRun | None"](choose_runs(), in_turn(measure))
    text = ""
    try:
        with contextlib.closing(study.run()) as events:
            for kind, run, payload in events:
                if kind == BEGIN:
                    text = "warming up" if run.is_warm_up else f"pair {len(pairs) + 1}"
                    yield Pairs(tuple(pairs), text)
                elif kind == STEP:
                    yield Pairs(tuple(pairs), payload[0] or text, payload[1])
                elif not run.is_warm_up:
                    pair = [study.results.get(replace(run, contender=side)) for side in ("method", "plain")]
                    if (method_run := pair[0]) is None or (plain_run := pair[1]) is None:
                        continue
                    if not (method_run.rate and plain_run.rate):
                        reason = "a run generated no tokens"
                        continue
                    pairs.append(TimedPair(method_run, plain_run))
                    seconds += method_run.seconds + plain_run.seconds
                    reason = stop_reason([pair.ratio for pair in pairs], seconds)
                    yield Pairs(tuple(pairs), text)
    except StopError:
        reason = "stopped"
    yield Pairs(tuple(pairs), "", False, reason)

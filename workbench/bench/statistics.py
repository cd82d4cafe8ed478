"""Estimators of metrics from runs (speed-up, τ, acceptance rate), shared by comparisons, sweeps, bench and claims.

Speeds are geometric means over equally weighted prompts. Speed-ups are geometric means of ratios within one prompt and
repeat, with Student's interval (`workbench.trace.speedup` explains why). Counts are quotients of totals over all runs
(`Totals`). Other metrics, one value per prompt, are means with the 95 % interval of scipy's percentile
bootstrap (Efron & Tibshirani 1993, §13.3) with a fixed seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.bench.sample import Sample
from workbench.trace.speedup import Estimate, estimate, group_by_prompt, pair_ratios, speedup

if TYPE_CHECKING:
    from workbench.bench.comparison import LaneRuns

CONFIDENCE, RESAMPLES, SEED = 0.95, 2000, 0
PARTS = ("draft", "verify", "overhead", "decode")
"""Names of the parts of the decoding time (end of prefill to last token); "decode" is the whole time."""

Rates = Mapping[tuple[Any, int], float]
"""Type of the speeds of runs: tokens per second by (prompt, repeat)."""
Interval = dict[str, Any]
"""Type of a metric with its 95 % interval as plain JSON: value, low and high (None for a single value), n."""


# -- speeds -----------------------------------------------------------------------------------------------------------


def rates(samples: Iterable[Sample], whole: bool = False) -> dict[tuple[int, int], float]:
    """Return tokens per second by (prompt, repeat), counted from the end of prefill; with `whole`, of whole calls."""
    return {(s.prompt, s.repeat): s.call_rate if whole else s.decode_rate for s in samples}


def saved_rates(runs: Iterable[Mapping[str, Any]], whole: bool = False) -> dict[tuple[Any, int], float]:
    """Return tokens per second by (prompt, repeat), as `rates` does, for the runs of a saved report."""
    return {
        (run.get("prompt", run.get("name")), run["repeat"]):
            run["tokens"] / (run["seconds"] if whole else run["decode_seconds"] or run["seconds"])
        for run in runs
    }  # fmt: skip


def average_rate(rates_by_run: Rates) -> Estimate | None:
    """Return the average tokens per second over runs; the ratio of two contenders' averages is the speed-up."""
    return estimate(group_by_prompt(rates_by_run))


def tau_of(samples: Iterable[Sample]) -> float | None:
    """Return the mean accepted length τ, averaged like speed-ups: the geometric mean over equally weighted prompts.

    Since τ and speeds are averaged in the same way, speed-up = τ × plain seconds per token / seconds per round. The
    result is None if there is no round.
    """
    average = average_rate({(s.prompt, s.repeat): len(s.token_ids) / s.rounds for s in samples if s.rounds})
    return None if average is None else average.value


def acceptance_of(samples: Iterable[Sample]) -> float | None:
    """Return accepted / tested drafted tokens per prompt, averaged over the prompts with a tested token."""
    grouped: dict[int, list[Sample]] = {}
    for sample in samples:
        grouped.setdefault(sample.prompt, []).append(sample)
    shares = [rate for group in grouped.values() if (rate := Totals.of(group).acceptance_rate) is not None]
    return sum(shares) / len(shares) if shares else None


def speedup_of(lane: LaneRuns, plain: LaneRuns | None) -> Estimate | None:
    """Return the speed-up of a lane (method with settings) over plain decoding; prefill time does not count."""
    return None if plain is None else speedup(rates(lane.samples.values()), rates(plain.samples.values()))


def speedups(lane: LaneRuns, plain: LaneRuns | None) -> list[float]:
    """Return the speed-ups of a lane (method) over plain decoding, one value per prompt and repeat that both have."""
    ratios = {} if plain is None else pair_ratios(rates(lane.samples.values()), rates(plain.samples.values()))
    return [ratio for of_prompt in ratios.values() for ratio in of_prompt]


# -- totals -----------------------------------------------------------------------------------------------------------


def share(part: float, whole: float) -> float | None:
    """Return `part / whole`; None if `whole` is 0."""
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over runs, and metrics that are quotients of such sums; a metric is None if its denominator is 0.

    Attributes:
        runs: number of runs.
        tokens: number of emitted tokens.
        rounds: verification passes of the target.
        accepted: drafted tokens that were accepted.
        tested: drafted tokens that the target tested.
        drafted: number of all drafted tokens.
        seconds: seconds spent on each part of decoding, by the part's name (`PARTS`).
    """

    runs: int
    tokens: int
    rounds: int
    accepted: int
    tested: int
    drafted: int
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Totals:
        """Return the sums of counts and times over timed runs."""
        runs = list(samples)

        def total(name: str) -> float:
            return sum(s.figures.get(name, 0.0) for s in runs)

        accepted, tested, drafted = (int(total(name)) for name in ("accepted", "tested", "drafted"))
        seconds = {part: total(f"{part}_s") for part in PARTS}
        return cls(
            len(runs),
            sum(len(s.token_ids) for s in runs),
            sum(s.rounds for s in runs),
            accepted,
            tested,
            drafted,
            seconds,
        )

    @property
    def tau(self) -> float | None:
        """Return the mean accepted length τ: emitted tokens / target verification passes."""
        return share(self.tokens, self.rounds)

    @property
    def acceptance_rate(self) -> float | None:
        """Return the acceptance rate: accepted / tested drafted tokens."""
        return share(self.accepted, self.tested)

    @property
    def overhead_share(self) -> float | None:
        """Return (wall time outside model forward passes) / (wall time from the end of prefill to the last token)."""
        return share(self.seconds["overhead"], self.seconds["decode"])

    def ms_per_round(self, part: str) -> float | None:
        """Return the milliseconds that the part `part` of decoding takes per target verification pass."""
        return share(1e3 * self.seconds[part], self.rounds)


# -- one value per prompt ---------------------------------------------------------------------------------------------


def mean(values: Sequence[float]) -> Interval | None:
    """Return the mean with its 95 % interval, for values that are not speeds, such as τ or acceptance rates.

    Example:
        >>> mean([2.0, 2.0])
        {'value': 2.0, 'low': 2.0, 'high': 2.0, 'n': 2}
        >>> mean([2.0])
        {'value': 2.0, 'low': None, 'high': None, 'n': 1}
    """
    return _figure(np.mean, values)


def geometric_mean(values: Sequence[float]) -> Interval | None:
    """Return the geometric mean with its 95 % interval, for ratios above 0 of metrics that are not speeds."""
    interval = mean([math.log(value) for value in values])
    return interval and {name: x if name == "n" or x is None else math.exp(x) for name, x in interval.items()}


def ratio_of_sums(parts: Sequence[float], wholes: Sequence[float]) -> Interval | None:
    """Return (sum of `parts`) / (sum of `wholes`) with its bootstrap interval; both have one value per prompt."""
    return _figure(lambda a, b, axis=-1: np.sum(a, axis) / np.sum(b, axis), parts, wholes)


Quotient = tuple[Sequence[float], Sequence[float]]
"""Type of a quotient of sums over prompts: (numerator of each prompt, denominator of each prompt)."""


def ratio_of_quotients(numerator: Quotient, denominator: Quotient) -> Interval | None:
    """Return the ratio of two quotients of sums over the same prompts, with its interval; None if the second is 0.

    A quotient is a pair (values whose sum is the dividend, values whose sum is the divisor), with one value per prompt.
    Both quotients use the same resamples of prompts.
    """
    if not sum(denominator[0]):
        return None
    return _figure(
        lambda a, b, c, d, axis=-1: np.sum(a, axis) / np.sum(b, axis) / (np.sum(c, axis) / np.sum(d, axis)),
        *numerator, *denominator,
    )  # fmt: skip


def difference_of_quotients(first: Quotient, second: Quotient) -> Interval | None:
    """Return the difference of two quotients of sums over the same prompts, with its interval.

    A quotient is a pair (values whose sum is the dividend, values whose sum is the divisor), with one value per prompt.
    Both quotients use the same resamples of prompts.
    """
    return _figure(
        lambda a, b, c, d, axis=-1: np.sum(a, axis) / np.sum(b, axis) - np.sum(c, axis) / np.sum(d, axis),
        *first, *second,
    )  # fmt: skip


def _figure(statistic: Callable[..., Any], *columns: Sequence[float]) -> Interval | None:
    n = len(columns[0])
    if not n:
        return None
    value = float(statistic(*(np.asarray(column, dtype=float) for column in columns)))
    if n == 1:
        return {"value": value, "low": None, "high": None, "n": n}
    varies = any(min(column) < max(column) for column in columns)
    low, high = _bounds(statistic, *columns) if varies else (value, value)
    return {"value": value, "low": low, "high": high, "n": n}


def _bounds(statistic: Callable[..., Any], *columns: Sequence[float]) -> tuple[float, float]:
    """Return the bootstrap interval of a statistic (a NumPy function with `axis`); columns are resampled together."""
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # n already shows that there are few values
        interval = stats.bootstrap(
            tuple(np.asarray(column, dtype=float) for column in columns), statistic, paired=len(columns) > 1,
            confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(SEED),
        ).confidence_interval  # fmt: skip
    return float(interval.low), float(interval.high)

"""Estimate speed-ups with 95 % confidence intervals, and describe them for the app, the command line and the boards.

A speed-up is the ratio of two rates: tokens per second of a method's run and of plain decoding of the same prompt in
the same repeat. Ratios are averaged on a logarithmic scale, so that A over B is exactly 1 / (B over A): first over the
repeats of a prompt, then over prompts with equal weight. The result is a geometric mean (Fleming & Wallace 1986,
doi:10.1145/5666.5673).

The interval is Student's t on those logarithms. Repeats of one prompt give no information about other prompts, so from
three prompts on, each prompt is one observation. With one or two prompts the interval covers the scatter of repeats,
and its wording says "this prompt only". A bootstrap is not used, because its percentile interval over three prompts
covers the true value in 75 % of cases instead of 95 %.

`workbench/views/js/shared/speedup.js` implements the same formulas for the browser; a shared fixture tests both.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench.core.errors import WorkbenchError

CONFIDENCE = 0.95
FEWEST_PROMPTS = 3
"""Minimum number of prompts for an interval over prompts; with fewer prompts, the interval is over repeats."""
MOST_PAIRS, MOST_RATE = 64, 1e6
"""`MOST_PAIRS`: maximum number of speed-up ratios that a saved baseline may contain. `MOST_RATE`: upper bound of these
ratios and of rates in tokens per second."""
FASTER, SLOWER, INCONCLUSIVE = "faster", "slower", "no significant difference yet"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated speed-up, or estimated rate in tokens per second, with its confidence interval.

    Attributes:
        value: geometric mean over prompts with equal weight.
        low: lower end of the interval; None if there are too few runs.
        high: upper end of the interval.
        n: number of observations (for a speed-up: pairs of runs) over all prompts and repeats.
        prompts: number of prompts.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    prompts: int

    @property
    def verdict(self) -> str:
        """Return "faster" or "slower" if the speed-up's interval excludes 1, else "no significant difference yet".

        Without an interval, return the number of runs, such as "2 runs".
        """
        if self.low is None or self.high is None:
            return _runs(self.n)
        return FASTER if self.low > 1 else SLOWER if self.high < 1 else INCONCLUSIVE

    @property
    def basis(self) -> str:
        """Return text that says on how many observations and prompts the confidence interval is based.

        Example:
            >>> Estimate(1.2, 1.1, 1.3, 12, 4).basis, Estimate(1.2, 1.1, 1.3, 5, 1).basis
            ('n = 12: 4 prompts', 'n = 5, this prompt only')
        """
        if self.low is None:
            return _runs(self.n)
        if self.prompts >= FEWEST_PROMPTS:
            return f"n = {self.n}" + (f": {self.prompts} prompts" if self.n > self.prompts else " prompts")
        return f"n = {self.n}, {self._these} only"

    @property
    def _these(self) -> str:
        return "this prompt" if self.prompts == 1 else f"these {self.prompts} prompts"

    @property
    def sentence(self) -> str:
        """Return a sentence with the speed-up, the conclusion ("faster" or "slower") and the confidence interval.

        If the interval contains 1, the sentence says that there is no significant difference yet.

        Example:
            >>> Estimate(1.01, 0.8, 1.3, 4, 1).sentence
            '1.01×: no significant difference yet (0.80–1.30×, n = 4, this prompt only)'
            >>> Estimate(1.5, None, None, 1, 1).sentence
            '1.50×: one run'
            >>> Estimate(1.5, 1.4, 1.6, 4, 2).sentence
            '1.50×: faster on these 2 prompts (1.40–1.60×, n = 4)'
        """
        if self.low is None:
            return f"{self.value:.2f}×: {self.verdict}"
        if self.prompts < FEWEST_PROMPTS and self.verdict != INCONCLUSIVE:  # not valid for other prompts
            return f"{self.value:.2f}×: {self.verdict} on {self._these} ({self.range}, n = {self.n})"
        return f"{self.value:.2f}×: {self.verdict} ({self.range}, {self.basis})"

    @property
    def range(self) -> str:
        """Return the confidence interval as text, such as "1.31–1.77×"; "" if there is no interval."""
        return "" if self.low is None or self.high is None else f"{self.low:.2f}–{self.high:.2f}×"

    def __str__(self) -> str:
        """Return the estimate as text for a table cell, such as "1.52 [1.31–1.77]".

        If the estimate has no interval, the text has the number of runs instead: "1.52 (2 runs)".
        """
        if self.low is None:
            return f"{self.value:.2f} ({_runs(self.n)})"
        return f"{self.value:.2f} [{self.low:.2f}–{self.high:.2f}]"

    def to_wire(self) -> dict[str, Any]:
        """Return the estimated speed-up or rate, with its interval, as JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Measurement of plain decoding, saved with a run, from which the run's speed-up and interval are computed.

    Attributes:
        tokens_per_second: rate of plain decoding with the same prompt, seed and sampling; None if not measured.
        ratios: speed-up of each measured pair of a run and its baseline.
    """

    tokens_per_second: float | None = None
    ratios: tuple[float, ...] = ()

    @property
    def estimate(self) -> Estimate | None:
        """Return the speed-up of the saved run, valid for its prompt only; None if no pair of runs was measured."""
        return estimate({0: self.ratios})

    def to_wire(self) -> dict[str, Any]:
        """Return the measurement of plain decoding as JSON data."""
        return {"tokens_per_second": self.tokens_per_second, "ratios": list(self.ratios)}

    @classmethod
    def from_wire(cls, data: Any) -> Baseline | None:
        """Create the baseline from the JSON data that `to_wire` returns; None if the data contains no number.

        Raises:
            WorkbenchError: a rate or a ratio is not a positive number, or there are more than `MOST_PAIRS` ratios.
        """
        if not isinstance(data, dict):
            return None
        rate, ratios = data.get("tokens_per_second"), data.get("ratios") or []
        numbers: list[Any] = [*([] if rate is None else [rate]), *(ratios if isinstance(ratios, list) else [ratios])]
        if len(numbers) > 1 + MOST_PAIRS or not all(type(x) in (int, float) and 0 < x < MOST_RATE for x in numbers):
            raise WorkbenchError(
                f"The saved baseline is invalid: its tokens per second and its speed-up ratios (at most {MOST_PAIRS}) "
                f"must be positive numbers.",
                "Measure the baseline again.",
            )
        return cls(rate, tuple(ratios)) if numbers else None


def estimate(values: Mapping[Any, Sequence[float]], confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the geometric mean of speed-up ratios, or of rates in tokens per second, with its confidence interval.

    Args:
        values: prompt → values above 0, one per repeat. The two runs of a ratio belong to the same repeat.
        confidence: level of the interval.

    Returns:
        The estimate, or None without values. It has no interval with fewer than two degrees of freedom, that is, with
        fewer than three repeats of one prompt, or fewer than two repeats of each of two prompts.

    Example:
        >>> ratio = estimate({"a": [2.0, 2.0], "b": [0.5, 0.5]})
        >>> ratio.value, ratio.low, ratio.high
        (1.0, 1.0, 1.0)
        >>> estimate({"a": [1.5]})
        Estimate(value=1.5, low=None, high=None, n=1, prompts=1)
    """
    logs = [[math.log(value) for value in of_prompt] for of_prompt in values.values() if of_prompt]
    if not logs:
        return None
    means = [sum(values_of_prompt) / len(values_of_prompt) for values_of_prompt in logs]
    n, prompts = sum(map(len, logs)), len(logs)
    centre = sum(means) / prompts
    if prompts >= FEWEST_PROMPTS:
        freedom = prompts - 1
        error = math.sqrt(sum((mean - centre) ** 2 for mean in means) / freedom / prompts)
    else:
        freedom = n - prompts
        squares = sum(
            (x - mean) ** 2 for values_of_prompt, mean in zip(logs, means, strict=True) for x in values_of_prompt
        )
        error = (
            math.sqrt(squares / freedom * sum(1 / len(values_of_prompt) for values_of_prompt in logs)) / prompts
            if freedom
            else 0.0
        )
    if freedom < 2:
        return Estimate(math.exp(centre), None, None, n, prompts)
    half = t_quantile(freedom, confidence) * error
    return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), n, prompts)


def pair_ratios(
    rates: Mapping[tuple[Any, int], float], plain: Mapping[tuple[Any, int], float]
) -> dict[Hashable, list[float]]:
    """Return the ratios of a method's rates to the rates of plain decoding, by prompt.

    A run counts if there is a run of plain decoding for the same prompt and repeat, and both runs emitted a token.

    Args:
        rates: tokens per second by (prompt, repeat).
        plain: tokens per second of plain decoding by (prompt, repeat).
    """
    ratios: dict[Hashable, list[float]] = {}
    for key in sorted(rates.keys() & plain.keys()):
        if rates[key] > 0 and plain[key] > 0:
            ratios.setdefault(key[0], []).append(rates[key] / plain[key])
    return ratios


def speedup(rates: Mapping[tuple[Any, int], float], plain: Mapping[tuple[Any, int], float]) -> Estimate | None:
    """Return a method's speed-up over plain decoding; None if no prompt and repeat has a run of both.

    Args:
        rates: tokens per second by (prompt, repeat).
        plain: tokens per second of plain decoding by (prompt, repeat).
    """
    return estimate(pair_ratios(rates, plain))


def group_by_prompt(rates: Mapping[tuple[Any, int], float]) -> dict[Hashable, list[float]]:
    """Group rates above 0 by prompt, for an estimate of the typical rate in tokens per second.

    The quotient of two such estimates over the same prompts and repeats is exactly the speed-up; a quotient of medians
    is not.
    """
    return pair_ratios(rates, dict.fromkeys(rates, 1.0))


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return the quantile of Student's t distribution: the half-width of a confidence interval in standard errors.

    Args:
        freedom: degrees of freedom.
        confidence: level of the interval.

    Example:
        >>> round(t_quantile(2), 3), round(t_quantile(11), 3)
        (4.303, 2.201)
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2))


def _runs(n: int) -> str:
    return "one run" if n == 1 else f"{n} runs"

"""The one estimator of speed-up, its interval and its words: every face shows what is computed here.

A speed-up is a ratio of two rates: tokens per second of a method's run over those of the plain run of the same prompt
in the same repeat. Ratios are averaged on a logarithmic scale, so that A over B is exactly 1 / (B over A) and "twice as
fast" weighs as much as "half as fast": first over the repeats of a prompt, then over prompts, which weigh alike
whatever they hold. The result is a geometric mean (Fleming & Wallace 1986, doi:10.1145/5666.5673).

The interval is Student's t on those logarithms. Repeats of one prompt say nothing about other prompts, so from three
prompts on a prompt counts as one observation, however often it was repeated. With one or two prompts nothing can be
said of others: the interval then covers the scatter of repeats, and its words say "this prompt only". (Why not a
bootstrap: its percentiles over three prompts cover the truth in three of four cases, not in 95 of 100.)

`workbench/views/js/shared/speedup.js` is the same for the browser; a fixture holds both to the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench.core.errors import WorkbenchError

CONFIDENCE = 0.95
FEWEST_PROMPTS = 3
"""From here on the interval is one over prompts."""
MOST_PAIRS, MOST_RATE = 64, 1e6
"""Ratios that a kept baseline has at most, and the bound of its numbers."""
FASTER, SLOWER, OPEN = "faster", "slower", "cannot be told yet"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio of rates, or a rate, with its interval.

    Attributes:
        value: geometric mean over prompts, which weigh alike.
        low: lower end of the interval; None where there are too few runs for one.
        high: upper end.
        n: observations: pairs of runs of all prompts and repeats.
        prompts: how many prompts they are of.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    prompts: int

    @property
    def verdict(self) -> str:
        """`FASTER` or `SLOWER` where the whole interval lies on one side of 1, else `OPEN`, or "one run", "2 runs"."""
        if self.low is None or self.high is None:
            return _runs(self.n)
        return FASTER if self.low > 1 else SLOWER if self.high < 1 else OPEN

    @property
    def basis(self) -> str:
        """What the interval rests on, in words.

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
        """Figure and verdict: nothing is concluded while the interval holds 1.

        Example:
            >>> Estimate(1.01, 0.8, 1.3, 4, 1).sentence
            '1.01×: cannot be told yet (0.80–1.30×, n = 4, this prompt only)'
            >>> Estimate(1.5, None, None, 1, 1).sentence
            '1.50×: one run'
            >>> Estimate(1.5, 1.4, 1.6, 4, 2).sentence
            '1.50×: faster on these 2 prompts (1.40–1.60×, n = 4)'
        """
        if self.low is None:
            return f"{self.value:.2f}×: {self.verdict}"
        if self.prompts < FEWEST_PROMPTS and self.verdict != OPEN:  # says nothing of other prompts
            return f"{self.value:.2f}×: {self.verdict} on {self._these} ({self.range}, n = {self.n})"
        return f"{self.value:.2f}×: {self.verdict} ({self.range}, {self.basis})"

    @property
    def range(self) -> str:
        """The interval, as in "1.31–1.77×"; empty where there is none."""
        return "" if self.low is None or self.high is None else f"{self.low:.2f}–{self.high:.2f}×"

    def __str__(self) -> str:
        """For a table's cell: "1.52 [1.31–1.77]"; without an interval the number of runs."""
        if self.low is None:
            return f"{self.value:.2f} ({_runs(self.n)})"
        return f"{self.value:.2f} [{self.low:.2f}–{self.high:.2f}]"

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Plain decoding beside a run that is kept: what its speed-up and its interval are computed from.

    Attributes:
        tokens_per_second: of the plain run with the same prompt, seed and sampling; None where none was measured.
        ratios: speed-up of each pair of runs that was measured like the run and its baseline.
    """

    tokens_per_second: float | None = None
    ratios: tuple[float, ...] = ()

    @property
    def estimate(self) -> Estimate | None:
        """Speed-up over all pairs, of this prompt only; None where none were measured."""
        return estimate({0: self.ratios})

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"tokens_per_second": self.tokens_per_second, "ratios": list(self.ratios)}

    @classmethod
    def from_wire(cls, data: Any) -> Baseline | None:
        """The inverse of `to_wire`; None for anything that holds no figure.

        Raises:
            WorkbenchError: a rate or a ratio is not a positive number, or there are more than `MOST_PAIRS` ratios.
        """
        if not isinstance(data, dict):
            return None
        rate, ratios = data.get("tokens_per_second"), data.get("ratios") or []
        numbers: list[Any] = [*([] if rate is None else [rate]), *(ratios if isinstance(ratios, list) else [ratios])]
        if len(numbers) > 1 + MOST_PAIRS or not all(type(x) in (int, float) and 0 < x < MOST_RATE for x in numbers):
            raise WorkbenchError(
                f"The baseline is not a rate with at most {MOST_PAIRS} ratios above 0.", "Measure the baseline again."
            )
        return cls(rate, tuple(ratios)) if numbers else None


def estimate(values: Mapping[Any, Sequence[float]], confidence: float = CONFIDENCE) -> Estimate | None:
    """The geometric mean of ratios, or of rates, with its interval.

    Args:
        values: by prompt, one for each repeat, all above 0; the two runs of a ratio are of the same repeat.
        confidence: of the interval.

    Returns:
        None where there is no value. No interval with fewer than two degrees of freedom: below three prompts, below
        three repeats of one prompt, below two of two.

    Example:
        >>> found = estimate({"a": [2.0, 2.0], "b": [0.5, 0.5]})
        >>> found.value, found.low, found.high
        (1.0, 1.0, 1.0)
        >>> estimate({"a": [1.5]})
        Estimate(value=1.5, low=None, high=None, n=1, prompts=1)
    """
    logs = [[math.log(value) for value in of_prompt] for of_prompt in values.values() if of_prompt]
    if not logs:
        return None
    means = [sum(own) / len(own) for own in logs]
    n, prompts = sum(map(len, logs)), len(logs)
    centre = sum(means) / prompts
    if prompts >= FEWEST_PROMPTS:
        freedom = prompts - 1
        error = math.sqrt(sum((mean - centre) ** 2 for mean in means) / freedom / prompts)
    else:
        freedom = n - prompts
        apart = sum((x - mean) ** 2 for own, mean in zip(logs, means, strict=True) for x in own)
        error = math.sqrt(apart / freedom * sum(1 / len(own) for own in logs)) / prompts if freedom else 0.0
    if freedom < 2:
        return Estimate(math.exp(centre), None, None, n, prompts)
    half = t_quantile(freedom, confidence) * error
    return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), n, prompts)


def pairs(mine: Mapping[tuple[Any, int], float], plain: Mapping[tuple[Any, int], float]) -> dict[Hashable, list[float]]:
    """Ratios by prompt of the runs that both sides have; a run without a token, whose rate is 0, is left out.

    Args:
        mine: tokens per second by (prompt, repeat).
        plain: the same of plain decoding.
    """
    found: dict[Hashable, list[float]] = {}
    for key in sorted(mine.keys() & plain.keys()):
        if mine[key] > 0 and plain[key] > 0:
            found.setdefault(key[0], []).append(mine[key] / plain[key])
    return found


def speedup(mine: Mapping[tuple[Any, int], float], plain: Mapping[tuple[Any, int], float]) -> Estimate | None:
    """Speed-up over plain decoding, from tokens per second by (prompt, repeat) of both sides."""
    return estimate(pairs(mine, plain))


def by_prompt(rates: Mapping[tuple[Any, int], float]) -> dict[Hashable, list[float]]:
    """Values by (prompt, repeat) as lists by prompt, those above 0: what `estimate` makes a typical rate of.

    Dividing two such rates of the same runs gives exactly their speed-up, which quotients of medians do not.
    """
    return pairs(rates, dict.fromkeys(rates, 1.0))


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Half-width in standard errors of Student's interval.

    Example:
        >>> round(t_quantile(2), 3), round(t_quantile(11), 3)
        (4.303, 2.201)
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2))


def _runs(n: int) -> str:
    return "one run" if n == 1 else f"{n} runs"

"""The one 95 % interval of all figures: scipy's percentile bootstrap (Efron & Tibshirani 1993, §13.3), seeded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE, RESAMPLES, SEED = 0.95, 2000, 0


def bounds(of: Callable[..., Any], *columns: Sequence[float] | NDArray[Any]) -> tuple[float, float]:
    """Lower and upper bound of a statistic.

    Args:
        of: the statistic of as many arrays as there are columns; it takes `axis`.
        columns: the observations; several columns are drawn together, row by row.

    Example:
        >>> low, high = bounds(np.mean, [1.0, 2.0, 3.0, 4.0])
        >>> 1.0 <= low < 2.5 < high <= 4.0
        True
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that few values make few means is shown by n
        found = stats.bootstrap(
            tuple(np.asarray(column, dtype=float) for column in columns), of, paired=len(columns) > 1,
            confidence_level=CONFIDENCE, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(SEED),
        ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def interval(values: Sequence[float], of: Callable[..., Any] = np.median) -> tuple[float, float, float]:
    """A statistic of values and its bounds; fewer than three values give their range."""
    value = float(of(values))
    if len(values) < 3 or min(values) == max(values):
        return value, float(min(values)), float(max(values))
    return value, *bounds(of, values)

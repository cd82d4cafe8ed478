"""How a drafter's τ grows with the tokens that it learnt from and with its size: Scylla's law, fitted with intervals.

    τ = a + b · log₁₀ tokens + c · log₁₀ parameters

A law of this form has to bend somewhere: a draft of depth d gives at most d + 1 tokens a round. So what it leaves of
each run is a part of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.core.errors import ParameterError

FEWEST, RESAMPLES, SEED = 4, 2000, 0
NAMES = ("constant", "a decade of tokens", "a decade of parameters")


@dataclass(frozen=True)
class Trained:
    """A drafter of a grid, and what it did on prompts that are the same for all.

    Attributes:
        parameters: that were trained.
        tokens: read in training.
        emitted: tokens of each prompt's answer.
        rounds: of the target for each prompt.
    """

    parameters: int
    tokens: int
    emitted: Sequence[int]
    rounds: Sequence[int]

    @property
    def tau(self) -> float:
        """Tokens emitted / target verification passes, over all prompts."""
        return sum(self.emitted) / sum(self.rounds)


@dataclass(frozen=True)
class ScalingLaw:
    """A fitted law.

    Attributes:
        values: a, b, c.
        low: of each, the lower end of its 95 % interval.
        high: the upper end.
        r2: share of the variance of τ that it explains.
        left: of each run τ less the law's, in the order of the runs.
    """

    values: tuple[float, float, float]
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    r2: float
    left: tuple[float, ...]

    def tau(self, tokens: float, parameters: float) -> float:
        """What it says of another drafter."""
        return float(np.dot(self.values, (1.0, math.log10(tokens), math.log10(parameters))))


def fit(runs: Sequence[Trained]) -> ScalingLaw:
    """Least squares over runs; intervals are percentiles over resampled prompts, which all runs share.

    Raises:
        ParameterError: fewer than four runs, all of one size or one length, or of different prompts.

    Source: Yan et al. 2025, Scylla, arXiv:2505.07858 (the form: log-linear in tokens and in capacity); Efron &
    Tibshirani 1993, §13.3 (the intervals).
    """
    if len(runs) < FEWEST:
        raise ParameterError(f"{len(runs)} runs make no law of three numbers.", f"Train {FEWEST} or more.")
    for what in ("tokens", "parameters"):
        if len({getattr(run, what) for run in runs}) < 2:
            raise ParameterError(f"All runs have the same {what}.", f"Train with two or more numbers of {what}.")
    if len({(len(run.emitted), len(run.rounds)) for run in runs}) != 1 or not runs[0].rounds:
        raise ParameterError("The runs were measured on different prompts.", "Measure all on the same ones.")
    known = np.array([[1.0, math.log10(run.tokens), math.log10(run.parameters)] for run in runs])
    if np.linalg.matrix_rank(known) < known.shape[1]:
        raise ParameterError("Tokens grow with size in all runs.", "Train each size with the same numbers of tokens.")
    solve = np.linalg.pinv(known)  # [3, runs]
    emitted, rounds = (np.array([getattr(run, name) for run in runs]) for name in ("emitted", "rounds"))
    tau = emitted.sum(1) / rounds.sum(1)
    values, n = solve @ tau, rounds.shape[1]
    some = np.random.default_rng(SEED).integers(n, size=(RESAMPLES, n))
    again = emitted[:, some].sum(2) / rounds[:, some].sum(2)  # [runs, resamples]
    low, high = np.percentile(solve @ again, (2.5, 97.5), axis=1)
    left = tau - known @ values
    spread = float(((tau - tau.mean()) ** 2).sum())
    return ScalingLaw(
        _three(values), _three(low), _three(high), 1 - float((left**2).sum()) / spread if spread else 1.0,
        tuple(float(x) for x in left),
    )  # fmt: skip


def of_report(report: dict[str, Any]) -> list[Trained]:
    """The runs of what `workbench train scaling` wrote."""
    return [Trained(cell["parameters"], cell["tokens"], cell["emitted"], cell["rounds"]) for cell in report["cells"]]


def _three(numbers: np.ndarray) -> tuple[float, float, float]:
    a, b, c = (float(x) for x in numbers)
    return a, b, c

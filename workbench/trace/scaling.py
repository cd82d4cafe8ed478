"""Fit Scylla's scaling law with 95 % confidence intervals: a drafter's τ by training tokens and number of parameters.

    τ = a + b · log₁₀ tokens + c · log₁₀ parameters

The relation cannot stay log-linear, because a draft of depth d gives at most d + 1 tokens per round. The fit therefore
also returns the residual of each run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.core.errors import ParameterError

FEWEST, RESAMPLES, SEED = 4, 2000, 0
NAMES = ("constant", "tenfold tokens", "tenfold parameters")


@dataclass(frozen=True)
class TrainedDrafter:
    """One drafter of a training grid and its results on the shared prompts.

    Attributes:
        parameters: number of trained parameters.
        tokens: number of training tokens.
        emitted: tokens emitted for each prompt.
        rounds: target passes for each prompt.
    """

    parameters: int
    tokens: int
    emitted: Sequence[int]
    rounds: Sequence[int]

    @property
    def tau(self) -> float:
        """Return the mean accepted length τ over all prompts: tokens emitted / target verification passes."""
        return sum(self.emitted) / sum(self.rounds)


@dataclass(frozen=True)
class ScalingLaw:
    """Fitted scaling law.

    Attributes:
        values: coefficients a, b, c.
        low: lower ends of their 95 % confidence intervals.
        high: upper ends of these intervals.
        r2: share of the variance of τ that the law explains.
        left: residual of each run (measured τ minus fitted τ), in the order of the runs.
    """

    values: tuple[float, float, float]
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    r2: float
    left: tuple[float, ...]

    def tau(self, tokens: float, parameters: float) -> float:
        """Return the predicted τ of a drafter with this number of parameters, trained on this number of tokens."""
        return float(np.dot(self.values, (1.0, math.log10(tokens), math.log10(parameters))))


def fit(runs: Sequence[TrainedDrafter]) -> ScalingLaw:
    """Fit the scaling law by least squares over runs; intervals are percentiles over resamples of the shared prompts.

    Raises:
        ParameterError: there are fewer than four runs, all have the same size or number of tokens, both grow together,
            or the prompts differ.

    Source: Yan et al. 2025, Scylla, arXiv:2505.07858 (the form: log-linear in tokens and in capacity); Efron &
    Tibshirani 1993, §13.3 (the intervals).
    """
    if len(runs) < FEWEST:
        raise ParameterError(f"{len(runs)} runs are too few to fit three coefficients.", f"Train {FEWEST} or more.")
    for quantity in ("tokens", "parameters"):
        if len({getattr(run, quantity) for run in runs}) < 2:
            raise ParameterError(
                f"All runs have the same {quantity}.", f"Train with two or more numbers of {quantity}."
            )
    if len({(len(run.emitted), len(run.rounds)) for run in runs}) != 1 or not runs[0].rounds:
        raise ParameterError("The runs were measured on different prompts.", "Measure all runs on the same prompts.")
    inputs = np.array([[1.0, math.log10(run.tokens), math.log10(run.parameters)] for run in runs])
    if np.linalg.matrix_rank(inputs) < inputs.shape[1]:
        raise ParameterError("Tokens grow with size in all runs.", "Train each size with the same numbers of tokens.")
    solve = np.linalg.pinv(inputs)  # [3, runs]
    emitted, rounds = (np.array([getattr(run, name) for run in runs]) for name in ("emitted", "rounds"))
    tau = emitted.sum(1) / rounds.sum(1)
    values, n = solve @ tau, rounds.shape[1]
    resampled = np.random.default_rng(SEED).integers(n, size=(RESAMPLES, n))
    taus = emitted[:, resampled].sum(2) / rounds[:, resampled].sum(2)  # [runs, resamples]
    low, high = np.percentile(solve @ taus, (2.5, 97.5), axis=1)
    residuals = tau - inputs @ values
    spread = float(((tau - tau.mean()) ** 2).sum())
    return ScalingLaw(
        _three(values), _three(low), _three(high), 1 - float((residuals**2).sum()) / spread if spread else 1.0,
        tuple(float(x) for x in residuals),
    )  # fmt: skip


def runs_from_report(report: dict[str, Any]) -> list[TrainedDrafter]:
    """Return the runs in the report of a scaling study (`assets/boards/scaling.json`)."""
    return [
        TrainedDrafter(cell["parameters"], cell["tokens"], cell["emitted"], cell["rounds"]) for cell in report["cells"]
    ]


def _three(numbers: np.ndarray) -> tuple[float, float, float]:
    a, b, c = (float(x) for x in numbers)
    return a, b, c

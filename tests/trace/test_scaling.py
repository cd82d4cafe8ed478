"""Scylla's scaling law: fits recover known parameters within their intervals, and need enough runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workbench.core.errors import ParameterError
from workbench.trace.scaling import NAMES, ScalingLaw, TrainedDrafter, fit, runs_from_report

PLANTED = (-1.0, 0.5, 0.3)
PROMPTS = 40


def synthetic_runs(bend: float = 0.0, seed: int = 0) -> list[TrainedDrafter]:
    """Return runs whose τ per prompt follows a scaling law with noise; `bend` lowers the runs in the middle."""
    rng, runs = np.random.default_rng(seed), list[TrainedDrafter]()
    hard = rng.uniform(0.8, 1.2, PROMPTS)  # prompts differ by the same factor in all runs
    for parameters in (100_000, 1_000_000, 10_000_000):
        for tokens in (100_000, 1_000_000, 10_000_000):
            tau = PLANTED[0] + PLANTED[1] * math.log10(tokens) + PLANTED[2] * math.log10(parameters)
            tau -= bend * (tokens == 1_000_000)
            rounds = rng.integers(2_000, 3_000, PROMPTS)
            emitted = np.round(rounds * tau * hard).astype(int)
            runs.append(TrainedDrafter(parameters, tokens, emitted.tolist(), rounds.tolist()))
    return runs


def test_fit_recovers_known_parameters_within_their_intervals() -> None:
    estimate = fit(synthetic_runs())
    for value, low, high, true in zip(estimate.values, estimate.low, estimate.high, PLANTED, strict=True):
        assert low <= true <= high
        assert low < value < high
        assert value == pytest.approx(true, abs=0.2)
    assert estimate.r2 > 0.99
    assert estimate.tau(1e6, 1e6) == pytest.approx(PLANTED[0] + 6 * (PLANTED[1] + PLANTED[2]), abs=0.1)
    assert len(NAMES) == 3


def test_interval_has_its_nominal_coverage() -> None:
    """With 95 % coverage, 178 to 199 of 200 studies contain the slope, except in one of 1,000 tests."""
    n_covered = 0
    for seed in range(200):
        estimate = fit(synthetic_runs(seed=seed))
        n_covered += estimate.low[1] <= PLANTED[1] <= estimate.high[1]
    assert 178 <= n_covered <= 199


def test_residuals_show_where_the_scaling_law_fails() -> None:
    straight, bent = fit(synthetic_runs()), fit(synthetic_runs(bend=0.3))
    assert bent.r2 < straight.r2
    middle = [bent.left[i] for i in (1, 4, 7)]
    assert max(middle) < -0.1
    assert min(bent.left[i] for i in (0, 2, 3, 5, 6, 8)) > 0
    assert sum(bent.left) == pytest.approx(0, abs=1e-9), "least squares with a constant"


def test_coefficients_are_per_decade() -> None:
    fit = ScalingLaw((1.0, 0.5, 0.25), (0.0,) * 3, (0.0,) * 3, 1.0, ())
    assert fit.tau(1e7, 1e6) - fit.tau(1e6, 1e6) == pytest.approx(0.5)
    assert fit.tau(1e6, 1e7) - fit.tau(1e6, 1e6) == pytest.approx(0.25)


def test_too_few_runs_are_refused() -> None:
    runs = synthetic_runs()
    with pytest.raises(ParameterError, match="3 runs are too few"):
        fit(runs[:3])
    with pytest.raises(ParameterError, match="same parameters"):
        fit([TrainedDrafter(5, 10**k, [5], [2]) for k in range(1, 5)])
    with pytest.raises(ParameterError, match="same tokens"):
        fit([TrainedDrafter(10**k, 5, [5], [2]) for k in range(1, 5)])
    with pytest.raises(ParameterError, match="Tokens grow with size"):
        fit([TrainedDrafter(10**k, 10**k, [5], [2]) for k in range(1, 5)])
    with pytest.raises(ParameterError, match="different prompts"):
        fit([*runs[:-1], TrainedDrafter(10, 10, [5], [2])])


def test_runs_are_read_from_a_report() -> None:
    cells = [{"parameters": 4, "tokens": 9, "emitted": [6, 4], "rounds": [3, 2], "agreement": 0.5}]
    (run,) = runs_from_report({"cells": cells})
    assert (run.parameters, run.tokens, run.tau) == (4, 9, 2.0)

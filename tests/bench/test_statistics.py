"""Intervals of quotients over prompts: known ratios are recovered, about as often as stated."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.bench.statistics import Quotient, ratio_of_quotients

PROMPTS = 60


def accepted_and_tested(rng: np.random.Generator, difficulty: np.ndarray, alpha: float, tested: int) -> Quotient:
    """Return accepted and tested drafted tokens by prompt, for a drafter with a known acceptance rate."""
    n = rng.integers(tested // 2, tested, PROMPTS)
    return rng.binomial(n, np.clip(alpha * difficulty, 0, 1)).tolist(), n.tolist()


def test_known_ratios_lie_within_their_intervals() -> None:
    rng = np.random.default_rng(0)
    difficulty = rng.uniform(0.7, 1.3, PROMPTS)
    start = accepted_and_tested(rng, difficulty, 0.5, 4000)
    for alpha in (0.6, 0.64, 0.7, 0.42):
        found = ratio_of_quotients(accepted_and_tested(rng, difficulty, alpha, 4000), start)
        assert found is not None
        assert found["value"] == pytest.approx(alpha / 0.5, abs=0.03)
        assert found["low"] < found["value"] < found["high"]
        assert found["high"] - found["low"] < 0.1, "prompts are resampled together, so their difficulty cancels"


def test_the_interval_of_a_ratio_covers_the_true_value_about_as_often_as_stated() -> None:
    """With 93 % coverage (60 prompts give slightly less than 95), 84 to 99 of 100 intervals cover it, P > 0.99."""
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        difficulty = rng.uniform(0.7, 1.3, PROMPTS)
        start = accepted_and_tested(rng, difficulty, 0.5, 400)
        found = ratio_of_quotients(accepted_and_tested(rng, difficulty, 0.6, 400), start)
        assert found is not None
        covered += found["low"] <= 1.2 <= found["high"]
    assert 84 <= covered <= 99


def test_a_ratio_to_zero_is_undefined() -> None:
    assert ratio_of_quotients(([1, 2], [3, 3]), ([0, 0], [3, 3])) is None

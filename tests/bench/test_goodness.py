"""Goodness-of-fit tests accept samples of the right distribution and reject those of a wrong one."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.bench.goodness import chi_square, chi_square_tail, holm, total_variation

DISTRIBUTION = {"a": 0.5, "b": 0.3, "c": 0.19, "d": 0.01}


def sample(probs: dict[str, float], n: int, seed: int = 0) -> dict[str, int]:
    counts = np.random.default_rng(seed).multinomial(n, list(probs.values()))
    return dict(zip(probs, map(int, counts), strict=True))


@pytest.mark.parametrize(
    ("statistic", "freedom", "p"), [(3.841458820694124, 1, 0.05), (18.307038, 10, 0.05), (9.21034, 2, 0.01)]
)
def test_the_tail_agrees_with_published_quantiles(statistic: float, freedom: int, p: float) -> None:
    assert chi_square_tail(statistic, freedom) == pytest.approx(p, rel=1e-5)


def test_the_right_distribution_is_rejected_at_the_stated_error_rate() -> None:
    p_values = [chi_square(sample(DISTRIBUTION, 2000, seed), DISTRIBUTION).p_value for seed in range(200)]
    assert min(p_values) > 1e-4
    assert 0.35 < float(np.mean(p_values)) < 0.65


def test_a_wrong_distribution_is_rejected() -> None:
    wrong = {"a": 0.45, "b": 0.35, "c": 0.19, "d": 0.01}
    fit = chi_square(sample(wrong, 5000), DISTRIBUTION)
    assert not fit.fits()
    assert "observed" in str(fit)


def test_an_impossible_outcome_always_fails() -> None:
    fit = chi_square({"a": 500, "b": 300, "c": 190, "d": 10, "e": 1}, DISTRIBUTION)
    assert fit.impossible == ("e",)
    assert not fit.fits()


def test_rare_cells_are_pooled() -> None:
    assert chi_square({"a": 50, "b": 30, "c": 19, "d": 1}, DISTRIBUTION).freedom == 2


def test_total_variation_is_half_the_absolute_difference() -> None:
    assert total_variation({"a": 1}, {"a": 0.5, "b": 0.5}) == pytest.approx(0.5)


def test_holm_keeps_the_error_rate_and_is_less_strict_than_bonferroni() -> None:
    p_values = np.random.default_rng(0).uniform(size=(4000, 5))
    rejected = np.mean([min(holm(list(row))) < 0.05 for row in p_values])
    assert rejected == pytest.approx(0.05, abs=0.0125), "3.6 standard errors"
    assert holm([0.02, 0.02, 0.02])[2] == pytest.approx(0.06)
    assert holm([0.001, 0.03])[1] == pytest.approx(0.03), "Bonferroni has 0.06"
    assert holm([0.9, 0.8]) == [1.0, 1.0]

"""Estimation of speed-ups: coverage of intervals, symmetry, and wording without premature conclusions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workbench.trace import speedup
from workbench.trace.speedup import INCONCLUSIVE, SLOWER, Estimate, estimate


def test_mean_is_geometric_with_equal_weight_per_prompt() -> None:
    found = estimate({"a": [4.0], "b": [1.0] * 7, "c": [2.0, 2.0]})
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert (found.n, found.prompts) == (10, 3)


def test_interval_is_students_over_prompts() -> None:
    ratios = {"a": [1.1, 1.3], "b": [1.6, 1.4], "c": [2.0, 2.1], "d": [0.9, 1.0]}
    means = [float(np.mean(np.log(own))) for own in ratios.values()]
    low, high = stats.t.interval(0.95, 3, np.mean(means), stats.sem(means))
    found = estimate(ratios)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))


def test_one_prompt_has_an_interval_over_its_repeats_and_states_it() -> None:
    logs = np.log([1.2, 1.5, 1.3, 1.4])
    low, high = stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs))
    found = estimate({0: [1.2, 1.5, 1.3, 1.4]})
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert found.basis == "n = 4, this prompt only"
    two = estimate({0: [1.2, 1.3], 1: [1.5, 1.4]})
    assert two is not None
    assert two.basis == "n = 4, these 2 prompts only"
    pair = estimate({0: [1.2, 1.3]})
    assert pair is not None
    assert (pair.value, pair.low, pair.high) == (pytest.approx(math.sqrt(1.56)), None, None)


def test_three_prompts_repeated_ten_times_are_three_observations() -> None:
    """Treated as thirty independent values they gave [1.70, 2.30], narrower than the spread of the prompts."""
    found, once = estimate({p: [float(p)] * 10 for p in (1, 2, 3)}), estimate({p: [float(p)] for p in (1, 2, 3)})
    assert found is not None
    assert once is not None
    assert (found.value, found.low, found.high) == pytest.approx((once.value, once.low, once.high))
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 < 3 < found.high, "the interval contains the range of the prompts"
    assert found.verdict == INCONCLUSIVE


def test_two_prompts_cost_a_degree_of_freedom_each() -> None:
    """The scatter is around two means: four runs leave two degrees of freedom, three leave one and no interval."""
    logs = np.log([[1.2, 1.3], [0.9, 0.95]])
    error = math.sqrt(((logs - logs.mean(1, keepdims=True)) ** 2).sum() / 2 / 4)
    found = estimate({"a": [1.2, 1.3], "b": [0.9, 0.95]})
    assert found is not None
    assert found.high == pytest.approx(math.exp(logs.mean() + stats.t.ppf(0.975, 2) * error))
    three = estimate({"a": [1.2, 1.3], "b": [0.9]})
    assert three is not None
    assert (three.low, three.high) == (None, None)


def test_repeats_are_not_prompts() -> None:
    """Three different prompts with ten equal repeats are thirty values, but say little about the next prompt."""
    found = estimate({i: [level] * 10 for i, level in enumerate((0.8, 1.2, 1.8))})
    assert found is not None
    assert found.high is not None
    assert found.low is not None
    assert found.high / found.low > 5
    assert found.verdict == INCONCLUSIVE


ratio = st.floats(0.05, 20)
by_prompt = st.dictionaries(st.integers(0, 9), st.lists(ratio, min_size=1, max_size=5), min_size=1, max_size=6)


@given(by_prompt)
def test_ratio_a_over_b_is_the_inverse_of_b_over_a(ratios: dict[int, list[float]]) -> None:
    there, back = estimate(ratios), estimate({i: [1 / r for r in own] for i, own in ratios.items()})
    assert there is not None
    assert back is not None
    assert there.value * back.value == pytest.approx(1)
    if there.low is not None:
        assert there.low * back.high == pytest.approx(1)


@given(by_prompt)
def test_ratio_of_typical_rates_equals_the_speed_up(ratios: dict[int, list[float]]) -> None:
    """Dividing the two columns of tokens per second gives the speed-up shown beside them."""
    plain = {(i, k): 50.0 + 7 * i + k for i, own in ratios.items() for k in range(len(own))}
    mine = {(i, k): plain[i, k] * r for i, own in ratios.items() for k, r in enumerate(own)}
    found = speedup.speedup(mine, plain)
    rates = [estimate(speedup.group_by_prompt(side)) for side in (mine, plain)]
    assert found is not None
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[0].value / rates[1].value == pytest.approx(found.value)


@pytest.mark.parametrize(("prompts", "repeats"), [(3, 3), (8, 2), (1, 3)])
def test_95_percent_interval_has_95_percent_coverage(prompts: int, repeats: int) -> None:
    """Seeded, with 600 draws: a standard error of 0.9 points. A bootstrap over three prompts has 75 % coverage."""
    rng, covered, trials = np.random.default_rng(0), 0, 600
    for _ in range(trials):
        of_prompt = rng.normal(0, 0.3 if prompts > 1 else 0, (prompts, 1))
        logs = math.log(1.4) + of_prompt + rng.normal(0, 0.1, (prompts, repeats))
        found = estimate({i: np.exp(own).tolist() for i, own in enumerate(logs)})
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.4 <= found.high
    assert 0.92 <= covered / trials <= 0.98


def test_no_verdict_while_the_interval_contains_1() -> None:
    assert Estimate(1.4, 0.99, 2.0, 6, 6).verdict == INCONCLUSIVE
    assert Estimate(0.7, 0.4, 1.1, 6, 6).verdict == INCONCLUSIVE
    assert Estimate(0.7, 0.5, 0.9, 6, 6).verdict == SLOWER
    assert Estimate(0.7, None, None, 1, 1).verdict == "one run"
    assert (
        Estimate(1.01, 0.8, 1.3, 4, 1).sentence
        == "1.01×: no significant difference yet (0.80–1.30×, n = 4, this prompt only)"
    )
    assert Estimate(1.5, 1.3, 1.7, 12, 4).sentence == "1.50×: faster (1.30–1.70×, n = 12: 4 prompts)"


def test_run_is_divided_by_the_plain_run_of_the_same_repeat() -> None:
    """The machine was half as fast in the second repeat, for both: the method is as fast as plain decoding."""
    plain = {("a", 0): 10.0, ("a", 1): 5.0, ("b", 0): 40.0}
    assert speedup.pair_ratios(plain, plain) == {"a": [1.0, 1.0], "b": [1.0]}
    assert speedup.pair_ratios({("a", 1): 10.0, ("b", 1): 9.0}, plain) == {"a": [2.0]}


def test_runs_without_tokens_or_without_a_pair_are_ignored() -> None:
    found = speedup.speedup({(0, 0): 30.0, (0, 1): 0.0, (1, 0): 9.0}, {(0, 0): 10.0, (0, 1): 10.0})
    assert found is not None
    assert (found.value, found.n, found.prompts) == (pytest.approx(3.0), 1, 1)
    assert speedup.speedup({}, {(0, 0): 1.0}) is None

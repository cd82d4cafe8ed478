"""Closed forms compared with the papers' cards, linear programs and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from workbench.core.errors import ParameterError
from workbench.trace import theory

P, Q = (0.5, 0.3, 0.15, 0.05), (0.1, 0.4, 0.3, 0.2)

GOLDEN = {
    "recursive, with replacement": (0.64, 0.676),
    "K-SEQ": (0.658443, 0.710003),
    "recursive, without replacement": (0.656845, 0.748988),
    "greedy scheme": (0.666667, 0.833333),
    "optimum, with replacement": (0.69, 0.771),
    "optimum, without replacement": (0.734524, 0.948810),
    "likeliest tokens": (0.45, 0.5),
}
"""Example vectors of the method cards, for 2 and 3 drafts."""


@pytest.mark.parametrize("n", [2, 3])
def test_every_rule_gives_the_cards_figure(n: int) -> None:
    table = theory.acceptance_table(P, Q, n)
    assert table["plain"] == pytest.approx(0.6)
    assert {name: round(table[name], 6) for name in GOLDEN} == {
        k: pytest.approx(v[n - 2], abs=1e-6) for k, v in GOLDEN.items()
    }
    assert theory.kseq_acceptance(P, Q, n)[1] == pytest.approx((1.584429, 2.100031)[n - 2], abs=1e-6)


def distributions(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(size, 0.6)), rng.dirichlet(np.full(size, 0.6))


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_bound_equals_linear_program_and_brute_force(n: int, replacement: bool) -> None:
    for seed in range(12):
        p, q = distributions(seed, 5)
        bound = theory.optimal_acceptance(p, q, n, replacement)
        assert bound == pytest.approx(theory.optimal_acceptance_lp(p, q, n, replacement), abs=1e-7)
        assert bound == pytest.approx(1 + brute(p, q, n, replacement), abs=1e-9)


def brute(p: np.ndarray, q: np.ndarray, n: int, replacement: bool) -> float:
    """Return min over all sets H of P(H) − Pr(all drafts in H), by enumeration of all tuples."""
    best = 0.0
    for mask in range(1, 2 ** len(p)):
        inside = [i for i in range(len(p)) if mask >> i & 1]
        all_in = 0.0
        for drawn in itertools.product(inside, repeat=n):
            if not replacement and len(set(drawn)) < n:
                continue
            mass, left = 1.0, 1.0
            for token in drawn:
                mass, left = mass * q[token] / left, left if replacement else left - q[token]
            all_in += mass
        best = min(best, float(p[inside].sum()) - all_in)
    return best


def test_no_rule_exceeds_the_bound_and_more_drafts_never_hurt() -> None:
    for seed in range(8):
        p, q = distributions(seed, 6)
        before = 0.0
        for n in (1, 2, 3):
            with_, without = theory.optimal_acceptance(p, q, n), theory.optimal_acceptance(p, q, n, replacement=False)
            assert theory.recursive_acceptance(p, q, n) <= theory.kseq_acceptance(p, q, n)[0] + 1e-9 <= with_ + 2e-9
            assert theory.recursive_acceptance(p, q, n, replacement=False) <= without + 1e-9
            assert with_ >= before - 1e-12
            before = with_


def test_large_vocabulary_is_not_enumerated() -> None:
    p, q = distributions(3, 2000)
    two = theory.optimal_acceptance(p, q, 2, replacement=False)
    assert theory.optimal_acceptance(p, q, 1) == pytest.approx(float(np.minimum(p, q).sum()))
    assert theory.optimal_acceptance(p, q, 2) <= two + 1e-9 <= 1
    with pytest.raises(ParameterError, match="too many to enumerate"):
        theory.optimal_acceptance_lp(p, q, 3)


def test_invalid_distributions_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"sums to 0\.9"):
        theory.optimal_acceptance([0.5, 0.4], [0.5, 0.5], 2)
    with pytest.raises(ParameterError, match="same tokens"):
        theory.single_draft_acceptance([1.0], [0.5, 0.5])
    with pytest.raises(ParameterError, match="at least 1"):
        theory.top_acceptance(P, Q, 0)


@pytest.mark.parametrize("replacement", [True, False])
def test_bound_from_top_tokens_is_never_too_low_and_exact_with_all_tokens(replacement: bool) -> None:
    for seed in range(8):
        p, q = distributions(seed, 7)
        exact = theory.optimal_acceptance(p, q, 2, replacement)
        whole = theory.bound_from_top_tokens(dict(enumerate(p)), dict(enumerate(q)), 2, replacement)
        assert whole == pytest.approx(exact, abs=1e-9)
        few = [dict(sorted(enumerate(x), key=lambda item: -item[1])[:3]) for x in (p, q)]
        assert theory.bound_from_top_tokens(*few, 2, replacement) >= exact - 1e-9


@pytest.mark.parametrize(
    ("rate", "values"),
    [(0.5, (1.5, 1.875, 1.9688, 1.9961)), (0.7, (1.7, 2.533, 2.9412, 3.1988)), (0.9, (1.9, 3.439, 4.6856, 6.1258))],
)
def test_geometric_distribution_of_accepted_lengths(rate: float, values: tuple[float, ...]) -> None:
    for depth, value in zip((1, 3, 5, 8), values, strict=True):
        assert theory.expected_tau(rate, depth) == pytest.approx(value, abs=6e-5)
        assert theory.tau_by_position([rate] * depth) == pytest.approx(theory.expected_tau(rate, depth))
        probs = theory.accepted_length_distribution([rate] * depth)
        assert sum(probs) == pytest.approx(1)
        assert 1 + sum(n * mass for n, mass in enumerate(probs)) == pytest.approx(theory.expected_tau(rate, depth))
    assert theory.expected_tau(1.0, 4) == 5


@pytest.mark.parametrize(
    ("rate", "cost", "depth", "speedup"), [(0.8, 0.05, 8, 3.0921), (0.7, 0.1, 4, 1.9808), (0.9, 0.02, 19, 6.3654)]
)
def test_best_draft_length_equals_the_cards(rate: float, cost: float, depth: int, speedup: float) -> None:
    best = theory.best_depth(rate, cost)
    assert (best.depth, round(best.speedup, 4)) == (depth, speedup)
    assert best.tau == pytest.approx(theory.expected_tau(rate, depth))
    assert theory.speedup(best.tau, depth * cost, 1.0, 0.0, 1.0) == pytest.approx(best.speedup)


@pytest.mark.parametrize(("rate", "wanted"), [(0.6, (4, 3, 2, 1, 1, 0, 0)), (0.8, (7, 6, 5, 3, 2, 1, 1))])
def test_best_length_falls_with_the_batch_size(rate: float, wanted: tuple[int, ...]) -> None:
    """The goodput card's example: a draft step costs 1 + 0.002 B, a target pass 15 + 0.08 B · tokens."""
    found = []
    for batch in (1, 4, 16, 64, 128, 256, 512):
        plain = 15 + 0.08 * batch
        verify = lambda n, b=batch, t=plain: (15 + 0.08 * b * n) / t  # noqa: E731
        found.append(theory.best_depth(rate, (1 + 0.002 * batch) / plain, verify).depth)
    assert tuple(found) == wanted


def test_drafter_that_costs_more_than_it_saves_is_not_used() -> None:
    assert theory.best_depth(0.3, 0.5) == theory.BestDepth(0, 1.0, 1.0)
    assert theory.best_depth([], 0.1).depth == 0
    assert theory.best_depth([0.9, 0.1], 0.05).depth == 1

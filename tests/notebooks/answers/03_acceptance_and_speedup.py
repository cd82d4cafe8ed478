"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_long_enough(right, wrong):
    right(solved)
    right({a: [limit * 1.0005, int(k)] for a, (limit, k) in solved.items()})
    wrong({a: (limit, k - 0.5) for a, (limit, k) in solved.items()})  # not a whole number of tokens
    wrong({a: (limit, k - 1) for a, (limit, k) in solved.items()})
    wrong({a: (limit, k + 1) for a, (limit, k) in solved.items()})
    wrong({a: (a / (1 - a), k) for a, (_, k) in solved.items()})  # without the target's own token


def try_two_policies(right, wrong):
    rates = [f["acceptance_rate"] for f in both]
    right(rates, found_taus)
    right([round(rate, 2) for rate in rates], [round(value, 2) for value in found_taus])
    wrong(rates[::-1], found_taus)
    wrong(rates, [value - 1 for value in found_taus])
    wrong([f["draft_utilisation"] for f in both], found_taus)


def try_noise(right, wrong):
    right(0.72 * 0.28 / 0.005**2)
    right(8100)
    wrong(90)
    wrong(0.72 * 0.28 / 0.005)
    wrong(4 * 0.72 * 0.28 / 0.005**2)

"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_on_paper(right, wrong):
    right(best_on_paper)
    right(lambda alpha, cost: best_depth(alpha, cost).depth)
    wrong(lambda alpha, cost: 4)
    wrong(lambda alpha, cost: best_on_paper(alpha, cost) + 1)
    wrong(lambda alpha, cost: max(range(65), key=lambda K: sum(alpha**i for i in range(K + 1)) / (K * cost + cost)))


def try_worth_it(right, wrong):
    right(lambda alpha, cost: alpha > cost)
    right(lambda alpha, cost: (1 + alpha) / (1 + cost) > 1)
    wrong(lambda alpha, cost: True)
    wrong(lambda alpha, cost: alpha + cost < 1)
    wrong(lambda alpha, cost: alpha > 2 * cost)


def try_interpreter(right, wrong):
    right(interpreted)
    right(lambda text: tuple(interpreted(text)))
    wrong(lambda text: draft([to_renumbered.get(t, t) for t in text], 4, renumbered_model))
    wrong(lambda text: draft(text, 4, renumbered_model))
    wrong(lambda text: [])

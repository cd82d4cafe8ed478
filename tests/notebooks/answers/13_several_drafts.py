"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_bounds(right, wrong):
    right(bound_by_sets)
    right(theory.optimal_acceptance)
    wrong(lambda p, q, k: 1 - (1 - np.minimum(p, q).sum()) ** k)
    wrong(lambda p, q, k: np.minimum(p, q).sum())
    wrong(lambda p, q, k: 1.0)


def try_choices(right, wrong):
    def by_pairs(q, w):
        found = np.zeros(len(q))
        for x, y in itertools.product(range(len(q)), repeat=2):
            found[x if w[x] >= w[y] else y] += q[x] * q[y]
        return found

    right(choice_distribution)
    right(by_pairs)
    wrong(lambda q, w: np.multiply(q, w) / np.dot(q, w))
    wrong(lambda q, w: np.array(q))
    wrong(lambda q, w: by_pairs(q, [-x for x in w]))  # the lighter one


def try_greedy(right, wrong):
    right(by_hand)
    right(round(by_hand, 3))
    wrong(0.3)
    wrong(0.3 + np.minimum(p4, q4).sum())
    wrong(1.0)

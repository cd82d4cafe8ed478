"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_overlap_is(right, wrong):
    right(lambda p, q: np.clip(p - q, 0, None).sum())
    right(lambda p, q: 1 - np.minimum(p, q).sum())
    wrong(lambda p, q: np.abs(p - q).sum())
    wrong(lambda p, q: np.abs(p - q).max())
    wrong(lambda p, q: np.sqrt(((p - q) ** 2).sum()))


def try_certain_draft(right, wrong):
    def without(p, x):
        left = np.where(np.arange(len(p)) == x, 0, p)
        return left / left.sum()

    right(lambda p, x: (p[x], without(p, x)))
    right(lambda p, x: (min(1.0, float(p[x])), list(without(p, x))))
    wrong(lambda p, x: (0.0, p))  # exact, never accepts
    wrong(lambda p, x: (p[x] / 2, (p - p[x] / 2 * (np.arange(len(p)) == x)) / (1 - p[x] / 2)))  # exact, half as often
    wrong(lambda p, x: (p[x], p))
    wrong(lambda p, x: (1.0, without(p, x)))


def try_best_coupling(right, wrong):
    right(best_of_all)
    right(lambda p, q: np.minimum(p, q).sum())
    wrong(lambda p, q: (p * q).sum())
    wrong(lambda p, q: 1.0)
    wrong(lambda p, q: np.sqrt(p * q).sum())

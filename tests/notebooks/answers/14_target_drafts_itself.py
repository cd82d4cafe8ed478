"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_plans(right, wrong):
    right(best_plan)
    right(lambda alpha, layers, whole: list(best_plan(alpha, layers, whole)))
    wrong(lambda alpha, layers, whole: (layers[int(np.argmax(alpha))], 6))
    wrong(lambda alpha, layers, whole: (0, 0))
    wrong(lambda alpha, layers, whole: best_plan(alpha, layers, whole)[::-1])


def try_kept(right, wrong):
    right(even_layers)
    right(lambda n, k: [int(i * (n - 1) / (k - 1)) for i in range(k)])  # rounded down
    right(lambda n, k: [math.floor(i * (n - 1) / (k - 1) + 0.5) for i in range(k)])  # halves rounded up
    right(lambda n, k: [layer for layer in range(n) if 2 * layer not in evenly_skipped(n, k)])
    wrong(lambda n, k: list(range(0, n, n // k))[:k])
    wrong(lambda n, k: list(range(k)))
    wrong(lambda n, k: [*range(k - 1), n - 1])


def try_luck(right, wrong):
    right(draws.mean())
    right(0.76)
    wrong(0.5)
    wrong(0.625)
    wrong(1.0)

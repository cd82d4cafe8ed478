"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_drift(right, wrong):
    right((1.5 / 1.375, 1.0))
    right([1.09, 1])
    wrong((1.0, 1.0))
    wrong((1.0, 1.5 / 1.375))
    wrong((1.375 / 1.5, 1.0))


def try_typical_run(right, wrong):
    right(statistics.median)
    right(lambda seconds: sorted(seconds)[len(seconds) // 2])
    wrong(statistics.mean)
    wrong(max)
    wrong(lambda seconds: sum(seconds[:-1]) / 9)  # leaves out the last run, not the one with the pause


def try_how_many(right, wrong):
    right(144)
    right(150)
    wrong(36)
    wrong(143)
    wrong(1000)

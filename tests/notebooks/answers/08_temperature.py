"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_affordable(right, wrong):
    right(high)
    right(round(high, 2))
    wrong(0.99)
    wrong(0.5)
    wrong(round(high, 2) - 0.05)


def try_simpler(right, wrong):
    prices = [lenient_bargain(x, after=P)[1] for x in (1.0, 0.5)]
    right(prices)
    right(tuple(round(price, 3) for price in prices))
    wrong(prices[::-1])
    wrong((0.0, prices[1]))
    wrong([lenient_bargain(x)[1] for x in (1.0, 0.5)])


def try_enough_tokens(right, wrong):
    right(n)
    right(float(n))
    wrong(1 / 0.056**2)
    wrong(10)
    wrong(100_000)

"""Rounds that stalled: something else had the machine, and what they took says nothing about the method."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from workbench.trace.events import Round

TIMES, SCATTER = 3.0, 5.0
"""A round stalled if it took more than so many times the median of its like, and lies so many deviations above it."""
FEWEST = 5
"""Rounds that a median is taken of; a run with fewer has no stalls that could be told."""


def stalls(rounds: Sequence[Round]) -> dict[int, float]:
    """Which rounds stalled, by their place in the list, with how many times the median of their like they took.

    The like of a round are the rounds by the same method with as many drafted tokens; where these are fewer than
    `FEWEST`, those whose drafts come nearest in size are taken in. Deviation is the median one, scaled as for a normal
    law, so that rounds which scatter anyway are not called stalled, and stalled rounds do not widen the measure.
    """
    found: dict[int, float] = {}
    for method in {r.method for r in rounds}:
        own = [(i, len(r.nodes), r.seconds) for i, r in enumerate(rounds) if r.method == method]
        if len(own) < FEWEST:
            continue
        for size in {n for _, n, _ in own}:
            reach = sorted(abs(n - size) for _, n, _ in own)[FEWEST - 1]
            like = [s for _, n, s in own if abs(n - size) <= reach]
            usual = median(like)
            limit = max(TIMES * usual, usual + SCATTER * 1.4826 * median(abs(s - usual) for s in like))
            found |= {i: s / usual for i, n, s in own if n == size and s > limit}
    return dict(sorted(found.items()))


def calm(rounds: Sequence[Round]) -> list[Round]:
    """The rounds that did not stall."""
    stalled = stalls(rounds)
    return [r for i, r in enumerate(rounds) if i not in stalled]

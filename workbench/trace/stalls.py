"""Detect stalled rounds, which are slow because of other load on the machine, not because of the method."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from workbench.trace.events import Round

TIMES, SCATTER = 3.0, 5.0
"""Two thresholds for stalled rounds. The time of a stalled round is more than `TIMES` times the median time of
comparable rounds, and more than `SCATTER` scaled median absolute deviations above this median."""
FEWEST = 5
"""Minimum number of rounds over which a median time is computed. In a run with fewer rounds, no stalled rounds are
detected."""


def find_stalls(rounds: Sequence[Round]) -> dict[int, float]:
    """Return the stalled rounds of a run: index → time as a multiple of the median time of comparable rounds.

    Comparable rounds have the same method and the same number of drafted tokens. If fewer than `FEWEST` rounds are
    comparable, rounds with the nearest numbers of drafted tokens are added. A round is stalled if its time is more than
    `TIMES` times the median, and more than `SCATTER` deviations above the median. The deviation is the median absolute
    deviation, scaled as for a normal distribution; stalled rounds hardly change it.
    """
    stalled: dict[int, float] = {}
    for method in {r.method for r in rounds}:
        rounds_of_method = [(i, len(r.nodes), r.seconds) for i, r in enumerate(rounds) if r.method == method]
        if len(rounds_of_method) < FEWEST:
            continue
        for size in {n for _, n, _ in rounds_of_method}:
            reach = sorted(abs(n - size) for _, n, _ in rounds_of_method)[FEWEST - 1]
            comparable = [s for _, n, s in rounds_of_method if abs(n - size) <= reach]
            usual = median(comparable)
            limit = max(TIMES * usual, usual + SCATTER * 1.4826 * median(abs(s - usual) for s in comparable))
            stalled |= {i: s / usual for i, n, s in rounds_of_method if n == size and s > limit}
    return dict(sorted(stalled.items()))


def exclude_stalled(rounds: Sequence[Round]) -> list[Round]:
    """Return the rounds of a run that are not stalled (slow because of other load on the machine)."""
    stalled = find_stalls(rounds)
    return [r for i, r in enumerate(rounds) if i not in stalled]

"""Stalled rounds are distinguished from slow ones."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.trace.events import Round
from workbench.trace.nodes import DISCARDED, Nodes
from workbench.trace.stalls import exclude_stalled, find_stalls
from workbench.trace.tokens import BONUS


def rounds(sizes: list[int], seconds: list[float], method: str = "draft-model") -> list[Round]:
    """Return rounds of chains of these sizes with these durations."""
    found = []
    for n, s in zip(sizes, seconds, strict=True):
        half, one = [0.5] * n, list(range(1, n + 1))
        nodes = Nodes(
            one,
            [i - 2 for i in one],
            one,
            one,
            [""] * n,
            half,
            half,
            [None] * n,
            [None] * n,
            [DISCARDED] * n,
            ["d"] * n,
        )
        found.append(Round(0, method, {}, nodes, [], 1, BONUS, [], seconds=s))
    return found


def test_round_much_longer_than_similar_ones_stalled() -> None:
    found = rounds([4] * 9, [1.0, 1.1, 0.9, 12.0, 1.0, 1.05, 3.2, 0.95, 1.0])
    assert list(find_stalls(found)) == [3, 6]
    assert find_stalls(found)[3] == pytest.approx(12.0)
    assert len(exclude_stalled(found)) == 7


def test_larger_drafts_take_longer_without_stalling() -> None:
    """Each round is compared with rounds of the same size."""
    assert not find_stalls(rounds([0] * 8 + [60] * 5, [1.0] * 8 + [9.0] * 5))
    assert not find_stalls(rounds([1, 2, 3, 4, 60], [1.0, 1.1, 1.2, 1.3, 3.0])), (
        "no other of its size: within three times"
    )


def test_scattered_durations_are_not_stalls() -> None:
    """Seeded: durations over a factor of ten, all of the same distribution."""
    seconds = np.random.default_rng(1).lognormal(0, 0.8, 60).tolist()
    assert len(find_stalls(rounds([4] * 60, seconds))) <= 2
    assert not find_stalls(rounds([4] * 8, [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 7])), "7 is more than three times their median"


def test_up_to_half_of_the_rounds_may_stall_and_few_rounds_give_no_result() -> None:
    assert len(find_stalls(rounds([4] * 9, [1.0] * 5 + [30.0] * 4))) == 4
    assert not find_stalls(rounds([4] * 4, [1.0, 1.0, 1.0, 50.0]))
    both = rounds([4] * 12, [1.0] * 12) + rounds([4] * 5, [8.0] * 5, "draft-tree")
    assert not find_stalls(both), "another method is compared with its own rounds"

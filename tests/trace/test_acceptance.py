"""Counts on trees by hand: effects of a sibling, a rejection and a discarded node on each figure."""

from __future__ import annotations

from workbench.trace import metrics
from workbench.trace.events import Round
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED, Nodes

#   0 rejected ─ 3 discarded        1 accepted ─ 4, 5 rejected        2 discarded
TREE = Nodes(
    tokens=[7, 8, 9, 1, 2, 3],
    parents=[-1, -1, -1, 0, 1, 1],
    depth=[1, 1, 1, 2, 2, 2],
    status=[REJECTED, ACCEPTED, DISCARDED, DISCARDED, REJECTED, REJECTED],
)


def test_round_counts_once_per_depth_for_any_number_of_siblings() -> None:
    round_ = Round(0, "draft-tree", {}, TREE, [1], 5, "corrected", [])
    assert metrics.acceptance_by_depth([round_, round_]) == [(1, 2, 2), (2, 2, 0)]
    assert (metrics.count_drafted([round_]), metrics.count_tested([round_]), metrics.count_accepted([round_])) == (
        6,
        4,
        1,
    )
    assert metrics.acceptance_rate([round_]) == 1 / 4

"""What growers have in common: their bounds, and branchings that are written as a word."""

from __future__ import annotations

from typing import Any

MOST_NODES = 96
"""Nodes of one tree."""

WIDTH: dict[str, Any] = {"ge": 1, "le": 8, "doc": "nodes gone on from at each level; by eagle-2 also children of each"}
NODES: dict[str, Any] = {"ge": 1, "le": MOST_NODES, "doc": "nodes verified a round"}
BRANCHING: dict[str, Any] = {
    "choices": ("3-2-1-1", "2-2-2", "4-2-1", "1-1-3-1-1", "4-1-1-1", "8-1-1"),
    "doc": "children of each node, level by level; one each behind that",
}


def widths(branching: str, depth: int) -> list[int]:
    """Children of each node of a level, level by level.

    Args:
        branching: a number for each level, with - between them.
        depth: levels; the last number is followed by ones.

    Raises:
        ValueError: it is no such word.

    Example:
        >>> widths("3-2", 4)
        [3, 2, 1, 1]
    """
    said = [int(part) for part in branching.split("-")]
    if not all(1 <= width <= MOST_NODES for width in said):
        raise ValueError(f"branching={branching!r}: each level has 1 to {MOST_NODES} children.")
    return (said + [1] * depth)[:depth]

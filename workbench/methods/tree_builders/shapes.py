"""Limits of draft trees, and conversion of branchings such as "3-2-1-1" (children per node, level by level)."""

from __future__ import annotations

from typing import Any

MOST_NODES = 96
"""Maximum number of nodes of a draft tree."""

WIDTH: dict[str, Any] = {
    "ge": 1,
    "le": 8,
    "doc": "number of nodes expanded per level; for eagle-2 also the number of children per node",
}
NODES: dict[str, Any] = {"ge": 1, "le": MOST_NODES, "doc": "maximum number of draft nodes verified per round"}
BRANCHING: dict[str, Any] = {
    "choices": ("3-2-1-1", "2-2-2", "4-2-1", "1-1-3-1-1", "4-1-1-1", "8-1-1"),
    "doc": "number of children per node at each level, from the root; 1 at deeper levels",
}


def widths(branching: str, depth: int) -> list[int]:
    """Return the number of children per node for each of a draft tree's `depth` levels.

    Args:
        branching: one number per level, separated by "-". Deeper levels have one child per node.
        depth: number of levels.

    Raises:
        ValueError: a level has no children, or more than `MOST_NODES` children.

    Example:
        >>> widths("3-2", 4)
        [3, 2, 1, 1]
    """
    counts = [int(part) for part in branching.split("-")]
    if not all(1 <= width <= MOST_NODES for width in counts):
        raise ValueError(f"branching={branching!r}: each level has 1 to {MOST_NODES} children.")
    return (counts + [1] * depth)[:depth]

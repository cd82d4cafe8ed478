"""Static draft trees: choose which of the drafter's ranked tokens to draft, from acceptance probabilities by rank."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def best_paths(accuracy: Sequence[Sequence[float]], n_nodes: int, depth: int) -> list[tuple[int, ...]]:
    """Return the nodes of a static draft tree: the `n_nodes` paths of ranks that are most likely to be correct.

    Parents come before children, and better siblings first.

    Args:
        accuracy: `accuracy[d][r]` is the probability that rank r is correct at depth d + 1; the last row serves all
            deeper levels.
        n_nodes: size of the tree.
        depth: maximum number of levels.

    Returns:
        Paths of ranks: (0,) is the most likely first token, (0, 1) the second choice after it.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, §2.3.3: add the node with the largest product of accuracies
    whose parent is already in the tree. Products fall along a path, so a best-first search gives the same tree.

    Example:
        >>> best_paths([[0.6, 0.2], [0.5, 0.1]], n_nodes=3, depth=2)
        [(0,), (0, 0), (1,)]
    """
    if not accuracy or depth < 1:
        return []
    heap: list[tuple[float, tuple[int, ...]]] = [(-accuracy[0][r], (r,)) for r in range(len(accuracy[0]))]
    heapq.heapify(heap)
    chosen: list[tuple[int, ...]] = []
    while heap and len(chosen) < n_nodes:
        value, path = heapq.heappop(heap)
        chosen.append(path)
        if len(path) < depth:
            row = accuracy[min(len(path), len(accuracy) - 1)]
            for r, prob in enumerate(row):
                heapq.heappush(heap, (value * prob, (*path, r)))
    return chosen


def parents_of(paths: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the parent index of each node of a static draft tree, given as a path of ranks; −1 at depth 1.

    Example:
        >>> parents_of([(0,), (0, 0), (1,)])
        [-1, 0, -1]
    """
    index = {path: i for i, path in enumerate(paths)}
    return [index[path[:-1]] if len(path) > 1 else -1 for path in paths]

"""Trees compared with naive walks."""

from __future__ import annotations

import model_helpers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import WorkbenchError
from workbench.core.static_trees import best_paths, parents_of
from workbench.core.tree import DraftTree, Sampling, children_of, depths_of, tree_attention_mask


@st.composite
def forests(draw: st.DrawFn, most: int = 24) -> list[int]:
    """Parent lists: each parent is −1 or an earlier node."""
    n = draw(st.integers(0, most))
    return [draw(st.integers(-1, i - 1)) for i in range(n)]


@settings(deadline=None)
@given(forests())
def test_ancestors_are_found_by_walking_up(parents: list[int]) -> None:
    depth = max(depths_of(parents), default=0)
    naive = [[j in model_helpers.path_to(parents, i) for j in range(len(parents))] for i in range(len(parents))]
    tensor = torch.tensor(parents, dtype=torch.long)
    for bound in (depth, depth + 1, depth + 7):
        assert tree_attention_mask(tensor, bound).tolist() == naive


@settings(deadline=None)
@given(forests())
def test_depths_and_children_agree_with_a_walk(parents: list[int]) -> None:
    assert depths_of(parents) == [len(model_helpers.path_to(parents, i)) for i in range(len(parents))]
    children = children_of(parents)
    assert len(children) == len(parents) + 1
    assert sorted(node for row in children for node in row) == list(range(len(parents)))
    assert all(parents[node] == place - 1 for place, row in enumerate(children) for node in row)
    assert all(row == sorted(row) for row in children)


@settings(deadline=None)
@given(forests())
def test_tree_has_depth_and_fanout(parents: list[int]) -> None:
    tree = DraftTree.from_parents([7] * len(parents), parents)
    assert len(tree) == len(parents)
    assert tree.depth == max(depths_of(parents), default=0)
    assert tree.fanout == max(map(len, children_of(parents)))
    assert tree.sampling is Sampling.DETERMINISTIC


@pytest.mark.parametrize("parents", [[0], [-1, 2, 1], [-2], [-1, 1]])
def test_a_parent_after_its_child_is_an_error(parents: list[int]) -> None:
    with pytest.raises(WorkbenchError, match="must come before"):
        DraftTree.from_parents([1] * len(parents), parents)


def test_tokens_and_parents_must_have_one_length() -> None:
    with pytest.raises(WorkbenchError, match="2 tokens needs 2 parents, not 1"):
        DraftTree.from_parents([1, 2], [-1])


def test_a_chain_and_nothing() -> None:
    assert DraftTree.chain([4, 5, 6]).parents.tolist() == [-1, 0, 1]
    assert len(DraftTree.empty()) == DraftTree.empty().depth == DraftTree.empty().fanout == 0


chances = st.lists(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=5), min_size=1, max_size=4)


@settings(deadline=None)
@given(chances, st.integers(1, 30), st.integers(1, 5))
def test_best_paths_are_the_most_likely_of_all(accuracy: list[list[float]], n: int, depth: int) -> None:
    def value(path: tuple[int, ...]) -> float:
        product = 1.0
        for d, rank in enumerate(path):
            product *= accuracy[min(d, len(accuracy) - 1)][rank]
        return product

    everything: list[tuple[int, ...]] = []
    level: list[tuple[int, ...]] = [()]
    for d in range(depth):
        width = len(accuracy[min(d, len(accuracy) - 1)])
        level = [(*path, r) for path in level for r in range(width)]
        everything += level
    paths = best_paths(accuracy, n, depth)
    assert len(paths) == len(set(paths)) == min(n, len(everything))
    wanted = sorted(map(value, everything), reverse=True)[: len(paths)]
    assert sorted(map(value, paths), reverse=True) == pytest.approx(wanted)
    assert all(path[:-1] in paths[:i] for i, path in enumerate(paths) if len(path) > 1)  # parents come first
    parents = parents_of(paths)
    assert all(p == (paths.index(path[:-1]) if len(path) > 1 else -1) for p, path in zip(parents, paths, strict=True))

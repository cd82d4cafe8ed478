"""Fixed tree shapes: the token ranks to draft at each node are chosen before any distribution is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, product
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.static_trees import best_paths, parents_of
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree, drafter_ranking
from workbench.kernels.distributions import TOP
from workbench.methods.tree_builders.shapes import BRANCHING, MOST_NODES, NODES, widths

Path = tuple[int, ...]
"""Path of token ranks from the root to a node: (0, 1) is the second likeliest token after the likeliest one."""

ASSUMED_RANK_PROBS = ((0.44, 0.13, 0.07, 0.05, 0.04, 0.03, 0.02, 0.02),)
"""Assumed acceptance probabilities of token ranks at every draft level. They only affect the shape of draft trees."""

PUBLISHED: dict[str, dict[Path, int]] = {
    "medusa-63": {
        (): 10, (0,): 10, (1,): 7, (2,): 3, (3,): 2, (4,): 1, (5,): 1, (6,): 1, (7,): 1, (8,): 1, (9,): 1,
        (0, 0): 10, (0, 1): 3, (0, 2): 2, (0, 3): 1, (0, 4): 1, (0, 5): 1, (0, 6): 1, (0, 7): 1, (1, 0): 2, (2, 0): 1,
        (0, 0, 0): 2,
    },
    "eagle-25": {
        (): 4, (0,): 3, (1,): 2, (2,): 2, (3,): 1, (0, 0): 3, (0, 1): 2, (0, 2): 2, (1, 0): 1, (0, 0, 0): 3,
        (0, 0, 0, 0): 2,
    },
}  # fmt: skip
"""Fixed draft trees from the released code of Medusa and EAGLE, as the number of children of each inner node.

Sources: Cai et al. 2024, Medusa, arXiv:2401.10774, §2.3.3, `mc_sim_7b_63` of `medusa_choices.py` (63 nodes); Li et al.
2024, EAGLE, arXiv:2401.15077, §4.2, `mc_sim_7b_63` of `choices.py` (25 nodes, in spite of its name)."""

FIXED = TreeBuilderRule(
    "template",
    "Fixed shape",
    "The tree's shape, and the rank of the drafter's token at this node, were fixed before any distribution was known.",
)
BEST = replace(
    FIXED,
    says=(
        "Among all trees of its size, this tree has the most expected accepted tokens, given how often the "
        "drafter's token of each rank is right, as measured on held-out text or assumed."
    ),
    before="probability that all drafts on the path are accepted, estimated from their ranks",
)


@dataclass(frozen=True)
class Template(TreeBuilder):
    """Draft a tree of a fixed shape, filled with the drafter's likeliest tokens at each of its nodes.

    Attributes:
        shape: "best": the tree of `nodes` nodes with the most expected accepted tokens. The acceptance probabilities of
            ranks are measured on held-out text, or assumed if they were not measured. "medusa-63", "eagle-25": the
            published trees with all of their nodes. "even": a tree with the children of `branching`.
        nodes: maximum number of nodes of a "best" or an "even" tree.
        branching: number of children per node of an "even" tree, level by level.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, §2.3.3; Li et al. 2024, EAGLE, arXiv:2401.15077, §4.2.
    """

    name: ClassVar[str] = "template"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.DETERMINISTIC
    has_fixed_shape: ClassVar[bool] = True
    shape: str = param("best", choices=("best", *PUBLISHED, "even"), doc="shape of the fixed tree")
    nodes: int = param(12, **NODES)
    branching: str = param("3-2-1-1", **BRANCHING)

    def paths(self, plan: Plan, rank_probs: Sequence[Sequence[float]] = ()) -> list[Path]:
        """Return the nodes of the fixed tree as paths of token ranks, parents before children, and siblings by rank.

        Args:
            plan: maximum depth and maximum number of nodes of the tree.
            rank_probs: for each level, the probability that the token of each rank is right. The last level also
                applies to all deeper levels. Empty: assumed probabilities.
        """
        depth, most = plan.depth, plan.limit_nodes(self.nodes)
        if self.shape == "best":
            return best_paths(rank_probs or ASSUMED_RANK_PROBS, most, depth)
        if self.shape == "even":
            fan = widths(self.branching, depth)
            levels = (product(*map(range, fan[: level + 1])) for level in range(depth))
            return [path for level in levels for path in islice(level, most)][:most]
        children = PUBLISHED[self.shape]
        nodes = [(*above, rank) for above, n in children.items() for rank in range(n) if len(above) < depth]
        return sorted(nodes, key=lambda path: (len(path), path))[: plan.limit_nodes(MOST_NODES)]

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Choose the shape of the draft tree, then fill it with the drafter's likeliest tokens."""
        grown = (
            TreeExplanation((BEST,), before=tree.rank_probs or ASSUMED_RANK_PROBS)
            if self.shape == "best"
            else TreeExplanation((FIXED,))
        )
        return fill_paths(tree, known_paths(self, plan.depth, plan.nodes, tuple(map(tuple, tree.rank_probs))), grown)


def fill_paths(growth: PartialTree, paths: tuple[Path, ...], grown: TreeExplanation) -> DraftTree:
    """Fill a tree of fixed shape with the drafter's tokens level by level, and return the draft tree.

    Args:
        growth: empty partial tree, from which the draft tree is built.
        paths: nodes of the shape as paths of token ranks.
        grown: explanation of the nodes for the trace.
    """
    candidates = [growth.root.best(max(TOP, max(map(max, paths)) + 1))]
    n_ranks = candidates[0][1].shape[1]  # a small vocabulary has fewer ranks
    shape = build_shape(paths, n_ranks, growth.device)
    draft_logq: list[Tensor] = []
    for level, (below, rank, inner) in enumerate(shape.levels):
        logq, tokens = candidates[-1]
        growth.add(tokens[below, rank], below if level else None)
        draft_logq.append(logq[below, rank])
        if level + 1 == len(shape.levels) or not growth.should_continue(distributions := growth.expand(inner)):
            break
        candidates.append(distributions.best(max(TOP, shape.ranks[level + 1])))
    if len(draft_logq) < len(shape.levels):  # the policy stopped drafting early
        shape = build_shape(tuple(path for path in paths if len(path) <= len(draft_logq)), n_ranks, growth.device)
    growth.close(shape.order)
    return DraftTree(
        tokens=torch.cat(growth.tokens)[shape.order],
        parents=shape.parents,
        logq=torch.zeros(len(shape.order), device=growth.device),
        sampling=Sampling.DETERMINISTIC,
        depth=len(draft_logq),
        fanout=shape.fanout,
        source=growth.source,
        score=torch.cat(draft_logq)[shape.order].exp(),
        explanation=grown,
        ranking=lambda: drafter_ranking(candidates, growth.expanded, shape.order),
    )


def template_of(plan: Plan) -> Template:
    """Return the planned tree builder if it is a `Template`; otherwise the default, the best tree of 12 nodes."""
    return plan.tree_builder if isinstance(plan.tree_builder, Template) else Template()


@lru_cache(maxsize=256)
def known_paths(
    template: Template, depth: int, nodes: int | None = None, rank_probs: tuple[tuple[float, ...], ...] = ()
) -> tuple[Path, ...]:
    """Return the nodes of a template's tree as paths of token ranks. The result is cached for later rounds.

    Args:
        template: fixed shape.
        depth: number of levels.
        nodes: maximum number of nodes; None: the number of nodes that the template defines.
        rank_probs: for each level, the probability that the token of each rank is right; empty: assumed probabilities.
    """
    return tuple(template.paths(Plan(depth, nodes=nodes), rank_probs))


@dataclass(frozen=True, slots=True)
class Shape:
    """Fixed tree shape as tensors, which is filled with tokens level by level.

    Attributes:
        levels: three int64 tensors for each level of w nodes. The first two give, for each node, the index of its
            parent among the expanded nodes of the level above [w], and its rank among that parent's tokens [w]. The
            third tensor has the indices of the nodes that have children.
        ranks: for each level, the number of likeliest tokens that the drafter must provide after each node.
        order: for each path, the index of its node if nodes are numbered level by level, int64 [N].
        parents: index of each node's parent, in the order of the paths; −1 below the root, int64 [N].
        fanout: maximum number of children of a node.
    """

    levels: list[tuple[Int[Tensor, " _"], ...]]
    ranks: list[int]
    order: Int[Tensor, " N"]
    parents: Int[Tensor, " N"]
    fanout: int


@lru_cache(maxsize=256)
def build_shape(paths: tuple[Path, ...], n_ranks: int, device: torch.device) -> Shape:
    """Return the tensor form of a fixed tree that is given as paths of token ranks.

    Args:
        paths: nodes as paths of token ranks. Paths that contain a rank of `n_ranks` or more are omitted.
        n_ranks: number of ranks that the draft vocabulary allows.
        device: device of the tensors.
    """
    paths = tuple(path for path in paths if max(path) < n_ranks)
    parents = parents_of(paths)
    by_level = sorted(paths, key=len)  # stable
    inner = {paths[parent] for parent in parents if parent >= 0}
    levels, ranks = list[tuple[Tensor, ...]](), list[int]()
    above: list[Path] = [()]
    for length in range(1, len(by_level[-1]) + 1):
        level = [path for path in by_level if len(path) == length]
        places = [i for i, path in enumerate(level) if path in inner]
        columns = [above.index(path[:-1]) for path in level], [path[-1] for path in level], places
        levels.append(tuple(torch.tensor(numbers, dtype=torch.long, device=device) for numbers in columns))
        ranks.append(max(path[-1] for path in level) + 1)
        above = [level[i] for i in places]
    number = {path: i for i, path in enumerate(by_level)}
    return Shape(
        levels, ranks, torch.tensor([number[path] for path in paths], device=device),
        torch.tensor(parents, device=device), max(Counter(parents).values()),
    )  # fmt: skip

"""STAND's tree builder: the shape of the draft tree follows the ranks that were accepted most often so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from workbench.core.params import param
from workbench.core.static_trees import best_paths
from workbench.core.tree import DraftTree, Sampling, children_of
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Drafter, Plan, RoundFeedback, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine.request import Sequence
from workbench.methods.tree_builders.sequoia import draw
from workbench.methods.tree_builders.shapes import NODES
from workbench.methods.tree_builders.template import ASSUMED_RANK_PROBS, Path, fill_paths
from workbench.models.loading import Models

PRIOR_TESTS = 5.0
"""Weight of the initially assumed acceptance probabilities of token ranks, as a number of acceptance tests."""
REPLAN_INTERVAL = 16
"""Number of rounds after which the shape of the draft tree is planned again."""

DRIVEN = TreeBuilderRule(
    "data-driven",
    "Tree of the most often accepted ranks",
    "Among all trees of its size, this tree has the most expected accepted tokens, given how often the draft of each "
    "rank was accepted at each level in this run. The node's token was drawn without replacement, by Gumbel noise; "
    "at temperature 0 it is the likeliest token.",
    before="probability that all drafts on the path are accepted, estimated from their ranks",
)


@dataclass(slots=True)
class Counts:
    """State of STAND's data-driven tree builder in one run: acceptance counts and the current tree shape.

    Attributes:
        accepted: number of accepted draft tokens by tree level and token rank.
        tested: number of tested draft tokens by level and rank. A token is tested if its parent is the root or was
            accepted.
        rounds: number of rounds so far.
        current_tree: the current tree shape as a tuple: (depth, nodes) of the plan for which it was built; value of
            `rounds` at that time; acceptance probabilities by level and rank; nodes as paths of token ranks.
            None before the first round.
    """

    accepted: list[list[float]] = field(default_factory=list[list[float]])
    tested: list[list[float]] = field(default_factory=list[list[float]])
    rounds: int = 0
    current_tree: tuple[tuple[int, int], int, list[tuple[float, ...]], tuple[Path, ...]] | None = None

    def rank_probs(self, assumed: tuple[float, ...]) -> list[tuple[float, ...]]:
        """Return the estimated acceptance probability of each token rank at each draft level: one tuple per level.

        The last tuple also applies to all deeper levels.

        Args:
            assumed: acceptance probability of each rank that is assumed before any counts.
        """
        levels = zip(self.accepted, self.tested, strict=True)
        probs = [
            tuple(
                (k + PRIOR_TESTS * a) / (n + PRIOR_TESTS) for k, n, a in zip(n_accepted, n_tested, assumed, strict=True)
            )
            for n_accepted, n_tested in levels
        ]
        return probs or [assumed]


@dataclass(frozen=True)
class DataDriven(TreeBuilder):
    """Draft a tree of the token ranks that were accepted most often, filled with tokens drawn without replacement.

    The acceptance probability of each rank at each level starts at an assumed value, and is updated by counts during
    the run. The tree of `nodes` nodes with the largest sum of path probabilities is drafted; it is planned again every
    16 rounds. Siblings are the tokens with the largest log q + Gumbel noise, descending, with the drafter's
    distribution q cut to its 8 likeliest tokens. They are therefore draws without replacement, and their number is
    fixed before the first draw.

    Attributes:
        nodes: maximum number of nodes; the plan's depth bounds the levels.

    Source: Song et al. 2025, STAND, arXiv:2506.04708, §3: the 80 nodes of a large tree that were accepted most often.
    """

    name: ClassVar[str] = "data-driven"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.FIXED_NUMBER
    nodes: int = param(12, **NODES)

    def init_state(self, drafter: Drafter, models: Models) -> Counts:
        """Return the tree builder's initial state, without acceptance counts."""
        return Counts()

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Choose the draft tree's shape, then fill it with the likeliest tokens if greedy, otherwise with samples."""
        rank_probs, paths = self.shape(tree, plan)
        grown = TreeExplanation((DRIVEN,), before=rank_probs)
        if tree.sequence.sampling.greedy:
            return fill_paths(tree, paths, grown)
        return draw(tree, paths, grown, len(ASSUMED_RANK_PROBS[0]))

    def shape(self, growth: PartialTree, plan: Plan) -> tuple[list[tuple[float, ...]], tuple[Path, ...]]:
        """Return the shape of the draft tree. A new one is planned if the budget changed or 16 rounds have passed.

        Args:
            growth: partial tree of the sequence.
            plan: plan of the round, with the maximum depth and number of nodes.

        Returns:
            Acceptance probabilities by level and rank, and the nodes as paths of token ranks.
        """
        state = (
            growth.sequence.state.tree_builder if isinstance(growth.sequence.state.tree_builder, Counts) else Counts()
        )
        budget = plan.depth, plan.limit_nodes(self.nodes)
        if (
            state.current_tree is None
            or state.current_tree[0] != budget
            or state.rounds >= state.current_tree[1] + REPLAN_INTERVAL
        ):
            rank_probs = state.rank_probs(ASSUMED_RANK_PROBS[0])
            state.current_tree = budget, state.rounds, rank_probs, tuple(best_paths(rank_probs, budget[1], budget[0]))
        return state.current_tree[2:]

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Count the round's tested and accepted draft tokens by level and rank.

        Draft tokens are tested at the root and below accepted nodes.
        """
        state: Counts = sequence.state.tree_builder
        state.rounds += 1
        children, path = children_of(feedback.parents), feedback.result.path
        for level, (parent, accepted_node) in enumerate(zip((-1, *path), (*path, None), strict=True)):
            for counts in (state.accepted, state.tested):
                if level == len(counts):
                    counts.append([0.0] * len(ASSUMED_RANK_PROBS[0]))
            for rank, node in enumerate(children[parent + 1][: len(ASSUMED_RANK_PROBS[0])]):
                state.tested[level][rank] += 1
                state.accepted[level][rank] += node == accepted_node

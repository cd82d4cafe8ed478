"""Parallel prompt decoding's tree builder: choose the nodes of a tree, and the number of probes after each node.

A probe (in the paper, a prompt token) is an extra position in the target's forward pass. It is never accepted, and its
output drafts a token of the next round. The next round can draft as many levels as there were probes after the position
where this round ended. So rounds form a Markov chain over states s = 0 … m, where s is the number of levels that can be
drafted. A separate tree is planned for each state.
"""

from __future__ import annotations

import heapq
from collections import abc
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from workbench.core.params import param
from workbench.core.static_trees import best_paths, parents_of
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Drafter, Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine.request import Sequence
from workbench.methods.tree_builders.shapes import MOST_NODES
from workbench.methods.tree_builders.template import ASSUMED_RANK_PROBS, Path, fill_paths
from workbench.models.loading import Models
from workbench.models.pass_costs import Costs, costs_of

MAX_ITERATIONS = 20
"""Maximum number of policy iterations in the planning of trees; usually the result no longer changes after four."""

SPARSE = TreeBuilderRule(
    "dynamic-sparse",
    "Draft tree, planned together with the extra positions that predict the next draft",
    "This tree, with probe positions (which predict the next draft) after its nodes, has the most expected tokens per "
    "second over this and the following rounds, given how often guesses of each rank were right on held-out text, and "
    "the measured cost of passes.",
    "probability that all drafts on the path are accepted, estimated from their ranks",
)


@dataclass(frozen=True, slots=True)
class Sparse:
    """Planned draft tree for one state of the Markov chain over rounds, that is, for one maximum number of levels.

    Attributes:
        paths: nodes as paths of token ranks; parents before children, likelier nodes before less likely ones.
        probe_counts: number of probes after the root and after each node.
        tokens: expected number of tokens per round, including the target's own token.
        next: probability of each state of the Markov chain in the next round.
        size: number of tokens in the target's forward pass: root, nodes and probes.
    """

    paths: tuple[Path, ...]
    probe_counts: tuple[int, ...]
    tokens: float
    next: tuple[float, ...]

    @property
    def size(self) -> int:
        return len(self.probe_counts) + sum(self.probe_counts)


@dataclass(frozen=True, slots=True)
class StateTrees:
    """Planned draft trees for all states of the Markov chain over rounds. In state s, a round can draft s levels.

    Attributes:
        states: tree for each state s = 0 … m.
        share: long-run share of rounds in each state.
        tokens: long-run mean number of tokens per round.
        seconds: long-run mean seconds per target pass; 1 if costs are not used.
    """

    states: tuple[Sparse, ...]
    share: tuple[float, ...]
    tokens: float
    seconds: float


@dataclass(slots=True)
class Sizing:
    """State of the dynamic-sparse tree builder for one sequence.

    Attributes:
        costs: measured costs of forward passes on this machine, in the dtype of the models.
        now: planned tree of the last draft; None before the first round.
    """

    costs: Costs
    now: Sparse | None = None


@dataclass(frozen=True)
class DynamicSparse(TreeBuilder):
    """Draft a planned tree with one level per probe after the last accepted position, and plan this round's probes.

    A tree's expected tokens are 1 + Σ over its nodes of Π P[level, rank] along the path, where P is the acceptance
    probability of a rank at a level. A probe is an extra position of the target's pass, whose output drafts a token.
    The next round can draft as many levels as there are probes after the node where this round ends. The trees maximise
    the long-run tokens per second. For this, the cost of target passes is measured once on this machine in the models'
    dtype, and cached.

    Attributes:
        places: maximum number of nodes and probes per pass.
        counts_time: whether to maximise tokens per second with the measured costs. Otherwise tokens per round are
            maximised, with target passes of maximum size.

    Source: Chen et al. 2024, Hardware-aware parallel prompt decoding, arXiv:2405.18628, §4. In the paper the passes of
    all states have one size, and several sizes are tried. Here policy iteration (Howard 1960) gives each state its own
    size.
    """

    name: ClassVar[str] = "dynamic-sparse"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.DETERMINISTIC
    places: int = param(
        24,
        ge=2,
        le=MOST_NODES,
        doc=("maximum number of draft nodes plus probe positions (which predict the next draft) per pass"),
    )
    counts_time: bool = param(
        True, doc="choose the tree size by measured forward-pass costs; otherwise use the maximum size"
    )

    def init_state(self, drafter: Drafter, models: Models) -> Sizing:
        """Return the tree builder's state with the costs of forward passes, measured in the first run on a machine."""
        return Sizing(costs_of(models))

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Return the planned draft tree for `plan.depth` levels, filled with the drafter's likeliest tokens."""
        sequence, most = tree.sequence, max(2, plan.limit_nodes(self.places))
        ranks = sequence.models.target.vocab_size
        rank_probs = tuple(tuple(level[:ranks]) for level in tree.rank_probs or ASSUMED_RANK_PROBS)
        levels = max(plan.depth, sequence.drafter.max_levels(sequence) or 0)
        state = sequence.state.tree_builder if isinstance(sequence.state.tree_builder, Sizing) else None
        costs = None if state is None else tuple(state.costs.verify_s(n) for n in range(1, most + 2))
        machine = plan_state_trees(rank_probs, levels, most, costs if self.counts_time else None)
        draft = machine.states[plan.depth]
        sequence.report.signals["expected tokens"] = machine.tokens
        if state is not None:
            if state.now is None:
                sequence.report.notes.append(planning_note(machine))
            state.now = draft
        return fill_paths(tree, draft.paths, TreeExplanation((SPARSE,), before=rank_probs))


def planned_probe_counts(sequence: Sequence, tree: DraftTree) -> tuple[int, ...] | None:
    """Return the planned number of probes after the root and after each node of the draft `tree`.

    A probe is an extra position of the target's forward pass, whose output drafts a token of the next round.

    Return None if another tree builder built the draft.
    """
    state = sequence.state.tree_builder
    if (
        not isinstance(state, Sizing)
        or state.now is None
        or sequence.state.plan.tree_builder != sequence.configured_method.tree_builder
    ):
        return None
    root, *n_probes = state.now.probe_counts
    levels = zip(state.now.paths, n_probes, strict=True)
    counts = (root, *(n for path, n in levels if len(path) <= tree.depth))  # the policy may have stopped drafting early
    return counts if len(counts) == len(tree) + 1 else None


@lru_cache(maxsize=64)
def plan_state_trees(
    rank_probs: tuple[tuple[float, ...], ...], levels: int, most: int, costs: tuple[float, ...] | None = None
) -> StateTrees:
    """Return draft trees, one for each number of levels, that together give the most tokens per second in the long run.

    Each tree also defines the number of probes, extra positions whose outputs draft the next round's tokens.

    Args:
        rank_probs: acceptance probability P[level, rank]; the last level also applies to all deeper levels.
        levels: maximum number m of probes after one position.
        most: maximum number of nodes and probes per pass, at least 2.
        costs: seconds of a pass over 1 … most + 1 tokens, including the root; None: all passes cost the same.
    """
    pass_s = np.array(costs or [1.0] * (most + 1))
    orders = [best_paths(rank_probs, most, state) for state in range(levels + 1)]
    values, rate = np.arange(levels + 1.0), 0.0  # start: a level is worth one token
    trees = tuple[Sparse, ...]()
    for _ in range(MAX_ITERATIONS):
        new_trees = tuple(_best(order, rank_probs, values, rate * pass_s) for order in orders)
        if new_trees == trees:
            break
        trees = new_trees
        transitions = np.array([state.next for state in trees])
        tokens, tree_s = np.array([s.tokens for s in trees]), np.array([pass_s[s.size - 1] for s in trees])
        share = _stationary_shares(transitions)
        rate = float(share @ tokens / (share @ tree_s))
        values = np.linalg.lstsq(np.eye(levels + 1) - transitions, tokens - rate * tree_s, rcond=None)[0]
    share = _stationary_shares(np.array([state.next for state in trees]))
    tokens = sum(s.tokens * part for s, part in zip(trees, share, strict=True))
    tree_s = sum(pass_s[s.size - 1] * part for s, part in zip(trees, share, strict=True))
    return StateTrees(trees, tuple(share.tolist()), float(tokens), float(tree_s))


def _best(
    order: abc.Sequence[Path], rank_probs: abc.Sequence[abc.Sequence[float]], state_values: Float64[np.ndarray, " S"],
    pass_costs: Float64[np.ndarray, " M"],
) -> Sparse:  # fmt: skip
    """Return the best draft tree for one number of levels, with the best number of probes after each node.

    A probe is an extra position of the pass that predicts a token of the next draft.

    Args:
        order: candidate nodes as paths of token ranks, the likeliest first; every prefix is a tree. Empty: no level can
            be drafted.
        rank_probs: acceptance probabilities of ranks, by level.
        state_values: relative value of reaching each of the S states in the next round, in tokens.
        pass_costs: cost of a target pass over 1 … M tokens, as the number of tokens that the method emits in that time.
    """
    most, best, value = len(pass_costs) - 1, None, -np.inf
    reach_probs = [1.0]
    for path, parent in zip(order, parents_of(order), strict=True):
        reach_probs.append(reach_probs[parent + 1] * rank_probs[min(len(path), len(rank_probs)) - 1][path[-1]])
    for n in range(1, len(order) + 1) if order else [0]:
        ends = np.array(reach_probs[: n + 1])  # probability that the accepted path ends at each node
        for node, parent in enumerate(parents_of(order[:n])):
            ends[parent + 1] -= reach_probs[node + 1]
        ends = ends.clip(0.0)
        tokens, n_probes = sum(reach_probs[: n + 1]), [0] * (n + 1)
        gain = float(ends.sum() * state_values[0])
        offers = [(-end * (state_values[1] - state_values[0]), place) for place, end in enumerate(ends)]
        heapq.heapify(offers)
        for size in range(n + 1, most + 2):
            # a pass without nodes needs a probe
            if (n or size > 1) and (candidate := tokens + gain - pass_costs[size - 1]) > value + 1e-12:
                value, best = candidate, (n, tuple(n_probes), tokens, ends)
            if not offers or size > most:
                break
            loss, place = heapq.heappop(offers)
            gain, n_probes[place] = gain - loss, n_probes[place] + 1
            if (k := n_probes[place]) < len(state_values) - 1:
                heapq.heappush(offers, (-ends[place] * (state_values[k + 1] - state_values[k]), place))
    assert best is not None
    n, n_probes, tokens, ends = best
    following = np.bincount(n_probes, ends, len(state_values))
    return Sparse(tuple(order[:n]), n_probes, float(tokens), tuple((following / following.sum()).tolist()))


def _stationary_shares(transitions: Float64[np.ndarray, "S S"]) -> Float64[np.ndarray, " S"]:
    """Return the long-run share of rounds in each of S states of a Markov chain that starts in state 0.

    Args:
        transitions: probability of each next state (column) after each state (row).
    """
    lazy = (transitions + np.eye(len(transitions))) / 2  # the same stationary distribution, and no cycles
    shares = np.linalg.matrix_power(lazy, 1 << 16)[0]
    return shares / shares.sum()


def planning_note(state_trees: StateTrees) -> str:
    """Return a note for the trace: for each number of draft levels, the size of the tree and its share of rounds."""
    trees = ", ".join(
        f"{s} {'level' if s == 1 else 'levels'}: {len(tree.paths)} nodes and {sum(tree.probe_counts)} probe "
        "positions, in "
        f"{state_trees.share[s]:.0%} of rounds"
        for s, tree in enumerate(state_trees.states)
    )
    expected = f"{state_trees.tokens:.2f} tokens expected per round."
    return f"Trees planned by dynamic-sparse, by draft levels: {trees}; {expected}"

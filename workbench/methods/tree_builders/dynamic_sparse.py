"""Parallel prompt decoding's tree builder: choose the nodes and the probe positions after each of them.

A probe, in the paper a prompt token, costs a position in the target's pass as a node does, and its gain comes in the
next round only: that round can draft as many levels as there were probes where this one ended. So rounds are a chain of
states, s = 0 … m levels that can be drafted, and each state has its own tree.

"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from workbench.core.grown import Grown, GrowthRule
from workbench.core.params import param
from workbench.core.templates import best_paths, parents_of
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.draft_plan import Plan
from workbench.decoders.draft_verify.parts import Drafter, TreeBuilder
from workbench.decoders.draft_verify.tree_building import Growth
from workbench.engine.request import Row
from workbench.methods.tree_builders.shapes import MOST_NODES
from workbench.methods.tree_builders.template import ASSUMED, Path, filled
from workbench.models.loading import Models
from workbench.models.pass_costs import Costs, costs_of

TURNS = 20
"""Most policy iterations; usually nothing changes after four."""

SPARSE = GrowthRule(
    "dynamic-sparse",
    "Planned with its probe positions",
    "This tree, with probe positions after its nodes, has the most expected tokens per second over this round and the "
    "following ones, by how often each rank was right on held-out text and by the measured cost of passes.",
    "probability that its ranks are right",
)


@dataclass(frozen=True, slots=True)
class Sparse:
    """Draft of one state.

    Attributes:
        paths: of ranks; parents before children, likelier ones first.
        behind: number of probes after the root and after each node.
        tokens: expected tokens per round, including the target's own.
        next: probability of each state in the next round.
        size: of the pass, in tokens.
    """

    paths: tuple[Path, ...]
    behind: tuple[int, ...]
    tokens: float
    next: tuple[float, ...]

    @property
    def size(self) -> int:
        return len(self.behind) + sum(self.behind)


@dataclass(frozen=True, slots=True)
class Machine:
    """Trees of all states.

    Attributes:
        states: s = 0 … m.
        share: long-run share of rounds in each state.
        tokens: long-run tokens per round.
        seconds: long-run seconds per pass; rounds if costs are not used.
    """

    states: tuple[Sparse, ...]
    share: tuple[float, ...]
    tokens: float
    seconds: float


@dataclass(slots=True)
class Sizing:
    """State of the tree builder for a sequence.

    Attributes:
        costs: of passes on this machine, in this dtype.
        now: the state drafted last.
    """

    costs: Costs
    now: Sparse | None = None


@dataclass(frozen=True)
class DynamicSparse(TreeBuilder):
    """Build the best tree for each number of levels that can be drafted, with its prompt tokens.

    A tree's expected tokens are Σ over its nodes of Π P[level, rank] along the path, plus 1; the number of levels in
    the next round depends on where this one is likely to end. The trees maximise the long-run tokens per second, with
    the cost of target passes measured once on this machine in this dtype and cached.

    Attributes:
        places: most nodes and probes per pass.
        counts_time: use these costs; otherwise maximise tokens per round, with passes of maximum size.

    Source: Chen et al. 2024, Hardware-aware parallel prompt decoding, arXiv:2405.18628, §4. There all states' passes
    have one size, which is then swept; here each state has its own size, found by policy iteration (Howard 1960).
    """

    name: ClassVar[str] = "dynamic-sparse"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.DETERMINISTIC
    places: int = param(24, ge=2, le=MOST_NODES, doc="maximum number of draft nodes and probe positions per pass")
    counts_time: bool = param(
        True, doc="choose the tree size by measured forward-pass costs; otherwise use the maximum size"
    )

    def prime(self, drafter: Drafter, models: Models) -> Sizing:
        """Return the costs of passes, measured by the first run of these models on this machine."""
        return Sizing(costs_of(models))

    def grow(self, growth: Growth, plan: Plan) -> DraftTree:
        """Fill the state's tree with the likeliest tokens."""
        row, most = growth.row, max(2, plan.within(self.places))
        ranks = row.models.target.vocab_size
        chances = tuple(tuple(level[:ranks]) for level in growth.chances or ASSUMED)
        levels = max(plan.depth, row.drafter.reach(row) or 0)
        state = row.state.tree_builder if isinstance(row.state.tree_builder, Sizing) else None
        costs = None if state is None else tuple(state.costs.verify_s(n) for n in range(1, most + 2))
        machine = machine_of(chances, levels, most, costs if self.counts_time else None)
        now = machine.states[plan.depth]
        row.report.signals["expected tokens"] = machine.tokens
        if state is not None:
            if state.now is None:
                row.report.notes.append(planning_note(machine))
            state.now = now
        return filled(growth, now.paths, Grown((SPARSE,), before=chances))


def planned_behind(row: Row, tree: DraftTree) -> tuple[int, ...] | None:
    """Return the probes after the root and each node of the last tree; None: another tree builder drafted it."""
    state = row.state.tree_builder
    if not isinstance(state, Sizing) or state.now is None or row.state.plan.grower != row.configured.grower:
        return None
    root, *behind = state.now.behind
    levels = zip(state.now.paths, behind, strict=True)
    kept = (root, *(n for path, n in levels if len(path) <= tree.depth))  # the policy may have stopped it
    return kept if len(kept) == len(tree) + 1 else None


@lru_cache(maxsize=64)
def machine_of(
    chances: tuple[tuple[float, ...], ...], levels: int, most: int, costs: tuple[float, ...] | None = None
) -> Machine:
    """Return the trees with the most tokens per second in the long run.

    Args:
        chances: P[level, rank], the last level's for all deeper ones.
        levels: m, most probes after one position.
        most: nodes and probes per pass, at least 2.
        costs: seconds of a pass over 1 … most + 1 tokens, including the root; None: all equal.
    """
    seconds = np.array(costs or [1.0] * (most + 1))
    orders = [best_paths(chances, most, state) for state in range(levels + 1)]
    worth, rate = np.arange(levels + 1.0), 0.0  # start: a level is worth one token
    found = tuple[Sparse, ...]()
    for _ in range(TURNS):
        better = tuple(_best(order, chances, worth, rate * seconds) for order in orders)
        if better == found:
            break
        found = better
        after = np.array([state.next for state in found])
        tokens, spent = np.array([s.tokens for s in found]), np.array([seconds[s.size - 1] for s in found])
        share = _lasting(after)
        rate = float(share @ tokens / (share @ spent))
        worth = np.linalg.lstsq(np.eye(levels + 1) - after, tokens - rate * spent, rcond=None)[0]
    share = _lasting(np.array([state.next for state in found]))
    tokens = sum(s.tokens * part for s, part in zip(found, share, strict=True))
    spent = sum(seconds[s.size - 1] * part for s, part in zip(found, share, strict=True))
    return Machine(found, tuple(share.tolist()), float(tokens), float(spent))


def _best(
    order: Sequence[Path], chances: Sequence[Sequence[float]], worth: Float64[np.ndarray, " S"],
    dues: Float64[np.ndarray, " M"],
) -> Sparse:  # fmt: skip
    """Return the best tree of one state, and its probes.

    Args:
        order: nodes, the likeliest first; a prefix makes a tree. Empty: nothing can be drafted.
        chances: probabilities of ranks, by level.
        worth: value of each state in the next round, in tokens.
        dues: cost of a pass over 1, 2, … tokens, in tokens.
    """
    most, best, value = len(dues) - 1, None, -np.inf
    reached = [1.0]
    for path, parent in zip(order, parents_of(order), strict=True):
        reached.append(reached[parent + 1] * chances[min(len(path), len(chances)) - 1][path[-1]])
    for n in range(1, len(order) + 1) if order else [0]:
        ends = np.array(reached[: n + 1])  # probability that the accepted path ends at each node
        for node, parent in enumerate(parents_of(order[:n])):
            ends[parent + 1] -= reached[node + 1]
        ends = ends.clip(0.0)
        tokens, behind = sum(reached[: n + 1]), [0] * (n + 1)
        gain = float(ends.sum() * worth[0])
        offers = [(-end * (worth[1] - worth[0]), place) for place, end in enumerate(ends)]
        heapq.heapify(offers)
        for size in range(n + 1, most + 2):
            # without nodes the pass needs a probe
            if (n or size > 1) and (now := tokens + gain - dues[size - 1]) > value + 1e-12:
                value, best = now, (n, tuple(behind), tokens, ends)
            if not offers or size > most:
                break
            loss, place = heapq.heappop(offers)
            gain, behind[place] = gain - loss, behind[place] + 1
            if (k := behind[place]) < len(worth) - 1:
                heapq.heappush(offers, (-ends[place] * (worth[k + 1] - worth[k]), place))
    assert best is not None
    n, behind, tokens, ends = best
    following = np.bincount(behind, ends, len(worth))
    return Sparse(tuple(order[:n]), behind, float(tokens), tuple((following / following.sum()).tolist()))


def _lasting(after: Float64[np.ndarray, "S S"]) -> Float64[np.ndarray, " S"]:
    """Return the long-run share of rounds in each state, from state 0. `after`: transition probabilities."""
    lazy = (after + np.eye(len(after))) / 2  # the same shares, and no cycles
    found = np.linalg.matrix_power(lazy, 1 << 16)[0]
    return found / found.sum()


def planning_note(machine: Machine) -> str:
    """Return a note for the trace with the trees and their shares."""
    trees = ", ".join(
        f"{s} {'level' if s == 1 else 'levels'}: {len(tree.paths)} nodes and {sum(tree.behind)} probe positions, in "
        f"{machine.share[s]:.0%} of rounds"
        for s, tree in enumerate(machine.states)
    )
    return f"Trees planned by dynamic-sparse, by draft levels: {trees}; {machine.tokens:.2f} tokens expected per round."

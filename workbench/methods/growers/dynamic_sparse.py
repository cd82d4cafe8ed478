"""The tree of parallel prompt decoding: of how many nodes, and with how many probes behind each.

A probe, there a prompt token, costs a place in the pass of the target as a node does, and pays in the next round only:
that one can be drafted as many levels deep as probes stood where this one ended. So rounds are a chain of states,
s = 0 … m levels that can be drafted, and each state has a tree of its own.
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
from workbench.engine.calibration import Costs, costs_of
from workbench.engine.growing import Growth
from workbench.engine.models import Models
from workbench.engine.parts import Drafter, Grower
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.methods.growers.shapes import MOST_NODES
from workbench.methods.growers.template import ASSUMED, Path, filled

TURNS = 20
"""Improvements of a plan; it usually stands still behind four."""

SPARSE = GrowthRule(
    "dynamic-sparse",
    "Planned with its probes",
    "Of all trees with probes behind their nodes this one was expected to write most a second over this round "
    "and those behind it, by how often each rank was right on held-out text and by what passes cost here.",
    "chance that its ranks are right",
)


@dataclass(frozen=True, slots=True)
class Sparse:
    """What is drafted in one state.

    Attributes:
        paths: of ranks; parents before children, likelier ones first.
        behind: probes behind the root and behind each node.
        tokens: expected of a round, the target's own among them.
        next: chance of each state in the round that follows.
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
    """All states' trees.

    Attributes:
        states: s = 0 … m.
        share: of the rounds in the long run that are in each state.
        tokens: of a round in the long run.
        seconds: of its pass; rounds, where costs are of no account.
    """

    states: tuple[Sparse, ...]
    share: tuple[float, ...]
    tokens: float
    seconds: float


@dataclass(slots=True)
class Sizing:
    """What a row's grower knows.

    Attributes:
        costs: of passes on this machine, in this dtype.
        now: what was last drafted to.
    """

    costs: Costs
    now: Sparse | None = None


@dataclass(frozen=True)
class DynamicSparse(Grower):
    """For each number of levels that can be drafted the tree that pays best, its prompt tokens reckoned with.

    A tree's expected tokens are Σ over its nodes of Π P[level, rank] along the path, and 1; how many levels the next
    round has follows from where this one is likely to end. Trees are those that write most a second in the long run,
    with passes of the target measured once on this machine in this dtype and kept.

    Attributes:
        places: nodes and probes of a pass, at most.
        counts_time: see above; without it the most tokens a round are wanted, of passes of so many nodes.

    Source: Chen et al. 2024, Hardware-aware parallel prompt decoding, arXiv:2405.18628, §4. There all states' passes
    have one size, which is then swept; here each state's has what pays, found by improving a policy (Howard 1960).
    """

    name: ClassVar[str] = "dynamic-sparse"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.DETERMINISTIC
    places: int = param(24, ge=2, le=MOST_NODES, doc="nodes and probes of one pass, at most")
    counts_time: bool = param(
        True, doc="whether what passes cost here counts; without, the tree has as many nodes as it may"
    )

    def prime(self, drafter: Drafter, models: Models) -> Sizing:
        """What passes cost; measured by the first run of these models on this machine."""
        return Sizing(costs_of(models))

    def grow(self, growth: Growth, plan: Plan) -> DraftTree:
        """Fill the state's tree with the likeliest tokens."""
        row, most = growth.row, max(2, plan.within(self.places))
        ranks = row.models.target.vocab_size
        chances = tuple(tuple(level[:ranks]) for level in growth.chances or ASSUMED)
        levels = max(plan.depth, row.drafter.reach(row) or 0)
        state = row.grower_state if isinstance(row.grower_state, Sizing) else None
        costs = None if state is None else tuple(state.costs.verify_s(n) for n in range(1, most + 2))
        machine = machine_of(chances, levels, most, costs if self.counts_time else None)
        now = machine.states[plan.depth]
        row.signals["expected tokens"] = machine.tokens
        if state is not None:
            if state.now is None:
                row.notes.append(told(machine))
            state.now = now
        return filled(growth, now.paths, Grown((SPARSE,), before=chances))


def planned_behind(row: Row, tree: DraftTree) -> tuple[int, ...] | None:
    """Probes behind the root and each node of what this grower has just drafted; None: another one did."""
    state = row.grower_state
    if not isinstance(state, Sizing) or state.now is None or row.plan.grower != row.configured.grower:
        return None
    root, *behind = state.now.behind
    levels = zip(state.now.paths, behind, strict=True)
    kept = (root, *(n for path, n in levels if len(path) <= tree.depth))  # its policy may have stopped it
    return kept if len(kept) == len(tree) + 1 else None


@lru_cache(maxsize=64)
def machine_of(
    chances: tuple[tuple[float, ...], ...], levels: int, most: int, costs: tuple[float, ...] | None = None
) -> Machine:
    """The trees that write most a second in the long run.

    Args:
        chances: P[level, rank], the last level's for all deeper ones.
        levels: m, probes behind one place at most.
        most: nodes and probes of a pass, at least 2.
        costs: seconds of a pass over 1 … most + 1 tokens, the root among them; None: they are alike.
    """
    seconds = np.array(costs or [1.0] * (most + 1))
    orders = [best_paths(chances, most, state) for state in range(levels + 1)]
    worth, rate = np.arange(levels + 1.0), 0.0  # to begin with, a level is worth a token
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
    """The tree of one state that pays best, and the probes behind it.

    Args:
        order: nodes from the likeliest on; so many of the first make a tree. None: nothing can be drafted.
        chances: of ranks, by level.
        worth: of being in each state in the next round, in tokens.
        dues: what a pass over 1, 2, … tokens costs, in tokens.
    """
    most, best, value = len(dues) - 1, None, -np.inf
    reached = [1.0]
    for path, parent in zip(order, parents_of(order), strict=True):
        reached.append(reached[parent + 1] * chances[min(len(path), len(chances)) - 1][path[-1]])
    for n in range(1, len(order) + 1) if order else [0]:
        ends = np.array(reached[: n + 1])  # that the walk comes to a place, and goes no further
        for node, parent in enumerate(parents_of(order[:n])):
            ends[parent + 1] -= reached[node + 1]
        ends = ends.clip(0.0)
        tokens, behind = sum(reached[: n + 1]), [0] * (n + 1)
        gain = float(ends.sum() * worth[0])
        offers = [(-end * (worth[1] - worth[0]), place) for place, end in enumerate(ends)]
        heapq.heapify(offers)
        for size in range(n + 1, most + 2):
            if (n or size > 1) and (now := tokens + gain - dues[size - 1]) > value + 1e-12:  # the first pass must ask
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
    """Share of the rounds in each state in the long run, from state 0 on. `after`: chances of states by state."""
    lazy = (after + np.eye(len(after))) / 2  # the same shares, and no cycles
    found = np.linalg.matrix_power(lazy, 1 << 16)[0]
    return found / found.sum()


def told(machine: Machine) -> str:
    """The trees and what they were chosen by, for a round's notes."""
    trees = ", ".join(
        f"{s} {'level' if s == 1 else 'levels'}: {len(tree.paths)} nodes and {sum(tree.behind)} probes, in "
        f"{machine.share[s]:.0%} of rounds"
        for s, tree in enumerate(machine.states)
    )
    return f"dynamic-sparse planned its trees by levels that can be drafted; {trees}; {machine.tokens:.2f} tokens each."

"""A tree whose shape is what was accepted before: of all places those that were kept most often, of their ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from workbench.core.grown import Grown, GrowthRule
from workbench.core.params import param
from workbench.core.templates import best_paths
from workbench.core.tree import DraftTree, Sampling, children_of
from workbench.engine.growing import Growth
from workbench.engine.models import Models
from workbench.engine.parts import Drafter, Grower
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.engine.told import Outcome
from workbench.methods.growers.sequoia import draw
from workbench.methods.growers.shapes import NODES
from workbench.methods.growers.template import ASSUMED, Path, filled

TRIED = 5.0
"""Tests that what is assumed counts for."""
EVERY = 16
"""Rounds after which the tree is drawn up anew."""

DRIVEN = GrowthRule(
    "data-driven",
    "Of the places kept most often",
    "Of all trees of so many nodes this one is likeliest to be right, by how often the draft of this rank was the one "
    "kept at this level, in this run. Its token was drawn without replacement, by Gumbel noise; at temperature 0 it is "
    "the likeliest.",
    before="chance that its ranks are right",
)


@dataclass(slots=True)
class Counts:
    """What this run has shown.

    Attributes:
        kept: of each level and rank, drafts that were kept.
        tested: likewise, places that were reached and had such a draft.
        rounds: seen.
        drawn: the tree in force: for which plan, at which of `rounds`, the chances by level and rank, and the paths.
    """

    kept: list[list[float]] = field(default_factory=list[list[float]])
    tested: list[list[float]] = field(default_factory=list[list[float]])
    rounds: int = 0
    drawn: tuple[tuple[int, int], int, list[tuple[float, ...]], tuple[Path, ...]] | None = None

    def chances(self, assumed: tuple[float, ...]) -> list[tuple[float, ...]]:
        """Of each level and rank, the last level's for all deeper ones."""
        levels = zip(self.kept, self.tested, strict=True)
        found = [
            tuple((k + TRIED * a) / (n + TRIED) for k, n, a in zip(kept, tested, assumed, strict=True))
            for kept, tested in levels
        ]
        return found or [assumed]


@dataclass(frozen=True)
class DataDriven(Grower):
    """The tree of the places that were kept most often, filled by Gumbel-top-k among a law's likeliest tokens.

    The chance of each rank at each level begins as assumed and is counted while the run goes; of all trees of `nodes`
    nodes the one of the largest sum of chances is drafted, and drawn up anew every 16 rounds. Siblings are the tokens
    of the largest log q + Gumbel noise, falling, q being cut to the law's 8 likeliest tokens: a draw without
    replacement of as many as was decided before.

    Attributes:
        nodes: at most; the plan's depth bounds the levels.

    Source: Song et al. 2025, STAND, arXiv:2506.04708, §3: the tree of 80 nodes that was kept most often of a large one.
    """

    name: ClassVar[str] = "data-driven"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.FIXED_NUMBER
    nodes: int = param(12, **NODES)

    def prime(self, drafter: Drafter, models: Models) -> Counts:
        """Nothing was kept yet."""
        return Counts()

    def grow(self, growth: Growth, plan: Plan) -> DraftTree:
        """Decide on the shape, and fill it."""
        chances, paths = self.shape(growth, plan)
        grown = Grown((DRIVEN,), before=chances)
        if growth.row.sampling.greedy:
            return filled(growth, paths, grown)
        return draw(growth, paths, grown, len(ASSUMED[0]))

    def shape(self, growth: Growth, plan: Plan) -> tuple[list[tuple[float, ...]], tuple[Path, ...]]:
        """Chances by level and rank, and the paths of ranks of the tree in force."""
        state = growth.row.grower_state if isinstance(growth.row.grower_state, Counts) else Counts()
        asked = plan.depth, plan.within(self.nodes)
        if state.drawn is None or state.drawn[0] != asked or state.rounds >= state.drawn[1] + EVERY:
            chances = state.chances(ASSUMED[0])
            state.drawn = asked, state.rounds, chances, tuple(best_paths(chances, asked[1], asked[0]))
        return state.drawn[2:]

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Count, at each place that was reached and had drafts, which of them was kept."""
        state: Counts = row.grower_state
        state.rounds += 1
        children, path = children_of(outcome.parents), outcome.verdict.path
        for level, (at, kept) in enumerate(zip((-1, *path), (*path, None), strict=True)):
            for counts in (state.kept, state.tested):
                if level == len(counts):
                    counts.append([0.0] * len(ASSUMED[0]))
            for rank, node in enumerate(children[at + 1][: len(ASSUMED[0])]):
                state.tested[level][rank] += 1
                state.kept[level][rank] += node == kept

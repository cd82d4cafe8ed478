"""The fixed tree that pays best: by how often each sibling is the one accepted, and by what a pass costs here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float64

from workbench.core.grown import Grown, GrowthRule
from workbench.core.params import param
from workbench.core.tree import DraftTree, Sampling, children_of
from workbench.engine.calibration import Costs, costs_of
from workbench.engine.declared import WRONG_SCALE, Claim
from workbench.engine.growing import Growth
from workbench.engine.models import Models
from workbench.engine.parts import Drafter, Grower
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.engine.told import Outcome
from workbench.methods.growers.drawn import Drawn
from workbench.methods.growers.shapes import NODES
from workbench.methods.growers.template import ASSUMED, Path, filled, template

TRIED = 5.0
"""Tests that what was measured on held-out text, or is assumed, counts for."""
FORGETTING = 0.99
"""Weight of a test, by the next round."""
MOVED = 0.03
"""The tree is drawn anew when a chance has changed by so much since."""

FIXED = {4: "4-1-1-1", 8: "8-1-1"}
"""Branchings of trees of constant width, which claims compare with, by that width."""

SMALL_GAIN = f"{WRONG_SCALE}: the gain is 3 %, and 25 prompts, drawn three times, leave 5 % to chance."
MEASURED = {16: ("2026-11-26 10:32 UTC", SMALL_GAIN), 32: ("2026-11-26 10:26 UTC", SMALL_GAIN)}
"""By a claim's nodes, why its figure is inconclusive."""

PLANNED = GrowthRule(
    "sequoia",
    "Planned to pay",
    "Of all trees of so many nodes this one was expected to write most a second, by how often each sibling is the one "
    "accepted and by what passes cost here.",
    "chance of acceptance as believed before the run",
    "as measured by the time the tree was drawn up",
)
FEW_DRAWS = (
    f"{WRONG_SCALE}: 14 prompts leave 8 % to chance, and the gain is smaller; with 64 nodes it is reproduced (1.09)."
)
ON_SMOLLM2 = {
    16: {"smollm2": ("2026-11-26 13:40 UTC", FEW_DRAWS)},
    32: {"smollm2": ("2026-11-26 13:50 UTC", FEW_DRAWS)},
}
"""The same on SmolLM2."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A tree, and the numbers it was drawn from.

    Attributes:
        given: plan's levels and nodes, and chances by sibling.
        paths: of ranks; parents before children, elder siblings first.
        tokens: expected of a round, the target's own among them.
        seconds: expected of a round; 0 where costs are not known.
    """

    given: tuple[int, int, tuple[float, ...]]
    paths: tuple[Path, ...]
    tokens: float
    seconds: float


@dataclass(slots=True)
class Measured:
    """What this run knows.

    Attributes:
        costs: of passes on this machine, in this dtype.
        level_s: seconds of one level of the draft; 0 for drafters other than a draft model, whose levels cost little
            beside a pass of the target.
        accepted: by rank among siblings, how often it was the one accepted.
        tested: by rank, places that were reached and had such a sibling.
        drawing: the tree in force.
    """

    costs: Costs
    level_s: float
    accepted: Counter[int] = field(default_factory=Counter[int])
    tested: Counter[int] = field(default_factory=Counter[int])
    drawing: Drawing | None = None

    def chances(self, before: Sequence[float]) -> tuple[float, ...]:
        """P[j], the chance that sibling j is the accepted one. `before`: what is believed where nothing was tested."""
        return tuple((self.accepted[j] + TRIED * chance) / (self.tested[j] + TRIED) for j, chance in enumerate(before))


@dataclass(frozen=True)
class Sequoia(Grower):
    """Of all trees of at most `nodes` nodes the one of the most expected tokens a second, by dynamic programming.

    A tree's expected tokens are Σ over its nodes of Π P[j] along the path, with P[j] the chance that the j-th sibling
    is the accepted one: measured while the run goes, beginning with what was measured on held-out text (heads) or is
    assumed. Its seconds are (levels · a pass of the draft model + a pass of the target over all nodes), measured once
    on this machine in this dtype and kept. When a chance has moved by 0.03 the tree is drawn anew; notes and signals of
    the round say which numbers were used.

    The shape is decided before anything is drawn. Siblings are drawn without replacement (greedy: the likeliest), and
    recursive rejection keeps the target's law.

    Attributes:
        nodes: at most; the plan's depth bounds the levels.
        counts_time: see above; without it the most tokens a round are wanted, as where trees of one size are compared.

    Source: Chen et al. 2024, Sequoia, arXiv:2402.12374, §3.1 (the tree), §3.3 (its size for the hardware).
    """

    name: ClassVar[str] = "sequoia"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.FIXED_NUMBER
    nodes: int = param(12, **NODES)
    counts_time: bool = param(
        True, doc="whether what passes cost here counts; without, the tree has as many nodes as it may"
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "τ / τ of a fixed tree of branching 3-2-1-1 with as many nodes (21), temperature 1",
            "LLaMA-2 7B and 13B, Vicuna 33B", None, None,
            "Chen et al. 2024, arXiv:2402.12374, §4.1 (direction: trees of constant width are left behind; recalled)",
            lambda lab: lab.tau_over(
                "draft-tree-sampled", {"grower": "sequoia", "nodes": 21, "depth": 4, "counts_time": False},
                {"grower": "rsd-c", "branching": "3-2-1-1", "depth": 4}, temperature=1.0,
            ),
            key="sequoia", method="draft-tree-sampled",
        ),
        *(
            Claim(
                f"τ / τ of {width} chains of {depth} drawn together, as many nodes ({width * depth}), temperature 1",
                "LLaMA-2 7B and 13B, Vicuna 33B", None, None,
                "Chen et al. 2024, arXiv:2402.12374, §4.1 (direction: k independent chains are left behind; recalled)",
                lambda lab, width=width, depth=depth: lab.tau_over(
                    "draft-tree-sampled",
                    {"grower": "sequoia", "nodes": width * depth, "depth": depth, "counts_time": False},
                    {"grower": "rsd-c", "branching": FIXED[width], "depth": depth}, temperature=1.0,
                ),
                key=f"sequoia-{width * depth}", method="draft-tree-sampled",
                why=MEASURED.get(width * depth, ("", "")), why_on=ON_SMOLLM2.get(width * depth, {}),
            )
            for width, depth in ((4, 4), (4, 8), (8, 8))
        ),
    )  # fmt: skip

    def prime(self, drafter: Drafter, models: Models) -> Measured:
        """What passes cost; measured by the first run of these models on this machine."""
        costs = costs_of(models)
        return Measured(costs, costs.draft_s if "drafter" in drafter.needs else 0.0)

    def grow(self, growth: Growth, plan: Plan) -> DraftTree:
        """Decide on the shape, and fill it: with the likeliest tokens when greedy, else with draws."""
        drawing = self.drawing(growth, plan)
        grown = Grown((PLANNED,), before=[tuple((growth.chances or ASSUMED)[0])], after=[drawing.given[2]])
        make = filled if growth.row.sampling.greedy else draw
        return make(growth, drawing.paths, grown)

    def drawing(self, growth: Growth, plan: Plan) -> Drawing:
        """The tree for what is believed now; the one in force unless that has changed."""
        row, most = growth.row, plan.within(self.nodes)
        state = row.grower_state if isinstance(row.grower_state, Measured) else None
        before = tuple((growth.chances or ASSUMED)[0])
        chances = before if state is None else state.chances(before)
        now = state and state.drawing
        if not now or now.given[:2] != (plan.depth, most) or _apart(now.given[2], chances) >= MOVED:
            if state is None:
                return best_tree(chances, most, plan.depth)
            costs = [state.costs.verify_s(m) for m in range(1, most + 2)]
            paid = costs if self.counts_time else ()
            now = state.drawing = best_tree(chances, most, plan.depth, paid, state.level_s)
            row.notes.append(told(now, costs, state.level_s))
        row.signals["expected tokens"] = now.tokens
        row.signals["expected ms"] = 1e3 * now.seconds
        return now

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Count, at each place that was reached and had drafts, which of them was accepted."""
        state: Measured = row.grower_state
        for counts in (state.accepted, state.tested):
            for rank in counts:
                counts[rank] *= FORGETTING  # type: ignore[assignment]
        children, path = children_of(outcome.parents), outcome.verdict.path
        for at, kept in zip((-1, *path), (*path, None), strict=True):
            for rank, node in enumerate(children[at + 1]):
                state.tested[rank] += 1
                state.accepted[rank] += node == kept


def best_tree(
    chances: Sequence[float], most: int, depth: int, costs: Sequence[float] = (), level_s: float = 0.0
) -> Drawing:
    """The tree of at most `most` ≥ 1 nodes and `depth` ≥ 1 levels that writes most a second.

    Args:
        chances: P[j], that sibling j is the accepted one.
        most: nodes, the root not counted.
        depth: levels.
        costs: seconds of a pass of the target over 1 … most + 1 tokens, the root among them; none: they are alike, and
            the largest expectation wins.
        level_s: seconds of a level of the draft.
    """
    table = expected(chances, most + 1, depth)
    best = table.max(1)  # [l, m]
    rates = [
        (best[level, m] / ((level * level_s + costs[m - 1]) if costs else 1.0), -m, -level)
        for level in range(1, depth + 1)
        for m in range(2, most + 2)
        if np.isfinite(best[level, m])
    ]
    m, level = (-number for number in max(rates)[1:])
    paths = tuple(sorted(_paths(table, chances, m, level), key=lambda path: (len(path), path)))
    seconds = level * level_s + costs[m - 1] if costs else 0.0
    return Drawing((depth, most, tuple(chances)), paths, float(best[level, m]), seconds)


def expected(chances: Sequence[float], most: int, depth: int) -> Float64[np.ndarray, "L B M"]:
    """T[l, b, m]: most tokens to be expected of m nodes, the root among them, in l levels below it, b at its side.

    T[l, b, m] = max over s of T[l, b − 1, m − s] + P_b · max_b' T[l − 1, b', s], and T[l, 0, 1] = 1; −∞ where there is
    no such tree. The shape is [depth + 1, len(chances) + 1, most + 1].

    Source: Chen et al. 2024, Sequoia, arXiv:2402.12374, §3.1.2.
    """
    table = np.full((depth + 1, len(chances) + 1, most + 1), -np.inf)
    table[:, 0, 1] = 1.0
    for level in range(1, depth + 1):
        below = table[level - 1].max(0)
        for b, chance in enumerate(chances, 1):
            for s in np.flatnonzero(np.isfinite(below[:most])):
                np.maximum(table[level, b, s:], table[level, b - 1, :-s] + chance * below[s], out=table[level, b, s:])
    return table


def _paths(table: Float64[np.ndarray, "L B M"], chances: Sequence[float], m: int, level: int) -> list[Path]:
    """The nodes of the best tree of m nodes in so many levels, the root left out."""
    found, b = list[Path](), int(table[level, :, m].argmax())
    while b:
        below = table[level - 1].max(0)
        sizes = np.flatnonzero(np.isfinite(below[:m]))
        s = int(sizes[(table[level, b - 1, m - sizes] + chances[b - 1] * below[sizes]).argmax()])
        found += [(b - 1,), *((b - 1, *path) for path in _paths(table, chances, s, level - 1))]
        b, m = b - 1, m - s
    return found


def draw(growth: Growth, paths: tuple[Path, ...], grown: Grown, among: int = 0) -> DraftTree:
    """The tree whose siblings are drawn without replacement, of what these paths name as much as the laws allow.

    Args:
        growth: what it grows in.
        paths: of ranks.
        grown: why its nodes are there.
        among: so many of a law's likeliest tokens are all that is drawn from; 0: the whole law is.
    """
    drawn, said = Drawn(growth, Sampling.FIXED_NUMBER), growth.root
    shape = template(paths, max(map(max, paths)) + 1, growth.device)
    at = torch.zeros(1, dtype=torch.long, device=growth.device)  # which law each node expanded has; −1: it is not there
    for level, (below, rank, inner) in enumerate(shape.levels):
        values, tokens = drawn.first(said, shape.ranks[level], level, among)
        law = at[below]
        there = (law >= 0) & (rank < values.shape[1])
        law, rank = law.clamp_min(0), rank.clamp(max=values.shape[1] - 1)
        there &= torch.isfinite(values[law, rank])
        drawn.add(tokens[law, rank][there], law[there])
        goes_on = there[inner]
        if level + 1 == len(shape.levels) or not goes_on.any():
            break
        if not growth.goes_on(said := growth.expand((there.cumsum(0) - 1)[inner[goes_on]])):
            break
        at = torch.where(goes_on, goes_on.cumsum(0) - 1, -1)
    return drawn.tree(shape.fanout, grown)


def told(drawing: Drawing, costs: Sequence[float], level_s: float) -> str:
    """The numbers that a tree was drawn from, for the round's notes."""
    chances = ", ".join(f"{chance:.2f}" for chance in drawing.given[2])
    n, levels = len(drawing.paths), max(map(len, drawing.paths))
    size = f"{n} {'node' if n == 1 else 'nodes'} in {levels} {'level' if levels == 1 else 'levels'}"
    one_ms, all_ms, level_ms, round_ms = (1e3 * s for s in (costs[0], costs[n], level_s, drawing.seconds))
    return (
        f"sequoia drew its tree anew, {size}: acceptance by sibling {chances}; a pass over 1 "
        f"token {one_ms:.2f} ms, over {n + 1} {all_ms:.2f} ms, a level of the draft {level_ms:.2f} ms; "
        f"{drawing.tokens:.2f} tokens expected in {round_ms:.2f} ms."
    )


def _apart(a: Sequence[float], b: Sequence[float]) -> float:
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0) if len(a) == len(b) else np.inf

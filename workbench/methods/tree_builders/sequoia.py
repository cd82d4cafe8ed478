"""Sequoia's tree builder: plan the best tree from the acceptance rate of each sibling and the cost of passes."""

from __future__ import annotations

from collections import Counter, abc
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float64

from workbench.core.params import param
from workbench.core.tree import DraftTree, Sampling, children_of
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.declarations import WRONG_SCALE, Claim
from workbench.decoders.draft_verify.parts import Drafter, Plan, RoundFeedback, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine.request import Sequence
from workbench.methods.tree_builders.shapes import NODES
from workbench.methods.tree_builders.template import ASSUMED_RANK_PROBS, Path, build_shape, fill_paths
from workbench.methods.tree_builders.tree_sampler import TreeSampler
from workbench.models.loading import Models
from workbench.models.pass_costs import Costs, costs_of

PRIOR_TESTS = 5.0
"""Weight of the initial acceptance rates, which are assumed or measured on held-out text, as a number of tests."""
FORGETTING = 0.99
"""Factor by which the weight of all earlier acceptance tests decreases in every round."""
REPLAN_THRESHOLD = 0.03
"""Minimum change of a sibling's acceptance probability after which the draft tree is planned again."""

FIXED = {4: "4-1-1-1", 8: "8-1-1"}
"""Children per node, level by level, of the trees to which benchmarks compare Sequoia's, by nodes per level."""

SMALL_GAIN = f"{WRONG_SCALE}: the gain is 3 %, and with 25 prompts, sampled three times, the interval is ±5 %."
MEASURED = {16: ("2026-11-26 10:32 UTC", SMALL_GAIN), 32: ("2026-11-26 10:26 UTC", SMALL_GAIN)}
"""By the number of tree nodes: date of a measurement of Sequoia's gain, and the reason why it is inconclusive."""

PLANNED = TreeBuilderRule(
    "sequoia",
    "Tree planned for this machine",
    "Among all trees of its size, this tree has the most expected tokens per second, given how often each sibling is "
    "the accepted one, and the measured cost of passes.",
    "acceptance rate assumed before the run",
    "acceptance rate measured when the tree was planned",
)
FEW_DRAWS = (
    f"{WRONG_SCALE}: with 14 prompts the interval is ±8 %, more than the gain; with 64 nodes the claim is reproduced "
    "(1.09)."
)
ON_SMOLLM2 = {
    16: {"smollm2": ("2026-11-26 13:40 UTC", FEW_DRAWS)},
    32: {"smollm2": ("2026-11-26 13:50 UTC", FEW_DRAWS)},
}
"""The same as `MEASURED` for SmolLM2: by the number of tree nodes, date and reason of an inconclusive measurement."""


@dataclass(frozen=True, slots=True)
class PlannedTree:
    """Planned shape of a draft tree, and the numbers from which it was planned.

    Attributes:
        inputs: inputs of the planning: maximum number of levels, maximum number of nodes, and the acceptance
            probability of each sibling.
        paths: nodes as paths of sibling ranks; parents before children, earlier siblings first.
        tokens: expected number of tokens per round, including the target's own token.
        seconds: expected seconds per round; 0 if costs are not known.
    """

    inputs: tuple[int, int, tuple[float, ...]]
    paths: tuple[Path, ...]
    tokens: float
    seconds: float


@dataclass(slots=True)
class SequoiaState:
    """State of the Sequoia tree builder in one run: costs, acceptance counts and the current tree.

    Attributes:
        costs: measured costs of forward passes on this machine, in the dtype of the models.
        level_s: seconds per draft level if a draft model drafts; 0 for other drafters, because their levels cost little
            compared with a target pass.
        accepted: number of accepted siblings by rank.
        tested: number of tested siblings by rank. A sibling is tested if its parent is the root or was accepted.
        tree: the current tree; None before the first round.
    """

    costs: Costs
    level_s: float
    accepted: Counter[int] = field(default_factory=Counter[int])
    tested: Counter[int] = field(default_factory=Counter[int])
    tree: PlannedTree | None = None

    def sibling_probs(self, priors: abc.Sequence[float]) -> tuple[float, ...]:
        """Return the estimated probability P[j] that sibling j is the accepted one at a position, for each j.

        Args:
            priors: values of P[j] that are assumed before any counts.
        """
        return tuple(
            (self.accepted[j] + PRIOR_TESTS * prior) / (self.tested[j] + PRIOR_TESTS) for j, prior in enumerate(priors)
        )


@dataclass(frozen=True)
class Sequoia(TreeBuilder):
    """Draft the tree of at most `nodes` nodes with the most expected tokens per second, found by dynamic programming.

    A tree's expected tokens are 1 + Σ over its nodes of Π P[j] along the path. P[j] is the probability that the j-th
    sibling is accepted. Its initial value is measured on held-out text (heads) or assumed; during the run it is
    updated. The expected time is levels · (a pass of the draft model) + a pass of the target over all nodes. Both
    passes are measured once on this machine in the models' dtype, and cached. When a probability has changed by 0.03,
    the tree is planned again. Notes and signals in the trace show probabilities, costs and expected tokens.

    The shape is decided before anything is drawn. Siblings are drawn without replacement (greedy: the likeliest), and
    recursive rejection is exact.

    Attributes:
        nodes: maximum number of nodes; the plan's depth bounds the levels.
        counts_time: whether to use the measured costs; otherwise tokens per round are maximised, to compare trees of
            one size.

    Source: Chen et al. 2024, Sequoia, arXiv:2402.12374, §3.1 (the tree), §3.3 (its size for the hardware).
    """

    name: ClassVar[str] = "sequoia"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.FIXED_NUMBER
    nodes: int = param(12, **NODES)
    counts_time: bool = param(
        True, doc="choose the tree size by measured forward-pass costs; otherwise use the maximum size"
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "τ relative to a fixed tree with branching 3-2-1-1 and the same number of nodes (21), temperature 1",
            "LLaMA-2 7B and 13B, Vicuna 33B",
            None,
            None,
            "Chen et al. 2024, arXiv:2402.12374, §4.1 (direction: better than trees of constant width; from memory)",
            lambda lab: lab.tau_over(
                "draft-tree-sampled",
                {"grower": "sequoia", "nodes": 21, "depth": 4, "counts_time": False},
                {"grower": "rsd-c", "branching": "3-2-1-1", "depth": 4},
                temperature=1.0,
            ),
            key="sequoia",
            method="draft-tree-sampled",
        ),
        *(
            Claim(
                f"τ relative to {width} chains of {depth} tokens in one tree, the same number of nodes "
                f"({width * depth}), temperature 1",
                "LLaMA-2 7B and 13B, Vicuna 33B",
                None,
                None,
                "Chen et al. 2024, arXiv:2402.12374, §4.1 (direction: better than k independent chains; from memory)",
                lambda lab, width=width, depth=depth: lab.tau_over(
                    "draft-tree-sampled",
                    {"grower": "sequoia", "nodes": width * depth, "depth": depth, "counts_time": False},
                    {"grower": "rsd-c", "branching": FIXED[width], "depth": depth},
                    temperature=1.0,
                ),
                key=f"sequoia-{width * depth}",
                method="draft-tree-sampled",
                explanation=MEASURED.get(width * depth, ("", "")),
                explanation_by_column=ON_SMOLLM2.get(width * depth, {}),
            )
            for width, depth in ((4, 4), (4, 8), (8, 8))
        ),
    )

    def init_state(self, drafter: Drafter, models: Models) -> SequoiaState:
        """Return the tree builder's state with the costs of forward passes, measured in the first run on a machine."""
        costs = costs_of(models)
        return SequoiaState(costs, costs.draft_s if "drafter" in drafter.needs else 0.0)

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Choose the draft tree's shape, then fill it with the likeliest tokens if greedy, otherwise with samples."""
        drawing = self.plan_tree(tree, plan)
        grown = TreeExplanation(
            (PLANNED,), before=[tuple((tree.rank_probs or ASSUMED_RANK_PROBS)[0])], after=[drawing.inputs[2]]
        )
        fill_tree = fill_paths if tree.sequence.sampling.greedy else draw
        return fill_tree(tree, drawing.paths, grown)

    def plan_tree(self, growth: PartialTree, plan: Plan) -> PlannedTree:
        """Return the planned draft tree. A new one is planned if an acceptance probability or the budget has changed.

        Args:
            growth: partial tree of the sequence.
            plan: plan of the round, with the maximum depth and number of nodes.
        """
        sequence, most = growth.sequence, plan.limit_nodes(self.nodes)
        state = sequence.state.tree_builder if isinstance(sequence.state.tree_builder, SequoiaState) else None
        priors = tuple((growth.rank_probs or ASSUMED_RANK_PROBS)[0])
        sibling_probs = priors if state is None else state.sibling_probs(priors)
        current = state and state.tree
        if (
            not current
            or current.inputs[:2] != (plan.depth, most)
            or _max_difference(current.inputs[2], sibling_probs) >= REPLAN_THRESHOLD
        ):
            if state is None:
                return best_tree(sibling_probs, most, plan.depth)
            costs = [state.costs.verify_s(m) for m in range(1, most + 2)]
            counted_costs = costs if self.counts_time else ()
            current = state.tree = best_tree(sibling_probs, most, plan.depth, counted_costs, state.level_s)
            sequence.report.notes.append(planning_note(current, costs, state.level_s))
        sequence.report.signals["expected tokens"] = current.tokens
        sequence.report.signals["expected ms"] = 1e3 * current.seconds
        return current

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Count the round's tested and accepted siblings by rank.

        Siblings are tested at the root and below accepted nodes.
        """
        state: SequoiaState = sequence.state.tree_builder
        for counts in (state.accepted, state.tested):
            for rank in counts:
                counts[rank] *= FORGETTING  # type: ignore[assignment]
        children, path = children_of(feedback.parents), feedback.result.path
        for parent, accepted_node in zip((-1, *path), (*path, None), strict=True):
            for rank, node in enumerate(children[parent + 1]):
                state.tested[rank] += 1
                state.accepted[rank] += node == accepted_node


def best_tree(
    sibling_probs: abc.Sequence[float], most: int, depth: int, costs: abc.Sequence[float] = (), level_s: float = 0.0
) -> PlannedTree:
    """Return the draft tree of at most `most` ≥ 1 nodes and `depth` ≥ 1 levels with the most tokens per second.

    Args:
        sibling_probs: probability P[j] that sibling j is accepted.
        most: maximum number of nodes, without the root.
        depth: maximum number of levels.
        costs: seconds of a target pass over 1 … most + 1 tokens, including the root. Empty: costs are not counted, and
            the tree with the most expected tokens is returned.
        level_s: seconds per draft level.
    """
    table = expected_tokens(sibling_probs, most + 1, depth)
    best = table.max(1)  # [l, m]
    rates = [
        (best[level, m] / ((level * level_s + costs[m - 1]) if costs else 1.0), -m, -level)
        for level in range(1, depth + 1)
        for m in range(2, most + 2)
        if np.isfinite(best[level, m])
    ]
    m, level = (-number for number in max(rates)[1:])
    paths = tuple(sorted(_paths(table, sibling_probs, m, level), key=lambda path: (len(path), path)))
    seconds = level * level_s + costs[m - 1] if costs else 0.0
    return PlannedTree((depth, most, tuple(sibling_probs)), paths, float(best[level, m]), seconds)


def expected_tokens(sibling_probs: abc.Sequence[float], most: int, depth: int) -> Float64[np.ndarray, "L B M"]:
    """Return T[l, b, m]: the most expected tokens of a draft tree of m nodes, b of which are children of the root.

    l is the maximum number of levels below the root, and m includes the root. T is −∞ if there is no such tree.
    T[l, 0, 1] = 1, and T[l, b, m] = max over s of T[l, b − 1, m − s] + P_b · max over b′ of T[l − 1, b′, s], where s is
    the number of nodes in the subtree of child b.

    Args:
        sibling_probs: probability that each sibling is accepted, P_1, P_2, …
        most: maximum of m.
        depth: maximum of l.

    Returns:
        Array [depth + 1, len(sibling_probs) + 1, most + 1].

    Source: Chen et al. 2024, Sequoia, arXiv:2402.12374, §3.1.2.
    """
    table = np.full((depth + 1, len(sibling_probs) + 1, most + 1), -np.inf)
    table[:, 0, 1] = 1.0
    for level in range(1, depth + 1):
        below = table[level - 1].max(0)
        for b, prob in enumerate(sibling_probs, 1):
            for s in np.flatnonzero(np.isfinite(below[:most])):
                np.maximum(table[level, b, s:], table[level, b - 1, :-s] + prob * below[s], out=table[level, b, s:])
    return table


def _paths(table: Float64[np.ndarray, "L B M"], sibling_probs: abc.Sequence[float], m: int, level: int) -> list[Path]:
    """Return the nodes, as paths of token ranks, of the best draft tree of m nodes in at most `level` levels.

    Args:
        table: expected tokens, as `expected_tokens` returns them.
        sibling_probs: probability that each sibling is accepted.
        m: number of nodes, including the root.
        level: maximum number of levels.
    """
    paths, b = list[Path](), int(table[level, :, m].argmax())
    while b:
        below = table[level - 1].max(0)
        sizes = np.flatnonzero(np.isfinite(below[:m]))
        s = int(sizes[(table[level, b - 1, m - sizes] + sibling_probs[b - 1] * below[sizes]).argmax()])
        paths += [(b - 1,), *((b - 1, *path) for path in _paths(table, sibling_probs, s, level - 1))]
        b, m = b - 1, m - s
    return paths


def draw(growth: PartialTree, paths: tuple[Path, ...], grown: TreeExplanation, top_k: int = 0) -> DraftTree:
    """Return a draft tree of a given shape whose siblings are sampled without replacement.

    If a distribution has fewer tokens than the shape has children, the remaining children and their subtrees are
    omitted.

    Args:
        growth: partial tree to which nodes are added.
        paths: nodes as paths of sibling ranks.
        grown: explanation of the nodes for the trace.
        top_k: number of likeliest tokens to draw from; 0: draw from the whole distribution.
    """
    sampler, distributions = TreeSampler(growth, Sampling.FIXED_NUMBER), growth.root
    shape = build_shape(paths, max(map(max, paths)) + 1, growth.device)
    # Index of the distribution of each expanded node; −1: the node is missing.
    q_index = torch.zeros(1, dtype=torch.long, device=growth.device)
    for level, (below, rank, inner) in enumerate(shape.levels):
        values, tokens = sampler.draw_siblings(distributions, shape.ranks[level], level, top_k)
        parent_q = q_index[below]
        is_present = (parent_q >= 0) & (rank < values.shape[1])
        parent_q, rank = parent_q.clamp_min(0), rank.clamp(max=values.shape[1] - 1)
        is_present &= torch.isfinite(values[parent_q, rank])
        sampler.add(tokens[parent_q, rank][is_present], parent_q[is_present])
        goes_on = is_present[inner]
        if level + 1 == len(shape.levels) or not goes_on.any():
            break
        if not growth.should_continue(distributions := growth.expand((is_present.cumsum(0) - 1)[inner[goes_on]])):
            break
        q_index = torch.where(goes_on, goes_on.cumsum(0) - 1, -1)
    return sampler.finish(shape.fanout, grown)


def planning_note(tree: PlannedTree, costs: abc.Sequence[float], level_s: float) -> str:
    """Return a note for the trace with the costs and probabilities from which a draft tree was planned.

    Args:
        tree: planned tree.
        costs: seconds of a target pass over 1, 2, … tokens.
        level_s: seconds per draft level.
    """
    rates = ", ".join(f"{rate:.2f}" for rate in tree.inputs[2])
    n, levels = len(tree.paths), max(map(len, tree.paths))
    size = f"{n} {'node' if n == 1 else 'nodes'} in {levels} {'level' if levels == 1 else 'levels'}"
    one_ms, all_ms, level_ms, round_ms = (1e3 * s for s in (costs[0], costs[n], level_s, tree.seconds))
    return (
        f"sequoia planned a new tree of {size}: acceptance by sibling {rates}; a pass over 1 "
        f"token {one_ms:.2f} ms, over {n + 1} {all_ms:.2f} ms, one draft level {level_ms:.2f} ms; "
        f"{tree.tokens:.2f} tokens expected in {round_ms:.2f} ms."
    )


def _max_difference(a: abc.Sequence[float], b: abc.Sequence[float]) -> float:
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0) if len(a) == len(b) else np.inf

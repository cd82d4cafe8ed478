"""A table of tri-grams that adapts to what is written and to what the target says, searched for the best sentences."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from workbench.core.draw import Purpose
from workbench.core.grown import Grown, GrowthRule
from workbench.core.params import param
from workbench.core.transfer import listed, to_device
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.models import Models
from workbench.engine.parts import Drafter
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.engine.told import Outcome
from workbench.methods.drafters.warmth import WARM, warmth
from workbench.methods.growers.shapes import NODES

KEPT = 16_384
"""Pairs of tokens that a table keeps at most; those that were written longest ago go first."""
WIDTH = 12
"""Successors kept of a pair; of the released code's corpus as many are loaded."""
HEAVIEST = 3.0
"""A tri-gram that is seen again and again weighs no more."""
C1, C2 = 32.0, 8.0
"""Constants of the search, of the released code: how much is explored, and how that grows with the visits."""

Pair = tuple[int, int]

SEARCHED = GrowthRule(
    "tri-grams",
    "Found in the tri-gram table",
    "The search went through this node among the most visited ones; its token follows the two before it in the table.",
    "visits of the search",
    "weight of its tri-gram",
)


class Trigrams:
    """Pair of tokens → weights of its likeliest successors."""

    def __init__(self, most: int = KEPT) -> None:
        self.most = most
        self._rows: dict[Pair, dict[int, float]] = {}  # from the least to the most recently written

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, pair: Pair) -> dict[int, float]:
        """Weights by successor; empty where the pair is not known."""
        return self._rows.get(pair, {})

    def write(self, pair: Pair, token: int, step: float) -> None:
        """A tri-gram was written: its weight grows, up to `HEAVIEST`."""
        row = self.row(pair)
        self._keep(pair, row | {token: min(HEAVIEST, row.get(token, 0.0) + step)})

    def approach(self, pair: Pair, tokens: Sequence[int], chances: Sequence[float], rate: float) -> None:
        """Behind a pair w ← (1 − rate) · w + rate · p, over the target's likeliest tokens there."""
        row = {token: (1 - rate) * weight for token, weight in self.row(pair).items()}
        for token, chance in zip(tokens, chances, strict=True):
            row[token] = row.get(token, 0.0) + rate * chance
        self._keep(pair, row)

    def _keep(self, pair: Pair, row: dict[int, float]) -> None:
        best = sorted(row.items(), key=lambda item: -item[1])[:WIDTH]
        self._rows.pop(pair, None)
        self._rows[pair] = {token: weight for token, weight in best if weight > 0}
        if len(self._rows) > self.most:
            del self._rows[next(iter(self._rows))]


@dataclass(slots=True)
class Visited:
    """A state of the search: a path behind the text.

    Attributes:
        chance: the tri-gram's weight, normalised over its pair's successors.
        weight: as the table has it.
        visits: searches that went through it.
        total: sum of their scores.
        below: its successors, once it was expanded.
    """

    chance: float = 1.0
    weight: float = 0.0
    visits: int = 0
    total: float = 0.0
    below: dict[int, Visited] | None = None

    def expand(self, row: dict[int, float]) -> None:
        """All successors of its pair, unvisited."""
        whole = sum(row.values())
        self.below = {token: Visited(weight / whole, weight) for token, weight in row.items()}


def search(table: Trigrams, pair: Pair, length: int, uniforms: Sequence[Sequence[float]]) -> Visited:
    """Monte Carlo tree search over the sentences behind a pair.

    A search descends by PUCT, Q + (c₁ + ln((N + c₂ + 1) / c₂)) · P · √N / (1 + n), through states that were expanded,
    unvisited ones first; it expands the state where it ends, goes on from there by draws from the table, and counts
    1 + the sum of the weights on its way for all states that it passed.

    Args:
        table: of weights.
        pair: the newest two tokens.
        length: tokens of a sentence.
        uniforms: a row of `length` numbers for each search.

    Returns:
        The root, with the visits of all states below it.

    Source: Liu et al. 2024, ADED, arXiv:2407.12021, draft maker; constants and score as in its released code.
    """
    root = Visited()
    root.expand(table.row(pair))
    for numbers in uniforms:
        at, passed, score = root, [root], 1.0
        u, v = pair
        while at.below and len(passed) <= length:
            token = _chosen(at)
            at = at.below[token]
            passed.append(at)
            score += at.weight
            u, v = v, token
            if at.below is None:
                at.expand(table.row((u, v)))
                break
        for number in numbers[len(passed) - 1 :]:
            if not (row := table.row((u, v))):
                break
            token = _drawn(row, number)
            score += row[token]
            u, v = v, token
        for state in passed:
            state.visits += 1
            state.total += score
    return root


def _chosen(at: Visited) -> int:
    """The successor that PUCT goes to; of those never visited the likeliest."""
    assert at.below is not None
    wide = (C1 + math.log((at.visits + C2 + 1) / C2)) * math.sqrt(at.visits)
    best, found = -math.inf, -1
    for token, state in at.below.items():  # from the heaviest on
        n = state.visits
        value = state.total / n + wide * state.chance / (1 + n) if n else math.inf
        if value > best:
            best, found = value, token
    return found


def _drawn(row: dict[int, float], number: float) -> int:
    left = number * sum(row.values())
    for token, weight in row.items():
        left -= weight
        if left < 0:
            return token
    return next(iter(row))


@dataclass(slots=True)
class Sentences:
    """A draft: nodes, parents first, and what the search says of each of them."""

    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    visits: list[float] = field(default_factory=list[float])
    weights: list[float] = field(default_factory=list[float])


def most_visited(root: Visited, nodes: int, depth: int) -> Sentences:
    """The tree of the most visited states; a state is visited no more often than the one it follows."""
    found, order = Sentences(), itertools.count()
    heap: list[tuple[float, int, int, int, int, Visited]] = []

    def push(state: Visited, parent: int, level: int) -> None:
        for token, below in (state.below or {}).items():
            if below.visits:
                heapq.heappush(heap, (-below.visits, next(order), parent, level, token, below))

    push(root, -1, 1)
    while heap and len(found.tokens) < nodes:
        _, _, parent, level, token, state = heapq.heappop(heap)
        found.tokens.append(token)
        found.parents.append(parent)
        found.visits.append(float(state.visits))
        found.weights.append(state.weight)
        if level < depth:
            push(state, len(found.tokens) - 1, level + 1)
    return found


def best_first(table: Trigrams, pair: Pair, nodes: int, depth: int) -> Sentences:
    """The tree of the largest products of normalised weights: what a search of no end converges to is like it."""
    found, order = Sentences(), itertools.count()
    heap: list[tuple[float, int, int, int, int, float, Pair]] = []

    def push(chance: float, pair: Pair, parent: int, level: int) -> None:
        row = table.row(pair)
        whole = sum(row.values())
        for token, weight in row.items():
            below = chance * weight / whole
            heapq.heappush(heap, (-below, next(order), parent, level, token, weight, (pair[1], token)))

    push(1.0, pair, -1, 1)
    while heap and len(found.tokens) < nodes:
        chance, _, parent, level, token, weight, behind = heapq.heappop(heap)
        found.tokens.append(token)
        found.parents.append(parent)
        found.visits.append(0.0)
        found.weights.append(weight)
        if level < depth:
            push(-chance, behind, len(found.tokens) - 1, level + 1)
    return found


@dataclass(frozen=True)
class AdaptiveTrigram(Drafter):
    """Keep weights of tri-grams, adapt them to the text and to the target, and draft the most visited sentences.

    A tri-gram that is written gains `increment`; with `rate` the weights behind a pair also approach the target's law
    at every verified node, kept or not. What of the sentences behind the newest two tokens is drafted, a search decides
    that weighs what is likely against what it has not tried (mcts), or the products of weights (best-first).

    Attributes:
        nodes: drafted at most.
        search: how sentences are chosen.
        iterations: of the search.
        increment: weight that a tri-gram gains by each place where it is written.
        rate: how far the weights go to the target's law at each verified node; 0 is the released code's adaptation.
        warm: later runs find the table.

    Source: Liu et al. 2024, Adaptive draft-verification for efficient large language model decoding, arXiv:2407.12021.
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    nodes: int = param(12, **NODES)
    search: str = param("mcts", choices=("mcts", "best-first"), doc="how the drafted sentences are chosen")
    iterations: int = param(30, ge=1, le=150, doc="sentences tried by the search", when="search = mcts")
    increment: float = param(0.04, ge=0.0, le=1.0, doc="weight that a tri-gram gains where it is written")
    rate: float = param(0.2, ge=0.0, le=1.0, doc="step of the weights to the target's law at verified nodes; 0: none")
    warm: bool = warmth("the table")

    def siblings(self) -> frozenset[Sampling]:
        """Chosen: the search knows the past alone, and numbers that decide nothing else."""
        return frozenset({Sampling.DETERMINISTIC})

    def notice(self) -> str:
        """Warm drafts depend on other runs."""
        return WARM if self.warm else ""

    def memory(self) -> Hashable:
        """The table, however it is searched."""
        return "adaptive-trigram", self.increment, self.rate, self.warm

    def prime(self, row: Row, models: Models) -> Trigrams:
        """The tri-grams of everything committed; with `warm`, beside those of earlier runs."""
        table = models.shared.setdefault("adaptive-trigram", Trigrams()) if self.warm else Trigrams()
        self._read(table, row.committed, 0)
        return table

    def _read(self, table: Trigrams, text: Sequence[int], begin: int) -> None:
        """Raise each tri-gram that ends at or behind a place, once for each time it stands there."""
        for end in range(max(2, begin), len(text)) if self.increment else ():
            table.write((text[end - 2], text[end - 1]), text[end], self.increment)

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """What the search finds behind the newest two tokens."""
        assert row.models is not None
        table: Trigrams = row.state
        pair = (row.committed[-2] if len(row.committed) > 1 else -1, row.committed[-1])
        known = table.row(pair)
        row.signals |= {"pairs known": len(table), "successors known": len(known)}
        nodes, device = plan.within(self.nodes), row.models.target.device
        if not known:
            return DraftTree.empty("adaptive-trigram", device)
        if self.search == "mcts":
            numbers = row.draw.uniform(len(row.committed), Purpose.GUESS, self.iterations * plan.depth)
            tried = listed(np.reshape(numbers, (self.iterations, plan.depth)))
            found = most_visited(search(table, pair, plan.depth, tried), nodes, plan.depth)
        else:
            found = best_first(table, pair, nodes, plan.depth)
        tree = DraftTree.of(found.tokens, found.parents, source="adaptive-trigram", device=device)
        visits, weights = (to_device(values, device, torch.float32) for values in (found.visits, found.weights))
        return replace(tree, grown=Grown((SEARCHED,), before=visits, after=weights))

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Raise what was written, and go towards the target's law behind each verified node."""
        table: Trigrams = row.state
        first = len(row.committed) - len(outcome.emitted)
        if self.rate:
            before = [row.committed[first - 2] if first > 1 else -1, outcome.root, *outcome.tokens]
            pairs = [(before[0], outcome.root)]
            pairs += [
                (before[parent + 2], token) for parent, token in zip(outcome.parents, outcome.tokens, strict=True)
            ]
            for pair, top, chances in zip(pairs, outcome.top, outcome.chances, strict=True):
                table.approach(pair, top, chances, self.rate)
        self._read(table, row.committed, first)

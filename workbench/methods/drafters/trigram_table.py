"""Weights of tri-grams, and searches for the draft's sentences after a pair of tokens."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.decoders.draft_verify.inspectable_state import Arrays, InspectableState, Look, Top, in_rows, tokens_in
from workbench.decoders.draft_verify.inspectable_state import numbers as numbers_in

KEPT = 16_384
"""Largest number of pairs of tokens in a table; those written longest ago are dropped first."""
ENTRY_BYTES = 1_400
"""Bytes of a pair in memory: its key, its row, the weights in it."""
WIDTH = 12
"""Successors stored per pair; the released code loads as many from its corpus."""
HEAVIEST = 3.0
"""Upper bound of a tri-gram's weight."""
C1, C2 = 32.0, 8.0
"""Constants of the search, from the released code: amount of exploration, and its growth with the visits."""

Pair = tuple[int, int]


class Trigrams(InspectableState):
    """Pair of tokens → weights of its most likely successors."""

    title = "Table of tri-grams"
    unit = "pairs"

    def __init__(self, most: int = KEPT, shared: bool = False) -> None:
        self.most, self.shared = most, shared
        self._rows: dict[Pair, dict[int, float]] = {}  # in order of their last write

    def __len__(self) -> int:
        return len(self._rows)

    def look(self, n: int) -> Look:
        heaviest = ((next(iter(row.items())), pair) for pair, row in self._rows.items() if row)
        most = heapq.nlargest(n, ((weight, pair, token) for (token, weight), pair in heaviest))
        top = [Top([token for token in pair if token >= 0], [after], weight) for weight, pair, after in most]
        size = len(self)
        return Look(size, self.most, ENTRY_BYTES * size, ENTRY_BYTES * self.most, "weight", top)

    def pack(self) -> Arrays:
        return {
            "pairs": in_rows(list(self._rows), 2),
            "tokens": in_rows([list(row) for row in self._rows.values()], WIDTH),
            "weights": in_rows([list(row.values()) for row in self._rows.values()], WIDTH, np.float32, fill=0),
        }

    def take(self, arrays: Arrays, vocabulary: int) -> None:
        pairs = tokens_in(arrays, "pairs", vocabulary, (None, 2), least=-1)
        tokens = tokens_in(arrays, "tokens", vocabulary, (len(pairs), WIDTH), least=-1)
        weights = numbers_in(arrays, "weights", (len(pairs), WIDTH), 0, HEAVIEST + 0.001)
        own, self._rows = self._rows, {}
        for (first, second), after, heavy in zip(pairs.tolist(), tokens.tolist(), weights.tolist(), strict=True):
            row = {token: weight for token, weight in zip(after, heavy, strict=True) if token >= 0}
            self._keep((first, second), row)
        for pair, row in own.items():  # this run's own entries are newer
            self._keep(pair, row)

    def clear(self) -> None:
        self._rows.clear()

    def row(self, pair: Pair) -> dict[int, float]:
        """Return weights by successor; empty if the pair is unknown."""
        return self._rows.get(pair, {})

    def write(self, pair: Pair, token: int, step: float) -> None:
        """Increase the weight of a written tri-gram, up to `HEAVIEST`."""
        row = self.row(pair)
        self._keep(pair, row | {token: min(HEAVIEST, row.get(token, 0.0) + step)})

    def approach(self, pair: Pair, tokens: Sequence[int], chances: Sequence[float], rate: float) -> None:
        """Set w ← (1 − rate) · w + rate · p after a pair, over the target's most likely tokens there."""
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
    """A state of the search: a path after the text.

    Attributes:
        chance: the tri-gram's weight, normalised over its pair's successors.
        weight: as in the table.
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
        """Add all successors of its pair, unvisited."""
        whole = sum(row.values())
        self.below = {token: Visited(weight / whole, weight) for token, weight in row.items()}


def search(table: Trigrams, pair: Pair, length: int, uniforms: Sequence[Sequence[float]]) -> Visited:
    """Run Monte Carlo tree search over the sentences after a pair.

    A search descends by PUCT, Q + (c₁ + ln((N + c₂ + 1) / c₂)) · P · √N / (1 + n), through expanded states, unvisited
    ones first; it expands the state where it ends, continues by samples from the table, and adds 1 + the sum of the
    weights on its path to all states that it passed.

    Args:
        table: table of weights.
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
    """Return the successor with the largest PUCT value; among unvisited ones the most likely."""
    assert at.below is not None
    wide = (C1 + math.log((at.visits + C2 + 1) / C2)) * math.sqrt(at.visits)
    best, found = -math.inf, -1
    for token, state in at.below.items():  # in descending order of weight
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
    """A draft: nodes, parents first, and the search's values of each."""

    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    visits: list[float] = field(default_factory=list[float])
    weights: list[float] = field(default_factory=list[float])


def most_visited(root: Visited, nodes: int, depth: int) -> Sentences:
    """Return the tree of the most visited states; a state has at most as many visits as its parent."""
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
    """Return the tree with the largest products of normalised weights, the limit of a long search."""
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

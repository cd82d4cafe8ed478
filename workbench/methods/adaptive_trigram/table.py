"""Table of tri-gram weights, and search for the most promising token sequences after a pair of tokens."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.decoders.draft_verify.inspectable_state import (
    Arrays,
    InspectableState,
    StateEntry,
    StateSummary,
    check_token_ids,
    pad_rows,
)
from workbench.decoders.draft_verify.inspectable_state import check_array as numbers_in

KEPT = 16_384
"""Maximum number of token pairs in a tri-gram table. The least recently updated pairs are dropped first."""
ENTRY_BYTES = 1_400
"""Memory of one token pair in a tri-gram table, in bytes: its key, and a dictionary with the weights of its
successors."""
WIDTH = 12
"""Maximum number of next tokens stored per token pair; ADED's released code loads as many from its corpus."""
HEAVIEST = 3.0
"""Upper bound of a tri-gram's weight."""
C1, C2 = 32.0, 8.0
"""Constants c₁ and c₂ of the Monte Carlo tree search, from ADED's released code: the amount of exploration at the
first visits, and the number of visits from which exploration grows."""

Pair = tuple[int, int]


class Trigrams(InspectableState):
    """Table of tri-gram weights: map from a pair of tokens to the weights of its most likely next tokens."""

    title = "Table of tri-grams"
    unit = "pairs"

    def __init__(self, most: int = KEPT, shared: bool = False) -> None:
        self.most, self.shared = most, shared
        self._rows: dict[Pair, dict[int, float]] = {}  # ordered by last write

    def __len__(self) -> int:
        return len(self._rows)

    def summarise(self, n: int) -> StateSummary:
        heaviest = ((next(iter(row.items())), pair) for pair, row in self._rows.items() if row)
        entries = heapq.nlargest(n, ((weight, pair, token) for (token, weight), pair in heaviest))
        top = [
            StateEntry([token for token in pair if token >= 0], [successor], weight)
            for weight, pair, successor in entries
        ]
        size = len(self)
        return StateSummary(size, self.most, ENTRY_BYTES * size, ENTRY_BYTES * self.most, "weight", top)

    def pack(self) -> Arrays:
        return {
            "pairs": pad_rows(list(self._rows), 2),
            "tokens": pad_rows([list(row) for row in self._rows.values()], WIDTH),
            "weights": pad_rows([list(row.values()) for row in self._rows.values()], WIDTH, np.float32, fill=0),
        }

    def merge(self, arrays: Arrays, vocabulary: int) -> None:
        pairs = check_token_ids(arrays, "pairs", vocabulary, (None, 2), least=-1)
        tokens = check_token_ids(arrays, "tokens", vocabulary, (len(pairs), WIDTH), least=-1)
        weights = numbers_in(arrays, "weights", (len(pairs), WIDTH), 0, HEAVIEST + 0.001)
        current, self._rows = self._rows, {}
        for (first, second), ids, values in zip(pairs.tolist(), tokens.tolist(), weights.tolist(), strict=True):
            row = {token: weight for token, weight in zip(ids, values, strict=True) if token >= 0}
            self._keep((first, second), row)
        for pair, row in current.items():  # entries of this run are newer
            self._keep(pair, row)

    def clear(self) -> None:
        self._rows.clear()

    def successors(self, pair: Pair) -> dict[int, float]:
        """Return the weight of each token that followed a pair of tokens; an empty dictionary for an unknown pair."""
        return self._rows.get(pair, {})

    def write(self, pair: Pair, token: int, step: float) -> None:
        """Increase the weight of a tri-gram that occurs in the text, up to `HEAVIEST`.

        Args:
            pair: first two tokens of the tri-gram.
            token: last token of the tri-gram.
            step: increase of the weight.
        """
        row = self.successors(pair)
        self._keep(pair, row | {token: min(HEAVIEST, row.get(token, 0.0) + step)})

    def approach(self, pair: Pair, tokens: Sequence[int], probs: Sequence[float], rate: float) -> None:
        """Move the weights w of the next tokens after a token pair towards the target's distribution p.

        The rule is w ← (1 − rate) · w + rate · p.

        Args:
            pair: the two tokens before the position.
            tokens: the target's most likely tokens at the position; p counts as 0 for all other tokens.
            probs: the target's probabilities of `tokens`.
            rate: step size, 0 to 1.
        """
        row = {token: (1 - rate) * weight for token, weight in self.successors(pair).items()}
        for token, prob in zip(tokens, probs, strict=True):
            row[token] = row.get(token, 0.0) + rate * prob
        self._keep(pair, row)

    def _keep(self, pair: Pair, row: dict[int, float]) -> None:
        best = sorted(row.items(), key=lambda item: -item[1])[:WIDTH]
        self._rows.pop(pair, None)
        self._rows[pair] = {token: weight for token, weight in best if weight > 0}
        if len(self._rows) > self.most:
            del self._rows[next(iter(self._rows))]


@dataclass(slots=True)
class SearchNode:
    """Node of the Monte Carlo tree search, which represents a token sequence after the text.

    Attributes:
        prior: weight of the sequence's last tri-gram, divided by the sum of the weights of all tri-grams that begin
            with the same two tokens.
        weight: weight of the last tri-gram in the table.
        visits: number of search iterations that passed the node.
        total: sum of the scores of the iterations that passed the node.
        below: child node of each next token; None before the node is expanded.
    """

    prior: float = 1.0
    weight: float = 0.0
    visits: int = 0
    total: float = 0.0
    below: dict[int, SearchNode] | None = None

    def expand(self, row: dict[int, float]) -> None:
        """Create an unvisited child node in the search tree for each next token.

        Args:
            row: weight of each next token.
        """
        total = sum(row.values())
        self.below = {token: SearchNode(weight / total, weight) for token, weight in row.items()}


def search(table: Trigrams, pair: Pair, length: int, uniforms: Sequence[Sequence[float]]) -> SearchNode:
    """Run Monte Carlo tree search over the token sequences after a pair of tokens, and return the root of its tree.

    An iteration descends through expanded nodes to the child with the largest PUCT value Q + (c₁ + ln((N + c₂ + 1) /
    c₂)) · P · √N / (1 + n), unvisited ones first. Q is a child's mean score, P its prior, n its visits, and N the
    visits of its parent. The iteration expands the node where the descent ends, and samples the rest of the sequence
    from the table. Then it adds the score, 1 + the sum of the weights on its path, to all nodes that it passed.

    Args:
        table: table of weights.
        pair: the newest two tokens.
        length: maximum number of tokens of a sequence.
        uniforms: `length` random numbers in [0, 1) per iteration.

    Returns:
        Root of the search tree; all nodes have their visit counts.

    Source: Liu et al. 2024, ADED, arXiv:2407.12021, draft maker; constants and score as in its released code.
    """
    root = SearchNode()
    root.expand(table.successors(pair))
    for numbers in uniforms:
        current, path, score = root, [root], 1.0
        u, v = pair
        while current.below and len(path) <= length:
            token = _chosen(current)
            current = current.below[token]
            path.append(current)
            score += current.weight
            u, v = v, token
            if current.below is None:
                current.expand(table.successors((u, v)))
                break
        for number in numbers[len(path) - 1 :]:
            if not (row := table.successors((u, v))):
                break
            token = _drawn(row, number)
            score += row[token]
            u, v = v, token
        for state in path:
            state.visits += 1
            state.total += score
    return root


def _chosen(at: SearchNode) -> int:
    """Return the next token to explore: the likeliest unvisited one, or else the one with the largest PUCT value."""
    assert at.below is not None
    exploration = (C1 + math.log((at.visits + C2 + 1) / C2)) * math.sqrt(at.visits)
    best, choice = -math.inf, -1
    for token, state in at.below.items():  # in descending order of weight
        n = state.visits
        value = state.total / n + exploration * state.prior / (1 + n) if n else math.inf
        if value > best:
            best, choice = value, token
    return choice


def _drawn(row: dict[int, float], number: float) -> int:
    rest = number * sum(row.values())
    for token, weight in row.items():
        rest -= weight
        if rest < 0:
            return token
    return next(iter(row))


@dataclass(slots=True)
class Sentences:
    """Draft tree as lists with one entry per node: token, parent, number of visits, and tri-gram weight."""

    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    visits: list[float] = field(default_factory=list[float])
    weights: list[float] = field(default_factory=list[float])


def most_visited(root: SearchNode, nodes: int, depth: int) -> Sentences:
    """Return the draft tree of the most visited nodes of a search.

    It contains the parent of each of its nodes, because a parent has at least as many visits as its child.

    Args:
        root: result of `search`.
        nodes: maximum number of nodes.
        depth: maximum number of levels.
    """
    tree, order = Sentences(), itertools.count()
    heap: list[tuple[float, int, int, int, int, SearchNode]] = []

    def push(state: SearchNode, parent: int, level: int) -> None:
        for token, child in (state.below or {}).items():
            if child.visits:
                heapq.heappush(heap, (-child.visits, next(order), parent, level, token, child))

    push(root, -1, 1)
    while heap and len(tree.tokens) < nodes:
        _, _, parent, level, token, state = heapq.heappop(heap)
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.visits.append(float(state.visits))
        tree.weights.append(state.weight)
        if level < depth:
            push(state, len(tree.tokens) - 1, level + 1)
    return tree


def best_first(table: Trigrams, pair: Pair, nodes: int, depth: int) -> Sentences:
    """Return the draft tree of the nodes with the largest products of normalised tri-gram weights along their paths.

    A long Monte Carlo search converges to this tree.

    Args:
        table: table of weights.
        pair: the newest two tokens.
        nodes: maximum number of nodes.
        depth: maximum number of levels.
    """
    tree, order = Sentences(), itertools.count()
    heap: list[tuple[float, int, int, int, int, float, Pair]] = []

    def push(chance: float, pair: Pair, parent: int, level: int) -> None:
        row = table.successors(pair)
        total = sum(row.values())
        for token, weight in row.items():
            child_prob = chance * weight / total
            heapq.heappush(heap, (-child_prob, next(order), parent, level, token, weight, (pair[1], token)))

    push(1.0, pair, -1, 1)
    while heap and len(tree.tokens) < nodes:
        chance, _, parent, level, token, weight, next_pair = heapq.heappop(heap)
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.visits.append(0.0)
        tree.weights.append(weight)
        if level < depth:
            push(-chance, next_pair, len(tree.tokens) - 1, level + 1)
    return tree

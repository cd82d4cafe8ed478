"""Suffix decoding: draft the continuations of the longest suffix matches, with probabilities estimated from counts."""

from __future__ import annotations

import heapq
import itertools
from collections import abc
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from workbench.core.params import param
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.inspectable_state import (
    Arrays,
    InspectableState,
    StateEntry,
    StateSummary,
    check_token_ids,
)
from workbench.decoders.draft_verify.parts import Drafter, Plan, RoundFeedback
from workbench.engine.request import Sequence
from workbench.methods.common.warm_start import WARM_NOTICE, warm_param
from workbench.methods.tree_builders.shapes import NODES
from workbench.models.loading import Models

END = -1
"""Separator token after each stored text. No drafted continuation crosses it."""
SHOWN = 4
"""Length in tokens of the frequent strings that the web page shows in its view of the drafting state."""
STORED = 65_536
"""Maximum number of stored tokens of earlier runs (256 KiB). The oldest tokens are dropped first, a quarter at a
time."""
LOOKED_AT = 16_384
"""Number of newest tokens in which the web page's view of the drafting state counts the most frequent strings."""
COUNTED = 256
"""Maximum number of occurrences of a match whose continuations are counted. Older occurrences are ignored."""


class Text:
    """Text as one array of tokens, which is searched for occurrences of the newest tokens.

    A node of the text's suffix tree is represented by the indices after the occurrences of a string. No suffix tree is
    built, because a round needs only few of its nodes.
    """

    def __init__(self) -> None:
        self._room: np.ndarray = np.empty(1024, np.int32)
        self.n = 0

    @property
    def tokens(self) -> np.ndarray:
        """Return all tokens of the text, int32 [n]."""
        return self._room[: self.n]

    def extend(self, tokens: abc.Sequence[int]) -> None:
        """Append tokens to the searched text."""
        if (size := self.n + len(tokens)) > len(self._room):
            self._room = np.concatenate([self.tokens, np.empty(size, np.int32)])
        self._room[self.n : size] = tokens
        self.n = size

    def forget(self, most: int) -> None:
        """Drop the oldest whole texts until at most `most` tokens remain."""
        if self.n > most:
            ends = np.flatnonzero(self.tokens == END) + 1
            first = int(ends[ends >= self.n - most].min(initial=self.n))
            self._room = np.array(self.tokens[first:])
            self.n = len(self._room)

    def cut(self, most: int) -> None:
        """Drop the oldest tokens until at most `most` remain, even if this cuts a text."""
        if self.n > most:
            self._room = np.array(self.tokens[self.n - most :])
            self.n = most

    def most_frequent(self, width: int, n: int) -> list[tuple[list[int], int]]:
        """Return the `n` most frequent strings of `width` tokens in the newest part of the text, with their counts."""
        tokens = self.tokens[-LOOKED_AT:]
        if len(tokens) < width:
            return []
        windows = np.lib.stride_tricks.sliding_window_view(tokens, width)
        rows, times = np.unique(windows[(windows != END).all(1)], axis=0, return_counts=True)
        return [(rows[i].tolist(), int(times[i])) for i in np.argsort(-times, kind="stable")[:n] if times[i] > 1]

    @property
    def n_bytes(self) -> int:
        """Return the memory of the text's token array in bytes."""
        return self._room.nbytes

    def matches(self, context: abc.Sequence[int], longest: int) -> list[np.ndarray]:
        """Return, for m = 1, 2, …, the ascending indices after occurrences of the last m tokens of a context.

        The list ends before the first m without an occurrence.

        Args:
            context: committed tokens, of which the last ones are looked up in the text.
            longest: maximum of m.
        """
        text, matches = self.tokens, list[np.ndarray]()
        places = np.flatnonzero(text[:-1] == context[-1]) + 1
        places = places[text[places] != END]
        for m in range(1, min(longest, len(context)) + 1):
            if m > 1:
                places = places[places >= m]
                places = places[text[places - m] == context[-m]]
            if not len(places):
                break
            matches.append(places)
        return matches

    def children(self, positions: np.ndarray) -> list[tuple[int, float, np.ndarray]]:
        """Return the distinct tokens at the given indices of the text, the most frequent first.

        Tokens with equal counts are ordered from the newest to the oldest.

        Returns:
            (token, its share of all tokens at these indices, indices after its occurrences) of each token.
        """
        positions = positions[positions < self.n]
        following = self.tokens[positions]
        next_places: dict[int, list[int]] = {}
        for token, place in zip(following.tolist(), positions.tolist(), strict=True):
            if token != END:
                next_places.setdefault(token, []).append(place + 1)
        total = sum(map(len, next_places.values()))
        order = sorted(next_places.items(), key=lambda item: (len(item[1]), item[1][-1]), reverse=True)
        return [(token, len(indices) / total, np.array(indices)) for token, indices in order]


@dataclass(frozen=True, slots=True)
class Guess:
    """Draft tree with node probabilities estimated from counts of continuations.

    Attributes:
        tokens: token of each node, parents first.
        parents: index of each node's parent; −1 below the root.
        probs: for each node, the product of the tokens' shares along the path to it.
        matched: length of the match in tokens.
    """

    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    probs: list[float] = field(default_factory=list[float])
    matched: int = 0

    @property
    def score(self) -> float:
        """Return the draft's expected number of accepted tokens, estimated from counts."""
        return sum(self.probs)


@dataclass
class SuffixState(InspectableState):
    """Drafting state of suffix decoding for one request.

    Attributes:
        text: prompt and output of the request.
        since: number of committed tokens when drafting began.
        store: further texts to search; None: there are none. If `shared`, these are the outputs of earlier runs,
            otherwise the content of a file that the user loaded.
        shared: whether the store is shared by several runs.
    """

    title = "Suffixes of texts"
    unit: ClassVar[str] = "tokens"
    text: Text
    since: int
    store: Text | None
    shared: bool = False

    def watch(self, tokens: abc.Sequence[int]) -> None:
        """Append new committed tokens to the request's text, and drop the oldest tokens of a long text."""
        self.text.extend(tokens)
        if self.text.n > STORED:
            self.text.cut(STORED * 3 // 4)

    def summarise(self, n: int) -> StateSummary:
        texts = [text for text in (self.text, self.store) if text is not None]
        strings = sorted(itertools.chain(*(text.most_frequent(SHOWN, n) for text in texts)), key=lambda item: -item[1])
        top = [StateEntry(tokens[:-1], tokens[-1:], times) for tokens, times in strings[:n]]
        size, n_bytes = sum(text.n for text in texts), sum(text.n_bytes for text in texts)
        return StateSummary(size, 2 * STORED, n_bytes, 2 * 2 * 4 * (STORED + 1024), "times seen", top)

    def pack(self) -> Arrays:
        stored = self.store.tokens if self.store is not None else np.empty(0, np.int32)
        return {"texts": np.concatenate([stored, self.text.tokens, np.array([END], np.int32)])}

    def merge(self, arrays: Arrays, vocabulary: int) -> None:
        loaded = check_token_ids(arrays, "texts", vocabulary, (None,), least=END).astype(np.int32)
        store = self.store if self.store is not None else Text()
        store.extend([*loaded[-STORED:], END])
        store.cut(STORED)
        self.store = store

    def clear(self) -> None:
        if self.store is not None:
            self.store.cut(0)


@dataclass(frozen=True)
class Suffix(Drafter):
    """Match the newest tokens, count the continuations of each match, and draft the tree with the most expected tokens.

    A match of m tokens allows a draft of up to `factor` · m + `offset` nodes. Of the drafts of all match lengths, the
    one with the largest sum of node probabilities is proposed, so drafts are small where counts are low. The request's
    own text is always searched. With `warm` the outputs of earlier runs are searched too, and used if they give more
    expected tokens.

    Host cost per round, CPU time on an Intel Xeon with 2 cores, English text and code split into words: 0.08 ms
    (median; 95 % within 0.3 ms) at 2,000 tokens of context, 0.16 ms (0.5 ms) at 32,000: one scan of an int32 array per
    round.

    Source: Oliaro et al. 2025, SuffixDecoding, arXiv:2411.04975, §3. The paper has two suffix trees; the counts here
    equal the counts in such trees.
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    nodes: int = param(16, **NODES)
    longest: int = param(64, ge=1, le=64, doc="longest suffix to match, in tokens")
    factor: float = param(1.0, ge=0.1, le=8.0, doc="number of draft nodes per matched token")
    offset: float = param(0.0, ge=0.0, le=16.0, doc="number of draft nodes in addition to factor · matched tokens")
    least: float = param(0.1, ge=0.0, le=1.0, doc="minimum probability of a draft node, estimated from suffix counts")
    branches: bool = param(True, doc="draft all continuations as a tree; otherwise a chain of the most frequent tokens")
    warm: bool = warm_param("outputs")

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, because tokens are looked up in texts."""
        return frozenset({Sampling.DETERMINISTIC})

    def notice(self) -> str:
        """Return a note for the user if drafts depend on earlier runs (`warm`), else ""."""
        return WARM_NOTICE if self.warm else ""

    def state_key(self) -> Hashable:
        """Return the cache key under which later drafters find the stored texts. It contains no drafting parameter."""
        return "suffix", self.warm

    def init_state(self, sequence: Sequence, models: Models) -> SuffixState:
        """Return a drafting state whose text contains all committed tokens."""
        text = Text()
        text.extend(sequence.committed)
        store = models.shared.setdefault("suffix", Text()) if self.warm else None
        text.cut(STORED)
        return SuffixState(text, len(sequence.committed), store, self.warm)

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Draft from the request's own text, or from the stored texts if they give more expected accepted tokens."""
        state: SuffixState = sequence.state.drafter
        guess, device = self.draft(state.text, sequence.committed, plan), sequence.models.target.device
        if state.store is not None:
            other = self.draft(state.store, sequence.committed, plan)
            sequence.report.signals["draft from earlier runs"] = float(other.score > guess.score)
            guess = max(guess, other, key=lambda g: g.score)  # ties go to the request's own text
        sequence.report.signals["matched tokens"] = guess.matched
        sequence.report.signals["expected tokens"] = guess.score
        return DraftTree.from_parents(guess.tokens, guess.parents, source="suffix", device=device, score=guess.probs)

    def draft(self, text: Text, context: abc.Sequence[int], plan: Plan) -> Guess:
        """Return the draft with the most expected accepted tokens over all match lengths.

        Of equal drafts, the one of the longer match is returned.

        Args:
            text: text to search.
            context: committed tokens.
            plan: maximum depth and maximum number of nodes of the draft.
        """
        best, n_places, max_nodes = Guess(), 0, plan.limit_nodes(self.nodes)
        matches = text.matches(context[-self.longest :], self.longest)
        for m in range(len(matches), 0, -1):
            budget = min(max_nodes, int(m * self.factor + self.offset))
            if best.score >= budget:  # budgets fall with m, and no node adds more than 1
                break
            if len(matches[m - 1]) == n_places:  # the same occurrences give the same draft with fewer nodes
                continue
            n_places = len(matches[m - 1])
            guess = self.grow(text, matches[m - 1], budget, plan.depth, m)
            best = max(best, guess, key=lambda g: g.score)
        return best

    def grow(self, text: Text, positions: np.ndarray, budget: int, depth: int, matched: int) -> Guess:
        """Return the most frequent continuations at the given indices of a text as a draft tree, parents first.

        Args:
            text: text that was searched.
            positions: indices after the occurrences of the match.
            budget: maximum number of nodes.
            depth: maximum number of levels.
            matched: length of the match in tokens.
        """
        guess, order = Guess(matched=matched), itertools.count()
        heap: list[tuple[float, int, int, int, int, np.ndarray]] = []

        def push(below: np.ndarray, parent: int, level: int, chance: float) -> None:
            children = text.children(below)
            for token, share, next_places in children if self.branches else children[:1]:
                if chance * share >= self.least:
                    heapq.heappush(heap, (-chance * share, next(order), parent, level, token, next_places))

        if depth > 0:
            push(positions[-COUNTED:], -1, 1, 1.0)
        while heap and len(guess.tokens) < budget:
            chance, _, parent, level, token, next_places = heapq.heappop(heap)
            guess.tokens.append(token)
            guess.parents.append(parent)
            guess.probs.append(-chance)
            if level < depth:
                push(next_places, len(guess.tokens) - 1, level + 1, -chance)
        return guess

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Append the emitted tokens to the request's text."""
        sequence.state.drafter.watch(feedback.emitted)

    def release(self, sequence: Sequence, models: Models) -> None:
        """Add the generated text to the texts that later runs search."""
        state: SuffixState | None = sequence.state.drafter
        if state is not None and state.store is not None and len(sequence.committed) > state.since:
            state.store.extend([*sequence.committed[state.since :], END])
            if state.store.n > STORED:
                state.store.forget(STORED * 3 // 4)

"""Draft what followed the longest suffixes before, as far as their counts promise that it pays."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from workbench.core.params import param
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.draft_plan import Plan
from workbench.engine.drafter_state import Arrays, Look, Owned, Top, tokens_in
from workbench.engine.feedback import Outcome
from workbench.engine.parts import Drafter
from workbench.engine.request import Row
from workbench.methods.drafters.warmth import WARM, warmth
from workbench.methods.growers.shapes import NODES
from workbench.models.loading import Models

END = -1
"""Stands behind each text of a store: nothing goes on over it."""
SHOWN = 4
"""Tokens of the strings that are shown."""
STORED = 65_536
"""Tokens of earlier runs kept at most (256 KiB); the oldest go first, a quarter at a time."""
LOOKED_AT = 16_384
"""Newest tokens among which the most frequent strings are shown."""
COUNTED = 256
"""Occurrences counted at most, the newest ones."""


class Text:
    """Tokens in one array. A node of its suffix tree is the list of places behind a string's occurrences.

    No tree is built: the few nodes that a round looks at are made of their occurrences when it does.
    """

    def __init__(self) -> None:
        self._room: np.ndarray = np.empty(1024, np.int32)
        self.n = 0

    @property
    def tokens(self) -> np.ndarray:
        """int32 [n]."""
        return self._room[: self.n]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        if (wanted := self.n + len(tokens)) > len(self._room):
            self._room = np.concatenate([self.tokens, np.empty(wanted, np.int32)])
        self._room[self.n : wanted] = tokens
        self.n = wanted

    def forget(self, most: int) -> None:
        """Drop the oldest whole texts until at most `most` tokens are left."""
        if self.n > most:
            ends = np.flatnonzero(self.tokens == END) + 1
            first = int(ends[ends >= self.n - most].min(initial=self.n))
            self._room = np.array(self.tokens[first:])
            self.n = len(self._room)

    def cut(self, most: int) -> None:
        """Drop the oldest tokens until at most `most` are left, wherever texts end."""
        if self.n > most:
            self._room = np.array(self.tokens[self.n - most :])
            self.n = most

    def counted(self, width: int, n: int) -> list[tuple[list[int], int]]:
        """The `n` strings of so many tokens that occur most often among the newest ones, and how often."""
        tokens = self.tokens[-LOOKED_AT:]
        if len(tokens) < width:
            return []
        windows = np.lib.stride_tricks.sliding_window_view(tokens, width)
        rows, times = np.unique(windows[(windows != END).all(1)], axis=0, return_counts=True)
        return [(rows[i].tolist(), int(times[i])) for i in np.argsort(-times, kind="stable")[:n] if times[i] > 1]

    @property
    def n_bytes(self) -> int:
        """What it takes in memory."""
        return self._room.nbytes

    def matches(self, context: Sequence[int], longest: int) -> list[np.ndarray]:
        """Entry m − 1: places behind the occurrences of the context's last m tokens that something follows, rising.

        It ends before the first m without any.
        """
        text, found = self.tokens, list[np.ndarray]()
        places = np.flatnonzero(text[:-1] == context[-1]) + 1
        places = places[text[places] != END]
        for m in range(1, min(longest, len(context)) + 1):
            if m > 1:
                places = places[places >= m]
                places = places[text[places - m] == context[-m]]
            if not len(places):
                break
            found.append(places)
        return found

    def children(self, places: np.ndarray) -> list[tuple[int, float, np.ndarray]]:
        """What follows at these places: (token, its share, places behind it); most frequent, then newest, first."""
        places = places[places < self.n]
        following = self.tokens[places]
        below: dict[int, list[int]] = {}
        for token, place in zip(following.tolist(), places.tolist(), strict=True):
            if token != END:
                below.setdefault(token, []).append(place + 1)
        total = sum(map(len, below.values()))
        order = sorted(below.items(), key=lambda item: (len(item[1]), item[1][-1]), reverse=True)
        return [(token, len(behind) / total, np.array(behind)) for token, behind in order]


@dataclass(frozen=True, slots=True)
class Guess:
    """A draft, and how sure the counts are of each of its nodes: the product of the shares on the way to it."""

    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    chance: list[float] = field(default_factory=list[float])
    matched: int = 0

    @property
    def score(self) -> float:
        """Tokens that the counts expect to be accepted."""
        return sum(self.chance)


@dataclass
class SuffixState(Owned):
    """One request's own text, where its part that was watched begins, and a store, if any.

    The store has what earlier runs wrote, where those share it, or what a file brought.
    """

    title = "Suffixes of texts"
    unit: ClassVar[str] = "tokens"
    text: Text
    since: int
    store: Text | None
    shared: bool = False

    def watch(self, tokens: Sequence[int]) -> None:
        """The request's text goes on."""
        self.text.extend(tokens)
        if self.text.n > STORED:
            self.text.cut(STORED * 3 // 4)

    def look(self, n: int) -> Look:
        texts = [text for text in (self.text, self.store) if text is not None]
        found = sorted(itertools.chain(*(text.counted(SHOWN, n) for text in texts)), key=lambda item: -item[1])
        top = [Top(tokens[:-1], tokens[-1:], times) for tokens, times in found[:n]]
        size, n_bytes = sum(text.n for text in texts), sum(text.n_bytes for text in texts)
        return Look(size, 2 * STORED, n_bytes, 2 * 2 * 4 * (STORED + 1024), "times seen", top)

    def pack(self) -> Arrays:
        stored = self.store.tokens if self.store is not None else np.empty(0, np.int32)
        return {"texts": np.concatenate([stored, self.text.tokens, np.array([END], np.int32)])}

    def take(self, arrays: Arrays, vocabulary: int) -> None:
        loaded = tokens_in(arrays, "texts", vocabulary, (None,), least=END).astype(np.int32)
        store = self.store if self.store is not None else Text()
        store.extend([*loaded[-STORED:], END])
        store.cut(STORED)
        self.store = store

    def clear(self) -> None:
        if self.store is not None:
            self.store.cut(0)


@dataclass(frozen=True)
class Suffix(Drafter):
    """Match the newest tokens, count what followed each match, and draft the tree that most is expected of.

    The longer the match, the more is drafted: nodes ≤ factor · match + offset. Of the drafts of all match lengths the
    one with the largest sum of chances is proposed, so that little is drafted where the text says little. Its own text
    is always searched; with `warm` also what earlier runs wrote, if more is expected of it.

    Host cost of a round, CPU time on an Intel Xeon with 2 cores, English text and code cut into words: 0.08 ms (median;
    95 % within 0.3 ms) at 2,000 tokens of context, 0.16 ms (0.5 ms) at 32,000: one scan of an int32 array a round.

    Source: Oliaro et al. 2025, SuffixDecoding, arXiv:2411.04975, §3. There two suffix trees are kept; the counts here
    are those of such trees.
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    nodes: int = param(16, **NODES)
    longest: int = param(64, ge=1, le=64, doc="longest suffix to match, in tokens")
    factor: float = param(1.0, ge=0.1, le=8.0, doc="draft nodes per matched token")
    offset: float = param(0.0, ge=0.0, le=16.0, doc="draft nodes in addition")
    least: float = param(0.1, ge=0.0, le=1.0, doc="least node probability, by counts, that is drafted")
    branches: bool = param(True, doc="draft all continuations as a tree; otherwise a chain of the most frequent tokens")
    warm: bool = warmth("outputs")

    def siblings(self) -> frozenset[Sampling]:
        """Looked up."""
        return frozenset({Sampling.DETERMINISTIC})

    def notice(self) -> str:
        """Warm drafts depend on other runs."""
        return WARM if self.warm else ""

    def memory(self) -> Hashable:
        """The texts, whatever is drafted from them."""
        return "suffix", self.warm

    def prime(self, row: Row, models: Models) -> SuffixState:
        """Take in everything committed."""
        text = Text()
        text.extend(row.committed)
        store = models.shared.setdefault("suffix", Text()) if self.warm else None
        text.cut(STORED)
        return SuffixState(text, len(row.committed), store, self.warm)

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """The draft that most is expected of, from the request's own text or, if more, from the store."""
        assert row.models is not None
        state: SuffixState = row.state
        guess, device = self.draft(state.text, row.committed, plan), row.models.target.device
        if state.store is not None:
            other = self.draft(state.store, row.committed, plan)
            row.signals["from earlier runs"] = float(other.score > guess.score)
            guess = max(guess, other, key=lambda g: g.score)  # the first of equals: its own
        row.signals["matched tokens"] = guess.matched
        row.signals["expected tokens"] = guess.score
        return DraftTree.of(guess.tokens, guess.parents, source="suffix", device=device, score=guess.chance)

    def draft(self, text: Text, context: Sequence[int], plan: Plan) -> Guess:
        """The best draft over all match lengths; of equals, that of the longer match."""
        best, drafted, most = Guess(), 0, plan.within(self.nodes)
        found = text.matches(context[-self.longest :], self.longest)
        for m in range(len(found), 0, -1):
            budget = min(most, int(m * self.factor + self.offset))
            if best.score >= budget:  # budgets fall with m, and no node adds more than 1
                break
            if len(found[m - 1]) == drafted:  # the same occurrences: the same draft, cut shorter
                continue
            drafted = len(found[m - 1])
            guess = self.grow(text, found[m - 1], budget, plan.depth, m)
            best = max(best, guess, key=lambda g: g.score)
        return best

    def grow(self, text: Text, places: np.ndarray, budget: int, depth: int, matched: int) -> Guess:
        """The `budget` likeliest nodes below these places, parents first."""
        guess, order = Guess(matched=matched), itertools.count()
        heap: list[tuple[float, int, int, int, int, np.ndarray]] = []

        def push(below: np.ndarray, parent: int, level: int, chance: float) -> None:
            children = text.children(below)
            for token, share, behind in children if self.branches else children[:1]:
                if chance * share >= self.least:
                    heapq.heappush(heap, (-chance * share, next(order), parent, level, token, behind))

        if depth > 0:
            push(places[-COUNTED:], -1, 1, 1.0)
        while heap and len(guess.tokens) < budget:
            chance, _, parent, level, token, behind = heapq.heappop(heap)
            guess.tokens.append(token)
            guess.parents.append(parent)
            guess.chance.append(-chance)
            if level < depth:
                push(behind, len(guess.tokens) - 1, level + 1, -chance)
        return guess

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Take in the new tokens."""
        row.state.watch(outcome.emitted)

    def release(self, row: Row, models: Models) -> None:
        """Leave what was written to later runs."""
        state: SuffixState | None = row.state
        if state is not None and state.store is not None and len(row.committed) > state.since:
            state.store.extend([*row.committed[state.since :], END])
            if state.store.n > STORED:
                state.store.forget(STORED * 3 // 4)

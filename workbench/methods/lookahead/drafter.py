"""Lookahead decoding: Jacobi iteration on a window of extra positions yields n-grams, which are drafted later."""

from __future__ import annotations

import itertools
from collections import abc
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.probes import Probes
from workbench.core.transfer import to_device, to_host
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.inspectable_state import (
    Arrays,
    InspectableState,
    StateEntry,
    StateSummary,
    check_token_ids,
    pad_rows,
)
from workbench.decoders.draft_verify.parts import Drafter, Plan, RoundFeedback
from workbench.decoders.draft_verify.verification_input import ROOM
from workbench.engine.request import Sequence
from workbench.methods.common.random_tokens import sample_from_text
from workbench.methods.tree_builders.shapes import MOST_NODES
from workbench.models.loading import Models

ENTRY_BYTES = 600
"""Memory of one pooled n-gram in bytes: its later tokens, its round, and a share of its first token's dictionary."""
KEPT = 16_384
"""Maximum number of n-grams in a pool. The n-grams whose first token was added least recently are dropped first."""

POOLED = TreeBuilderRule(
    "n-gram pool",
    "From the n-gram pool",
    "The pool contains an n-gram that begins with the newest token; this draft is the n-gram's token at this position.",
    "rounds since the n-gram was last stored",
)


class Pool:
    """Pool of n-grams. For each first token it stores up to `guesses` tails, the later tokens of its newest n-grams."""

    def __init__(self, guesses: int, most: int = KEPT) -> None:
        self.guesses, self.most, self.n = guesses, most, 0
        self._tails: dict[int, dict[tuple[int, ...], int]] = {}  # both dicts are ordered by last write

    def add(self, first: int, tail: tuple[int, ...], now: int = 0) -> None:
        """Add an n-gram to the pool.

        Args:
            first: first token of the n-gram.
            tail: tokens of the n-gram after the first.
            now: number of the current round.
        """
        tails = self._tails.pop(first, {})
        self.n -= tails.pop(tail, None) is not None
        if len(tails) >= self.guesses:
            del tails[next(iter(tails))]
            self.n -= 1
        tails[tail] = now
        self._tails[first] = tails
        self.n += 1
        while self.n > self.most:
            self.n -= len(self._tails.pop(next(iter(self._tails))))

    def read(self, text: abc.Sequence[int], ngram: int, begin: int = 0) -> None:
        """Add all n-grams of a text that end at or after index `begin` to the pool.

        Args:
            text: token ids of the text.
            ngram: number of tokens per n-gram.
            begin: index in the text.
        """
        for end in range(max(ngram, begin + 1), len(text) + 1):
            self.add(text[end - ngram], tuple(text[end - ngram + 1 : end]))

    def tails_after(self, first: int) -> list[tuple[tuple[int, ...], int]]:
        """Return (later tokens, round of the last addition) of pooled n-grams that begin with a token, newest first."""
        return list(self._tails.get(first, {}).items())[::-1]

    def newest(self) -> Iterator[tuple[int, tuple[int, ...], int]]:
        """Yield (first token, later tokens, round) of all n-grams in the pool.

        First tokens are ordered by their last addition, the newest first. The n-grams of one first token are ordered in
        the same way.
        """
        for first, tails in reversed(self._tails.items()):
            for tail, round_ in reversed(tails.items()):
                yield first, tail, round_


@dataclass
class LookaheadState(InspectableState):
    """Lookahead window and n-gram pool of one sequence.

    Attributes:
        pool: pool of n-grams.
        rows: window of guesses, the oldest row first. Row r, column c is a guess at the token c + r positions after the
            last committed token. Column 0 of row 0 represents the last committed token itself; its stored value is
            ignored. An empty list means that there is no window.
        now: number of rounds so far.
        drafted: number of nodes drafted in the current round.
        n_pool_hits: number of drafted tokens that were accepted so far.
        probing: probes (extra positions) that contain the window in the current round's forward pass; None: there are
            none.
    """

    title = "Pool of n-grams"
    unit: ClassVar[str] = "n-grams"
    pool: Pool
    rows: list[list[int]] = field(default_factory=list[list[int]])
    now: int = 0
    drafted: int = 0
    n_pool_hits: int = 0
    probing: Probes | None = None

    def summarise(self, n: int) -> StateSummary:
        newest = itertools.islice(self.pool.newest(), n)
        top = [StateEntry([first], tail, self.now - round_) for first, tail, round_ in newest]
        size, most = self.pool.n, self.pool.most
        return StateSummary(
            size, most, ENTRY_BYTES * size, ENTRY_BYTES * most, "rounds since the n-gram was stored", top
        )

    def pack(self) -> Arrays:
        ngrams = list(self.pool.newest())[::-1]
        width = max((len(tail) for _, tail, _ in ngrams), default=1)
        return {
            "firsts": np.array([first for first, _, _ in ngrams], np.int32),
            "tails": pad_rows([tail for _, tail, _ in ngrams], width),
        }

    def merge(self, arrays: Arrays, vocabulary: int) -> None:
        firsts = check_token_ids(arrays, "firsts", vocabulary, (None,))
        tails = check_token_ids(arrays, "tails", vocabulary, (len(firsts), None), least=-1)
        current = list(self.pool.newest())[::-1]
        rows: list[list[int]] = tails.tolist()
        for first, row in zip(firsts.tolist(), rows, strict=True):
            if tail := tuple(itertools.takewhile((0).__le__, row)):
                self.pool.add(first, tail)
        for first, tail, round_ in current:  # entries of this run are newer
            self.pool.add(first, tail, round_)

    @property
    def size(self) -> int:
        """Return the number of guesses in the lookahead window, without the last committed token."""
        return len(self.rows) * len(self.rows[0]) - 1 if self.rows else 0


@dataclass(frozen=True)
class Lookahead(Drafter):
    """Guess ahead in a window of `window` columns, and draft the n-grams collected from these columns.

    The window's rows are the last N − 1 steps of Jacobi iteration on the next tokens: each row contains the target's
    predictions for the row before it. The forward pass processes the whole window as probes, extra positions that are
    never accepted, in addition to the draft. Row 0 is a chain after the last committed token. A guess in a later row
    attends to row 0 up to its own column, and to the guesses above it in its column. The target's predictions after the
    last row are the next row. Each column with the prediction after it is an n-gram, which goes into the pool. The
    draft consists of the pool's n-grams that begin with the newest token: up to `guesses` tails of N − 1 tokens.

    The guesses are the most likely tokens at every temperature, and no draft attends to a probe. So drafts depend on
    committed text alone, and the output follows the target's distribution. A forward pass processes W · (N − 1) − 1
    tokens in addition to the draft.

    Attributes:
        window: number W of columns. 0: there is no window, so the pool contains only n-grams added by `from_text`.
        ngram: number N of tokens per n-gram; the window has N − 1 rows.
        guesses: number G of n-grams stored and drafted per first token.
        follow: whether the window moves by the number of tokens that a round emits; its last columns then get random
            tokens. The released code moves it by one position per round, so that its guesses lag.
        from_text: whether the n-grams of the text are also added to the pool.

    Source: Fu et al. 2024, Break the sequential dependency of LLM inference using lookahead decoding, arXiv:2402.02057,
    §3 and Figure 3. The window starts with tokens of the prompt, and is filled in N − 2 rounds, as in the released
    code.
    """

    reuses_logits: ClassVar[bool] = True

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    window: int = param(5, ge=0, le=24, doc="W, number of columns in the lookahead window; 0: no window")
    ngram: int = param(3, ge=2, le=6, doc="N, n-gram size; the last N − 1 tokens are drafted")
    guesses: int = param(5, ge=1, le=32, doc="G, number of n-grams that are stored and drafted for each first token")
    follow: bool = param(True, doc="move the window by the number of accepted tokens instead of by one position")
    from_text: bool = param(False, doc="add n-grams of the text to the pool, too")

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, because tokens are looked up in the n-gram pool."""
        return frozenset({Sampling.DETERMINISTIC})

    def state_key(self) -> Hashable:
        """Return the cache key under which later drafters find window and pool: the parameters of both."""
        return "lookahead", self.window, self.ngram, self.guesses, self.follow, self.from_text

    def init_state(self, sequence: Sequence, models: Models) -> LookaheadState:
        """Return a drafting state with an empty n-gram pool and a window that starts with random tokens of the text.

        The window's first row has extra columns, because every further row makes the window one column narrower.
        """
        state = LookaheadState(Pool(self.guesses))
        if self.window:
            state.rows = [[-1, *sample_from_text(sequence, self.window + self.ngram - 3)]]
        if self.from_text:
            state.pool.read(sequence.committed, self.ngram)
        return state

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Draft the later tokens of n-grams that begin with the newest token, as a tree that merges common prefixes."""
        state: LookaheadState = sequence.state.drafter
        tails = state.pool.tails_after(sequence.committed[-1])
        sequence.report.signals |= {
            "n-grams in the pool": state.pool.n,
            "n-grams found": len(tails),
            "pool hits": state.n_pool_hits,
        }
        sequence.report.signals["matched tokens"] = float(bool(tails))
        max_nodes = min(plan.limit_nodes(MOST_NODES), ROOM - state.size)
        place, parents, tokens, ages = dict[tuple[int, ...], int](), list[int](), list[int](), list[float]()
        for tail, round_ in tails:
            for level in range(1, min(plan.depth, len(tail)) + 1):
                if (path := tail[:level]) not in place and len(tokens) < max_nodes:
                    parents.append(place.get(path[:-1], -1))
                    place[path] = len(tokens)
                    tokens.append(path[-1])
                    ages.append(state.now - round_)
        state.drafted, device = len(tokens), sequence.models.target.device
        tree = DraftTree.from_parents(tokens, parents, source="lookahead", device=device)
        return replace(tree, explanation=TreeExplanation((POOLED,), before=to_device(ages, device, torch.float32)))

    def probes(self, sequence: Sequence, tree: DraftTree) -> Probes | None:
        """Return the guesses of the lookahead window as probes, extra positions that are never accepted."""
        state: LookaheadState = sequence.state.drafter
        if not state.size:
            return None
        places, parents, sees = window_layout(len(state.rows), len(state.rows[0]), tree.tokens.device)
        mask = torch.cat([sees.new_zeros(len(places), len(tree)), sees], 1)
        probe_parents = torch.where(parents < 0, parents, parents + len(tree))
        tokens = to_device(list(itertools.chain(*state.rows))[1:], tree.tokens.device, torch.long)
        farthest = len(state.rows) + len(state.rows[0]) - 2
        state.probing = Probes(tokens, probe_parents, places, mask, farthest, "lookahead")
        return state.probing

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Add the target's predictions to the lookahead window as a new row, and its columns to the n-gram pool."""
        state: LookaheadState = sequence.state.drafter
        state.now += 1
        state.n_pool_hits += len(feedback.result.path) if state.drafted else 0
        state.drafted = 0
        if self.from_text:
            state.pool.read(sequence.committed, self.ngram, len(sequence.committed) - len(feedback.emitted))
        probed = (
            feedback.probe_output
            if feedback.probe_output is not None and feedback.probe_output.probes is state.probing
            else None
        )
        state.probing = None
        if not state.rows or (probed is None and state.size):
            return  # another drafter's round, or no room for the window
        state.rows[0][0] = feedback.root
        width, new_row = len(state.rows[0]), feedback.top_tokens[0][:1]
        if probed is not None:
            new_row = [*new_row, *to_host([probed.logits[-width:].argmax(1)])[0]][-width:]
        if len(state.rows) + 1 < self.ngram:
            state.rows = [guesses[1:] for guesses in (*state.rows, new_row)]
        else:
            for first, *tail in zip(*state.rows, new_row, strict=True):
                state.pool.add(first, tuple(tail), state.now)
            state.rows = [*state.rows[1:], new_row]
        if self.follow and (skip := len(feedback.emitted) - 1):
            state.rows = [
                [*guesses[skip:], *sample_from_text(sequence, min(skip, len(guesses)), level)]
                for level, guesses in enumerate(state.rows)
            ]


@lru_cache(maxsize=64)
def window_layout(
    rows: int, width: int, device: torch.device
) -> tuple[Int[Tensor, " P"], Int[Tensor, " P"], Bool[Tensor, "P P"]]:
    """Return positions, parents and attention mask of the P guesses in a lookahead window, row by row.

    The tensors are cached; callers must not write to them.

    Args:
        rows: number of rows of the window.
        width: number of columns; column 0 of row 0 is the last committed token, not a guess.
        device: device of the tensors.
    """
    cells = [(r, c) for r in range(rows) for c in range(width)][1:]
    index = {cell: i for i, cell in enumerate(cells)}
    sees = torch.zeros(len(cells), len(cells), dtype=torch.bool)
    parents = list[int]()
    for i, (r, c) in enumerate(cells):
        parents.append(index.get((r - 1, c) if r else (0, c - 1), -1))
        for visible in (*((0, left) for left in range(c + 1)), *((up, c) for up in range(r + 1))):
            if visible in index:
                sees[i, index[visible]] = True
    places = torch.tensor([r + c for r, c in cells], device=device)
    return places, torch.tensor(parents, device=device), sees.to(device)

"""Prompt lookup: copy the tokens that followed an earlier occurrence of the newest tokens."""

from __future__ import annotations

import heapq
from collections import abc, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch

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
from workbench.decoders.draft_verify.tree_building import should_continue
from workbench.engine.request import Sequence
from workbench.models.loading import Models

TRANSFORMERS = "transformers"
KEPT = 32_768
"""Maximum number of tokens of a text in an n-gram index. The oldest tokens are dropped first."""
FORGOTTEN = 64
"""Number of tokens that a full n-gram index drops at a time."""
ENTRY_BYTES = 320
"""Memory of an indexed n-gram in bytes: its key, its positions and its dictionary slot."""


class NGramIndex(InspectableState):
    """Index of the positions at which each n-gram of a text ends, for n up to `n_max`.

    Adding a token costs O(`n_max`).
    """

    title = "N-grams of the text"
    unit = "n-grams"

    def __init__(self, n_max: int, most: int = KEPT) -> None:
        self.n_max, self.most = n_max, most
        self.text: list[int] = []
        self._n_dropped = 0  # number of dropped tokens; positions count from the first token ever added
        self._ends: dict[tuple[int, ...], list[int]] = defaultdict(list)

    def extend(self, tokens: abc.Sequence[int]) -> None:
        """Append tokens to the indexed text, and index the n-grams that end with these tokens."""
        for token in tokens:
            self.text.append(token)
            end = len(self.text)
            for n in range(1, min(self.n_max, end) + 1):
                self._ends[tuple(self.text[end - n : end])].append(self._n_dropped + end)
            if end == self.most + FORGOTTEN:
                self._forget(FORGOTTEN)

    def _forget(self, n: int) -> None:
        """Drop the oldest `n` tokens from the index, and the n-grams that begin with them."""
        for start in range(n):
            for length in range(1, self.n_max + 1):
                gram = tuple(self.text[start : start + length])
                del self._ends[gram][0]  # positions are ascending: this is the oldest
                if not self._ends[gram]:
                    del self._ends[gram]
        del self.text[:n]
        self._n_dropped += n

    def continuation(self, n: int, length: int, latest: bool) -> list[int]:
        """Return the tokens after an earlier occurrence of the text's last n tokens; [] if there is none.

        Args:
            n: number of tokens to look up, at most `n_max`.
            length: maximum number of tokens to return.
            latest: whether to use the latest earlier occurrence, instead of the first one.
        """
        if n >= len(self.text):
            return []
        earlier = self._ends[tuple(self.text[-n:])][:-1]  # the last occurrence is the query itself
        if not earlier:
            return []
        start = (earlier[-1] if latest else earlier[0]) - self._n_dropped
        return self.text[start : start + length]

    def summarise(self, n: int) -> StateSummary:
        most = heapq.nlargest(n, self._ends.items(), key=lambda item: (len(item[1]) > 1, len(item[0]), len(item[1])))
        top = [
            StateEntry(gram, self.text[ends[-1] - self._n_dropped :][:1], len(ends))
            for gram, ends in most
            if len(ends) > 1
        ]
        bound = (self.most + FORGOTTEN) * self.n_max
        size = len(self._ends)
        return StateSummary(size, bound, ENTRY_BYTES * size, ENTRY_BYTES * bound, "times seen", top)

    def pack(self) -> Arrays:
        return {"text": np.array(self.text, np.int32)}

    def merge(self, arrays: Arrays, vocabulary: int) -> None:
        current, loaded = self.text, check_token_ids(arrays, "text", vocabulary, (None,)).tolist()
        self.text, self._n_dropped = [], 0
        self._ends.clear()
        self.extend([*loaded[-self.most :], *current])


@dataclass(frozen=True)
class NGram(Drafter):
    """Look up the newest `ngram` committed tokens in the text so far, and draft the tokens that followed them.

    If there is no match, shorter suffixes are tried. If no suffix matches, the draft is empty, and the round is plain
    decoding. Drafts are deterministic, so no distribution is needed.

    Source: Saxena 2023, prompt lookup decoding. `occurrence="first"` is the original rule; the latest occurrence
    usually gives better drafts. "transformers" is the rule of `PromptLookupCandidateGenerator`: the first occurrence,
    up to an end-of-text token.
    """

    ngram: int = param(3, ge=1, le=8, doc="longest suffix to look up, in tokens")
    occurrence: str = param(
        "latest", choices=("latest", "first", TRANSFORMERS), doc="which earlier occurrence of the suffix to copy from"
    )

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, because tokens are copied from the text."""
        return frozenset({Sampling.DETERMINISTIC})

    def state_key(self) -> Hashable:
        """Return the cache key under which later drafters find the n-gram index. It depends on `ngram` only."""
        return "prompt-lookup", self.ngram

    def init_state(self, sequence: Sequence, models: Models) -> NGramIndex:
        """Return an index of the n-grams in the committed text."""
        index = NGramIndex(self.ngram)
        index.extend(sequence.committed)
        return index

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Draft the tokens after an earlier occurrence of the text's last tokens, with the longest possible match."""
        index: NGramIndex = sequence.state.drafter
        for n in range(self.ngram, 0, -1):
            continuation = index.continuation(n, plan.depth, self.occurrence == "latest")
            if continuation and self.occurrence == TRANSFORMERS and sequence.request.stop_at_eos:
                continuation = continuation[
                    : next((i for i, token in enumerate(continuation) if token in sequence.models.eos), None)
                ]
                if not continuation:  # a shorter suffix is not tried
                    break
            if continuation:
                if plan.can_stop_early:
                    continuation = self._cut_at_stop(sequence, continuation)
                sequence.report.signals["matched tokens"] = n
                return DraftTree.chain(continuation, source="prompt-lookup", device=sequence.models.target.device)
        return DraftTree.empty(source="prompt-lookup", device=sequence.models.target.device)

    def _cut_at_stop(self, sequence: Sequence, continuation: list[int]) -> list[int]:
        """Return the copied tokens up to the one at which the policy stops drafting.

        The policy gets probability 1 for each copied token.
        """
        size, device = sequence.models.target.vocab_size, sequence.models.target.device
        for level, token in enumerate(continuation[1:], 1):
            probs = torch.zeros(1, size, device=device)
            probs[0, token] = 1.0
            if not should_continue(sequence, level, lambda p=probs: p):
                return continuation[:level]
        return continuation

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Add the emitted tokens to the n-gram index."""
        sequence.state.drafter.extend(feedback.emitted)

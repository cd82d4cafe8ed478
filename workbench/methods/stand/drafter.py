"""STAND: draft from a table with the target's mean distribution after each short context."""

from __future__ import annotations

import heapq
from collections import abc
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.decoders.draft_verify.inspectable_state import (
    BROKEN,
    Arrays,
    InspectableState,
    StateEntry,
    StateSummary,
    check_array,
    check_token_ids,
    pad_rows,
)
from workbench.decoders.draft_verify.parts import DistributionDrafter, RoundFeedback
from workbench.decoders.draft_verify.tree_building import NodeDistributions, PartialTree
from workbench.engine.request import Sequence
from workbench.kernels.distributions import TOP
from workbench.methods.common.warm_start import WARM_NOTICE, warm_param
from workbench.models.loading import Models

KEPT = 16_384
"""Maximum number of contexts in a table of distributions. The least recently updated contexts are dropped first."""
ENTRY_BYTES = 900
"""Memory of one context in a table of distributions, in bytes: its key, and lists of tokens and probabilities."""
PROBLEMS = 8
"""Maximum number of prompts whose tables of distributions are stored for later runs."""

Context = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """Mean of the target's distributions after one context.

    Attributes:
        tokens: most likely next tokens, in descending order of probability.
        probs: mean probability of each of these tokens.
        n: number of distributions in the mean.
    """

    tokens: abc.Sequence[int]
    probs: abc.Sequence[float]
    n: int = 1

    def averaged_with(self, tokens: abc.Sequence[int], chances: abc.Sequence[float]) -> Entry:
        """Return the mean distribution of a context after one more distribution was added.

        The number of stored tokens stays the same.

        Args:
            tokens: most likely tokens of the new distribution.
            chances: probabilities of `tokens` in the new distribution.
        """
        mean = {token: self.n * prob for token, prob in zip(self.tokens, self.probs, strict=True)}
        for token, prob in zip(tokens, chances, strict=True):
            mean[token] = mean.get(token, 0.0) + prob
        best = sorted(mean.items(), key=lambda item: -item[1])[: len(self.tokens)]
        return Entry([token for token, _ in best], [total / (self.n + 1) for _, total in best], self.n + 1)


class Table(InspectableState):
    """Table of the target's mean distribution after each context of up to `longest` tokens."""

    title = "Distributions after contexts"
    unit = "contexts"

    def __init__(self, longest: int, most: int = KEPT, shared: bool = False) -> None:
        self.longest, self.most, self.shared = longest, most, shared
        self._entries: dict[Context, Entry] = {}  # in order of their last update

    def __len__(self) -> int:
        return len(self._entries)

    def summarise(self, n: int) -> StateSummary:
        most = heapq.nlargest(n, ((e.n, context) for context, e in self._entries.items() if context))
        top = [StateEntry(context, self._entries[context].tokens[:3], count) for count, context in most]
        size = len(self)
        return StateSummary(size, self.most, ENTRY_BYTES * size, ENTRY_BYTES * self.most, "distributions averaged", top)

    def pack(self) -> Arrays:
        entries = [(context, e) for context, e in self._entries.items()]
        width = len(entries[0][1].tokens) if entries else 0  # all entries have the same width
        return {
            "contexts": pad_rows([context for context, _ in entries], self.longest),
            "tokens": pad_rows([e.tokens for _, e in entries], width),
            "chances": pad_rows([e.probs for _, e in entries], width, np.float32, fill=0),
            "laws": np.array([e.n for _, e in entries], np.int32),
        }

    def merge(self, arrays: Arrays, vocabulary: int) -> None:
        counts = check_array(arrays, "laws", (None,), 1, 1e9, whole=True)
        if not (n := len(counts)):
            return
        contexts = check_token_ids(arrays, "contexts", vocabulary, (n, None), least=-1)
        tokens = check_token_ids(arrays, "tokens", vocabulary, (n, min(TOP, vocabulary)))
        probs = check_array(arrays, "chances", (n, tokens.shape[1]), 0, 1.001)
        if (probs.sum(1) <= 0).any() or (np.diff(np.sort(tokens, 1), axis=1) == 0).any():
            raise ModelError("The file is broken: it contains an invalid distribution.", BROKEN)
        rows = zip(contexts.tolist(), tokens.tolist(), probs.tolist(), counts.tolist(), strict=True)
        loaded = {tuple(t for t in context if t >= 0): Entry(ids, p, int(k)) for context, ids, p, k in rows}
        loaded = {context: entry for context, entry in loaded.items() if len(context) <= self.longest}
        self._entries = loaded | self._entries  # longer contexts are never looked up
        self._keep_bound()

    def clear(self) -> None:
        self._entries.clear()

    def learn(self, text: abc.Sequence[int], tokens: abc.Sequence[int], probs: abc.Sequence[float]) -> None:
        """Add the target's distribution after a text to the entries of all contexts that end the text.

        Args:
            text: token ids of the text.
            tokens: most likely next tokens, descending.
            probs: probabilities of `tokens`.
        """
        for n in range(min(self.longest, len(text)) + 1):
            context = tuple(text[len(text) - n :])
            entry = self._entries.pop(context, None)
            self._entries[context] = entry.averaged_with(tokens, probs) if entry else Entry(tokens, probs)
        self._keep_bound()

    def _keep_bound(self) -> None:
        while len(self._entries) > self.most:
            del self._entries[next(iter(self._entries))]

    def lookup(self, text: abc.Sequence[int]) -> tuple[int, Entry | None]:
        """Return the length of the longest known context at the end of a text, and its mean distribution.

        If the length is 0, the distribution is the mean over all contexts.
        """
        for n in range(min(self.longest, len(text)), -1, -1):
            if (entry := self._entries.get(tuple(text[len(text) - n :]))) is not None:
                return n, entry
        return 0, None


@dataclass(frozen=True)
class SparseDistributions(NodeDistributions):
    """Next-token distributions after w nodes of a draft tree, each over only k tokens of the vocabulary.

    Attributes:
        tokens: token ids of each distribution, in any order.
        p: probabilities of `tokens`, which sum to 1.
        size: size of the vocabulary.
    """

    tokens: Int[Tensor, "w k"]
    p: Float[Tensor, "w k"]
    size: int

    def full_probs(self) -> Float[Tensor, "w V"]:
        return self.p.new_zeros(len(self.p), self.size).scatter_(1, self.tokens, self.p)

    def best(self, k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        top = self.p.topk(min(k, self.p.shape[1]), dim=1)
        return top.values.log(), self.tokens.gather(1, top.indices)


class TableGrowth(PartialTree):
    """Draft tree built from a table of distributions after contexts.

    The distribution after a node is the entry of the longest known context that ends at the node.
    """

    def __init__(self, sequence: Sequence, table: Table) -> None:
        target = sequence.models.target
        super().__init__(sequence, "stand", target.device)
        self.table, self.size = table, target.vocab_size
        self.dtype = torch.float64 if target.dtype == torch.float64 else torch.float32
        self.before = sequence.committed[-table.longest :]
        self.root = self._distributions([[]])
        self.is_known = True

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> SparseDistributions:
        return self._distributions(self.paths())

    def _distributions(self, paths: abc.Sequence[abc.Sequence[int]]) -> SparseDistributions:
        matches = [self.table.lookup([*self.before, *path]) for path in paths]
        self.is_known = any(n for n, _ in matches)
        entries = [entry for _, entry in matches if entry is not None]
        p = to_device([entry.probs for entry in entries], self.device, self.dtype)
        return SparseDistributions(
            to_device([entry.tokens for entry in entries], self.device), p / p.sum(1, keepdim=True), self.size
        )

    def should_continue(self, distributions: NodeDistributions) -> bool:
        """Return whether drafting should continue: at least one node of the level ends with a known context.

        Otherwise only the mean over all contexts is known, from which nothing is drafted.
        """
        return self.is_known and super().should_continue(distributions)


@dataclass(frozen=True)
class Stand(DistributionDrafter):
    """Store the target's mean distributions after contexts of up to `longest` tokens, and draft from them.

    At each verified position, the probabilities of the target's most likely tokens are added to the entries of the
    contexts that end there. The distribution after a node is the normalised entry of the longest known context that
    ends at the node. If no such context is known, it is the mean of all distributions. A draft ends if no node of a
    level has a known context. Any tree builder can draw from these distributions, and any exact verifier can verify the
    draft, as with a draft model. The stored distributions include the temperature of their round.

    Attributes:
        longest: maximum number of tokens of a context.
        everywhere: whether distributions after rejected drafts are also stored, which verification computes anyway.
        warm: whether later runs of the same prompt continue with the table. In the paper, all solutions of one problem
            share a table.

    Source: Song et al. 2025, STAND, arXiv:2506.04708, §3.
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    longest: int = param(3, ge=1, le=4, doc="longest context to look up, in tokens")
    everywhere: bool = param(True, doc="also store distributions after rejected drafts")
    warm: bool = warm_param("each prompt's own table")

    def notice(self) -> str:
        """Return a note for the user if drafts depend on earlier runs (`warm`), else ""."""
        return WARM_NOTICE if self.warm else ""

    def state_key(self) -> Hashable:
        """Return the cache key under which later drafters find the table of distributions.

        It contains the table's parameters.
        """
        return "stand", self.longest, self.everywhere, self.warm

    def init_state(self, sequence: Sequence, models: Models) -> Table:
        """Return a new table of distributions; with `warm`, the table of earlier runs of this prompt.

        The target's distributions at the committed positions are not available, so the table does not contain them.
        """
        if not self.warm:
            return Table(self.longest)
        tables: dict[Hashable, Table] = models.shared.setdefault("stand", {})
        problem = (self.longest, self.everywhere, *sequence.committed[: sequence.prompt_length])
        table = tables.pop(problem, None)
        tables[problem] = Table(self.longest, shared=True) if table is None else table
        while len(tables) > PROBLEMS:
            del tables[next(iter(tables))]
        return tables[problem]

    def begin(self, sequence: Sequence) -> TableGrowth | None:
        """Return an empty draft tree; None if no known context ends with the newest token."""
        table: Table = sequence.state.drafter
        n, entry = table.lookup(sequence.committed)
        sequence.report.signals |= {"known contexts": len(table), "matched tokens": n}
        if entry is None or not n:
            return None
        sequence.report.signals["averaged distributions"] = entry.n
        return TableGrowth(sequence, table)

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Store the target's distributions after the last committed token and after accepted drafts in the table.

        With `everywhere`, also store the distributions after rejected drafts.
        """
        table: Table = sequence.state.drafter
        first = len(sequence.committed) - len(feedback.emitted)
        before = sequence.committed[max(0, first - self.longest) : first]
        accepted = {0, *(node + 1 for node in feedback.result.path)}
        texts = [before]
        for parent, token in zip(feedback.parents, feedback.tokens, strict=True):
            texts.append([*texts[parent + 1], token])
        for place, text in enumerate(texts):
            if self.everywhere or place in accepted:
                table.learn(text, feedback.top_tokens[place], feedback.top_probs[place])

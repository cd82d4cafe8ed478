"""Token recycling: draft a tree from a table of the most likely next tokens after each token."""

from __future__ import annotations

from collections import abc
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from workbench.core.params import param
from workbench.core.transfer import to_host
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.inspectable_state import (
    Arrays,
    InspectableState,
    StateEntry,
    StateSummary,
    check_array,
    check_token_ids,
)
from workbench.decoders.draft_verify.parts import Drafter, Plan, RoundFeedback
from workbench.engine.request import Sequence
from workbench.kernels.segment import CaptureSelection
from workbench.methods.common.feature import read_features
from workbench.methods.common.warm_start import WARM_NOTICE, warm_param
from workbench.methods.tree_builders.template import known_paths, template_of
from workbench.models.loading import Models
from workbench.models.side_passes import AT_ONCE

RANKS = 8
"""Number of most likely next tokens stored per token."""


class Successors(InspectableState):
    """Table of the most likely next tokens after each token.

    Attributes:
        table: 8 most likely next tokens after each of V tokens, int32 [V, 8]; −1 if unknown.
        n_verified: int32 [V], number of times that each token was verified.
    """

    title = "Table of successors"
    unit = "tokens"

    def __init__(self, size: int, shared: bool = False) -> None:
        self.table = np.full((size, RANKS), -1, dtype=np.int32)
        self.n_verified = np.zeros(size, dtype=np.int32)
        self.shared = shared

    def write(self, token: int, top: abc.Sequence[int]) -> None:
        """Store the target's most likely next tokens after a token, and count the token's verification."""
        self.table[token, : len(top)] = top[:RANKS]
        self.n_verified[token] += 1

    def summarise(self, n: int) -> StateSummary:
        best = np.argsort(-self.n_verified, kind="stable")[:n]
        top = [
            StateEntry(
                [token],
                [successor for successor in self.table[token].tolist() if successor >= 0],
                int(self.n_verified[token]),
            )
            for token in best.tolist()
            if self.n_verified[token]
        ]
        n_bytes = self.table.nbytes + self.n_verified.nbytes
        return StateSummary(int((self.n_verified > 0).sum()), len(self.table), n_bytes, n_bytes, "times verified", top)

    def pack(self) -> Arrays:
        tokens = np.flatnonzero(self.n_verified)
        return {"tokens": tokens.astype(np.int32), "successors": self.table[tokens], "seen": self.n_verified[tokens]}

    def merge(self, arrays: Arrays, vocabulary: int) -> None:
        tokens = check_token_ids(arrays, "tokens", vocabulary, (None,))
        successors = check_token_ids(arrays, "successors", vocabulary, (len(tokens), RANKS), least=-1)
        counts = check_array(arrays, "seen", (len(tokens),), 0, 1e9, whole=True)
        new = self.n_verified[tokens] == 0  # entries of this run are newer
        self.table[tokens[new]], self.n_verified[tokens[new]] = successors[new], np.maximum(counts[new], 1)

    def clear(self) -> None:
        self.table[:], self.n_verified[:] = -1, 0


@torch.inference_mode()
def read_prompt(table: Successors, sequence: Sequence, models: Models) -> None:
    """Store the target's most likely next tokens at all committed positions but the last.

    Later occurrences of a token overwrite earlier ones.
    """
    features, index = read_features(sequence, models), 0
    for start in range(0, len(features), AT_ONCE):
        logits = models.target.lm_head(features[start : start + AT_ONCE])
        for top in to_host([logits.topk(min(RANKS, logits.shape[-1])).indices])[0]:
            table.write(sequence.committed[index], top)
            index += 1


@dataclass(frozen=True)
class TokenRecycling(Drafter):
    """Store the 8 tokens that the target last found most likely after each token, and draft a tree by following them.

    Every verified node updates the table, accepted or not, so rejected candidates may be drafted in later rounds. No
    draft continues after a token that was never verified.

    The plan's template gives the shape of the tree. All other tree builders need probabilities, which the table lacks.

    Source: Luo et al. 2024, Token Recycling, arXiv:2408.08696, §3. The paper's tree has 80 nodes, for a GPU; the shape
    here is by default the best tree of the chosen size under assumed probabilities of the ranks.
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    warm: bool = warm_param("the table")
    prompt: bool = param(False, doc="also store the target's most likely next tokens at each prompt position")

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, because tokens are looked up in a table."""
        return frozenset({Sampling.DETERMINISTIC})

    def notice(self) -> str:
        """Return a note for the user if drafts depend on earlier runs (`warm`), else ""."""
        return WARM_NOTICE if self.warm else ""

    def captures(self, models: Models) -> CaptureSelection:
        """Return which hidden states prefill captures: the LM head inputs, if the table starts with the prompt."""
        return CaptureSelection(features=self.prompt)

    def state_key(self) -> Hashable:
        """Return the cache key under which later drafters find the token table. It contains no tree parameter."""
        return "token-recycling", self.warm

    def init_state(self, sequence: Sequence, models: Models) -> Successors:
        """Return an empty table of likely next tokens; with `warm`, the table of earlier runs.

        With `prompt`, the likely next tokens at the committed positions are added.
        """
        size = models.target.vocab_size
        table = Successors(size)
        if self.warm:
            table = models.shared.setdefault("token-recycling", Successors(size, shared=True))
        if self.prompt and len(sequence.committed) > 1:
            read_prompt(table, sequence, models)
        return table

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Draft a tree of the template's shape: the rank of each node selects one of the stored next tokens."""
        table = sequence.state.drafter.table
        index: dict[tuple[int, ...], int] = {(): -1}
        tokens: list[int] = []
        parents: list[int] = []
        for path in known_paths(template_of(plan), plan.depth, plan.nodes):
            if path[:-1] not in index or path[-1] >= RANKS:
                continue
            parent = index[path[:-1]]
            token = int(table[tokens[parent] if parent >= 0 else sequence.committed[-1], path[-1]])
            if token >= 0:
                index[path] = len(tokens)
                tokens.append(token)
                parents.append(parent)
        sequence.report.signals["matched tokens"] = float(bool(tokens))
        return DraftTree.from_parents(tokens, parents, source="token-recycling", device=sequence.models.target.device)

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Store the target's most likely next tokens after verified tokens.

        Nodes nearer the root overwrite deeper ones.
        """
        state: Successors = sequence.state.drafter
        verified = [feedback.root, *feedback.tokens]
        for token, top in zip(reversed(verified), reversed(feedback.top_tokens), strict=True):
            state.write(token, top)

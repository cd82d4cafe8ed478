"""Draft with a smaller language model: a chain, or a tree if the plan's tree builder is not `Chain`."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import ClassVar

from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.engine.request import Sequence
from workbench.methods.common.draft_model_cache import keep_accepted_chain, uncached_tokens
from workbench.methods.common.draft_model_tree import DraftModelState, TreeFromModel
from workbench.methods.tree_builders.chain import Chain, draft_chain


@dataclass(frozen=True)
class DraftModel(TreeFromModel):
    """Draft with a separate draft model, one token or one level of a tree per forward pass.

    The draft model has its own KV cache, which retains the entries of accepted tokens. The first forward pass of the
    next round reads the committed tokens that have no entries: the token that the target added, and the last draft if
    it was accepted.

    Source: Leviathan et al. 2023, arXiv:2211.17192, §2.1; Chen et al. 2023, arXiv:2302.01318, Algorithm 2.
    """

    needs: ClassVar[tuple[str, ...]] = ("drafter",)
    source: ClassVar[str] = "draft-model"

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[DraftTree]:
        """Draft for all sequences of a batch: chains together in lock-step, trees one sequence after the other."""
        chains = [
            sequence
            for sequence in sequences
            if sequence.state.plan.tree_builder is None or isinstance(sequence.state.plan.tree_builder, Chain)
        ]
        trees: dict[int, DraftTree] = {}
        if chains:
            models = chains[0].models
            assert models.drafter is not None
            slots = [sequence.state.drafter.slot for sequence in chains]
            feed = [uncached_tokens(sequence, models, slot) for sequence, slot in zip(chains, slots, strict=True)]
            chain_drafts = draft_chain(chains, models.drafter, slots, feed, self.source)
            trees = {id(sequence): tree for sequence, tree in zip(chains, chain_drafts, strict=True)}
        return [
            trees[id(sequence)] if id(sequence) in trees else self.propose_one(sequence, sequence.state.plan)
            for sequence in sequences
        ]

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Retain the draft model's KV cache entries of accepted tokens, whether the draft was a tree or a chain."""
        state: DraftModelState = sequence.state.drafter
        if state.is_tree:
            super().observe(sequence, feedback)
        else:
            keep_accepted_chain(sequence, state.slot, feedback)

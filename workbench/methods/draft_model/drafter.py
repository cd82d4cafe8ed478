"""Draft with a smaller language model: a chain, or a tree if the plan's tree builder is not `Chain`."""

from __future__ import annotations

from collections import abc
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.engine.request import Sequence
from workbench.kernels.segment import DeviceLength, Slot
from workbench.methods.common.draft_model_cache import keep_accepted_chain, uncached_tokens
from workbench.methods.common.draft_model_tree import DraftModelState, TreeFromModel
from workbench.methods.tree_builders.chain import Chain, draft_chain

if TYPE_CHECKING:
    from workbench.decoders.draft_verify.device_rounds.device_sequence import DeviceSequence


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
        """Draft for all sequences: chains together in lock-step, trees sequence by sequence."""
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

    def runs_on_device(self, sequence: Sequence) -> bool:
        """Return whether the chain can be drafted by a model on the target's device that lacks at most two tokens."""
        models, slot = sequence.models, sequence.state.drafter.slot
        assert models.drafter is not None
        builder = sequence.configured_method.tree_builder
        return (
            (builder is None or isinstance(builder, Chain))
            and models.drafter.device == models.target.device
            and not models.drafter.geometry.why_not_on_device
            and models.drafter.context >= models.target.context
            and slot.shift == 0
            and slot.length >= len(sequence.committed) - 2
        )

    def begin_on_device(self, sequence: DeviceSequence, bound: int) -> Hashable:
        """Let the draft model's forward passes read the number of its entries on the device."""
        slot: Slot = sequence.state.drafter.slot
        slot.scratch, slot.on_device = 0, DeviceLength(sequence.on_device.draft_length, bound)
        assert sequence.models.drafter is not None
        return slot.index, sequence.models.drafter.cache.addresses()

    def end_on_device(self, sequence: Sequence) -> None:
        """Count the entries that the draft model certainly has: all committed tokens but the last two."""
        slot: Slot = sequence.state.drafter.slot
        slot.scratch, slot.on_device = 0, None
        slot.length = len(sequence.committed) - 2

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Retain the draft model's KV cache entries of accepted tokens, whether the draft was a tree or a chain."""
        state: DraftModelState = sequence.state.drafter
        if state.is_tree:
            super().observe(sequence, feedback)
        else:
            keep_accepted_chain(sequence, state.slot, feedback)

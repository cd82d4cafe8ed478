"""Trees drafted by a draft model: one forward pass per level, and a KV cache that retains entries of accepted nodes."""

from __future__ import annotations

import itertools
from collections import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from workbench.core.sampling import apply_logits_processors, replace_all_masked_rows
from workbench.core.transfer import to_device, to_host
from workbench.decoders.draft_verify.device_rounds.device_sequence import LAST, DeviceSequence
from workbench.decoders.draft_verify.parts import DistributionDrafter, RoundFeedback
from workbench.decoders.draft_verify.tree_building import FullDistributions, PartialTree
from workbench.engine.request import Sequence
from workbench.kernels.segment import DeviceLength, Segment, Slot
from workbench.methods.common.draft_model_cache import max_draft_depth, open_prefilled_slot, uncached_tokens
from workbench.methods.tree_builders.chain import fit_vocabulary
from workbench.models.loading import Models
from workbench.models.runner import Runner

if TYPE_CHECKING:
    from workbench.kernels.device_walk import DevicePath


class DraftModelState:
    """Drafting state of one sequence: its slot of the draft model's KV cache, and the entries of the last tree.

    Attributes:
        slot: slot of the draft model's KV cache.
        scratch_of: for each node of the last tree that the draft model read, the index of its entry in the scratch part
            of the slot. Nodes that were read as one averaged embedding have no entry.
        scratch_index: the same as `scratch_of` on the device, for rounds whose results the host reads later: int64
            [N] for N nodes, −1 for nodes without an entry.
        is_tree: whether the last draft was a tree rather than a chain drafted in lock-step with other sequences.
    """

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.scratch_of: dict[int, int] = {}
        self.scratch_index: Tensor | None = None
        self.is_tree = False


class ModelGrowth(PartialTree):
    """Draft tree that a draft model builds, with one forward pass per level in one slot of the model's KV cache.

    The first forward pass reads the committed tokens that are not in the KV cache yet.
    """

    def __init__(self, sequence: Sequence, source: str) -> None:
        assert sequence.models.drafter is not None
        self.runner: Runner = sequence.models.drafter
        self.state: DraftModelState = sequence.state.drafter
        super().__init__(sequence, source, self.runner.device)
        self.state.is_tree, self._is_superposed = True, False
        tokens = uncached_tokens(sequence, sequence.models, self.state.slot)
        out = self.runner.forward([Segment(self.state.slot, tokens)])
        self.runner.commit(self.state.slot, range(tokens.shape[0]))
        self.root = distributions_of(sequence, out.logits[0, -1:], [[]], out.hidden[0, -1:])

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> FullDistributions:
        depth = torch.full_like(tokens, len(self.tokens) - 1)
        out = self.runner.forward([Segment(self.state.slot, tokens, self.attention_mask, depth)])
        paths = self.paths() if self.sequence.sampling.needs_history else []
        return distributions_of(self.sequence, out.logits[0], paths, out.hidden[0])

    def distributions_as_one(self, tokens: Int[Tensor, " w"], weights: Float[Tensor, " w"]) -> FullDistributions:
        """Return the distributions after one forward pass that reads the weighted mean of w nodes' embeddings.

        The mean is read at one position, so all nodes share its logits. Its KV cache entry is dropped after the draft.

        Args:
            tokens: tokens of the w nodes.
            weights: weight of each node in the mean.
        """
        self._is_superposed = True
        mean = weights.to(self.runner.dtype) @ self.runner.embed(tokens)
        out = self.runner.forward([Segment(self.state.slot, tokens[:1], states=mean.unsqueeze(0))])
        if not self.sequence.sampling.needs_history:
            return distributions_of(self.sequence, out.logits[0], [], out.hidden[0])
        paths = self.paths()
        return distributions_of(self.sequence, out.logits[0].expand(len(paths), -1), paths, out.hidden[0])

    def close(self, nodes: Int[Tensor, " kept"] | None = None) -> None:
        """Store the indices of the drafted nodes' KV cache entries in the drafting state.

        Args:
            nodes: ascending indices of the drafted nodes; None: all nodes are drafted.
        """
        if self._is_superposed:
            self.state.scratch_of = {}
            return
        if self.sequence.is_on_device:
            self.state.scratch_index = self._scratch_index(nodes)
            return
        index_tensors = [*([torch.cat(self.expanded)] if self.expanded else []), *([] if nodes is None else [nodes])]
        indices = to_host(index_tensors)
        place = {node: i for i, node in enumerate(indices[0])} if self.expanded else {}
        final = range(self.n) if nodes is None else indices[-1]
        self.state.scratch_of = {i: place[node] for i, node in enumerate(final) if node in place}

    def _scratch_index(self, nodes: Int[Tensor, " kept"] | None) -> Int64[Tensor, " N"]:
        """Return each drafted node's KV cache index, −1 for nodes without an entry. Does not wait for the device."""
        index = torch.full((self.n,), -1, device=self.device)
        if self.expanded:
            expanded = torch.cat(self.expanded)
            index = index.scatter(0, expanded, torch.arange(len(expanded), device=self.device))
        return index if nodes is None else index[nodes]


def distributions_of(
    sequence: Sequence,
    logits: Float[Tensor, "w V"],
    paths: abc.Sequence[abc.Sequence[int]],
    hidden: Float[Tensor, "w D"] | None = None,
) -> FullDistributions:
    """Convert a draft model's logits to distributions, with the sequence's penalties, temperature and filters.

    Args:
        sequence: the sequence.
        logits: logits after w nodes.
        paths: tokens from the root to each node; used only if sampling depends on earlier tokens (penalties).
        hidden: input of the model's LM head after the w nodes.
    """
    logits, sampling = fit_vocabulary(logits, sequence.models.target.vocab_size), sequence.sampling
    if sampling.needs_history:
        histories = [to_device([*sequence.committed, *path], logits.device) for path in paths]
        logits = replace_all_masked_rows(apply_logits_processors(logits, sampling, histories))
    return FullDistributions.of(logits, sampling, hidden)


@dataclass(frozen=True)
class TreeFromModel(DistributionDrafter):
    """Draft a tree with a separate draft model, one forward pass per level.

    The draft model's KV cache retains the entries of accepted nodes. The first forward pass of the next round reads the
    committed tokens that have no entries.
    """

    needs: ClassVar[tuple[str, ...]] = ("drafter", "trees")
    superposes: ClassVar[bool] = True
    source: ClassVar[str]

    def init_state(self, sequence: Sequence, models: Models) -> DraftModelState:
        """Open a slot of the draft model's KV cache, and prefill it with all committed tokens but the last."""
        return DraftModelState(open_prefilled_slot(sequence, models))

    def max_levels(self, sequence: Sequence) -> int:
        """Return the number of draft levels that fit into the draft model's context."""
        return max_draft_depth(sequence, sequence.state.drafter.slot)

    def begin(self, sequence: Sequence) -> ModelGrowth:
        """Read the committed tokens that the draft model has not cached yet, and start a draft tree."""
        return ModelGrowth(sequence, self.source)

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Retain the KV cache entries of accepted nodes, up to the first accepted node that has no entry."""
        assert sequence.models.drafter is not None
        state: DraftModelState = sequence.state.drafter
        accepted: list[int] = []
        for node in feedback.result.path[: len(feedback.emitted)]:
            if node not in state.scratch_of:
                break
            accepted.append(state.scratch_of[node])
        if state.slot.scratch and all(a < b for a, b in itertools.pairwise(accepted)):
            sequence.models.drafter.commit(state.slot, accepted)
        state.slot.scratch, state.scratch_of, state.is_tree = 0, {}, False

    def runs_on_device(self, sequence: Sequence) -> bool:
        """Return whether the draft model is on the target's device, with at most two tokens missing in its KV cache."""
        models, slot = sequence.models, sequence.state.drafter.slot
        assert models.drafter is not None
        return (
            models.drafter.device == models.target.device
            and not models.drafter.geometry.why_not_on_device
            and models.drafter.context >= models.target.context
            and slot.shift == 0
            and slot.length >= len(sequence.committed) - LAST
        )

    def begin_on_device(self, sequence: DeviceSequence, bound: int) -> Slot:
        """Let the draft model's forward passes read the length of its KV cache from device memory."""
        slot: Slot = sequence.state.drafter.slot
        slot.scratch, slot.on_device = 0, DeviceLength(sequence.on_device.draft_length, bound)
        return slot

    def commit_on_device(self, sequence: DeviceSequence, path: DevicePath) -> None:
        """Move the accepted nodes' KV cache entries after the committed ones; the last accepted node is read again."""
        state: DraftModelState = sequence.state.drafter
        if (index := state.scratch_index) is None:
            return
        assert sequence.models.drafter is not None
        place = torch.arange(len(path.nodes), device=path.nodes.device)
        source = torch.where(place < path.n - 1, index[path.nodes.clamp_max(len(index) - 1)], place)
        first = sequence.on_device.draft_length + LAST
        sequence.models.drafter.cache.move_on_device(state.slot.index, first + source, first + place)
        state.scratch_index = None

    def end_on_device(self, sequence: Sequence) -> None:
        """Set the KV cache's length to the entries that certainly exist: all committed tokens but the last two."""
        state: DraftModelState = sequence.state.drafter
        state.slot.scratch, state.slot.on_device = 0, None
        state.slot.length, state.scratch_of, state.is_tree = len(sequence.committed) - LAST, {}, False

    def release(self, sequence: Sequence, models: Models) -> None:
        """Free the slot of the draft model's KV cache."""
        if models.drafter is not None and sequence.state.drafter is not None:
            models.drafter.close(sequence.state.drafter.slot)

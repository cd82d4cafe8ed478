"""LayerSkip: draft with the first layers of the target."""

from __future__ import annotations

from collections import abc
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import MethodUnavailableError
from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import Drafter, EarlyExitStates
from workbench.engine.request import Sequence
from workbench.kernels.segment import Output, Segment, Slot
from workbench.methods.common.partial_target import PartialTarget
from workbench.methods.tree_builders.chain import draft_chain
from workbench.models.loading import Models


@dataclass(slots=True)
class ExitStates:
    """Last draft of a sequence, and hidden states that the drafting layers computed for it.

    Attributes:
        tree: the draft; None before the first round.
        layer: number of the target's layers that computed the draft.
        states: for each captured layer, its hidden states at the root and at each of the draft's N nodes.
    """

    tree: DraftTree | None = None
    layer: int = 0
    states: dict[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict[int, Tensor])


@dataclass(frozen=True, slots=True)
class TruncatedTarget(PartialTarget):
    """Draft model that consists of the target's first layers, with the interface that `draft_chain` needs.

    Attributes:
        layer: number of the target's layers in the draft model.
        capture_layers: indices of the layers whose hidden states are stored.
        states: for each sequence's slot of the KV cache, the stored hidden states of each forward pass, by layer.
    """

    layer: int
    capture_layers: Collection[int]
    states: dict[Slot, list[dict[int, Tensor]]]

    def forward(self, batch: abc.Sequence[Segment], *, layers: abc.Sequence[int] | None = None) -> Output:
        """Run the first layers of the target, its final norm and its LM head over new tokens of several sequences.

        Args:
            batch: new tokens of each sequence.
            layers: unused; the draft model always runs its first layers of the target.

        Returns:
            Logits and hidden states, with the sequences in the order of their slots.
        """
        return self.run_layers(batch, head=True)

    def run_layers(self, batch: abc.Sequence[Segment], head: bool) -> Output:
        """Run new tokens through the first layers of the target, and store the hidden states of `capture_layers`.

        Args:
            batch: new tokens of each sequence.
            head: whether to compute logits.
        """
        out = self.target.forward(batch, layers=range(self.layer), head=head, capture_layers=self.capture_layers)
        for b, segment in enumerate(sorted(batch, key=lambda segment: segment.slot.index)):
            states = {layer: hidden[b, : len(segment.tokens)] for layer, hidden in out.layer_states.items()}
            self.states[segment.slot].append(states)
        return out


class EarlyExitDrafter(Drafter):
    """Base class of drafters that draft with the target's first E layers, its final norm and its LM head.

    Drafting writes keys and values of layers 0 … E − 1 into the target's KV cache, after the committed part. It also
    stores the exit states, which are the hidden states after layer E − 1. The first E layers also read the last drafted
    token; verification then runs the layers from E on over all exit states at once. So there is no second model and no
    second KV cache to synchronise, and no layer reads a token twice. Subclasses define E. `sequence.state.drafter` is
    the `ExitStates` object, or contains it.

    Source: Elhoushi et al. 2024, LayerSkip, arXiv:2404.16710, §3.3 (drafting), §3.4 (the exit states are reused).
    """

    reads_target: ClassVar[bool] = True
    source: ClassVar[str]

    def exit_of(self, sequence: Sequence) -> int:
        """Return the number E of the target's first layers that draft in this round."""
        raise NotImplementedError

    def exit_record(self, sequence: Sequence) -> ExitStates:
        """Return the object that stores the round's draft and the hidden states after its last drafting layer."""
        return sequence.state.drafter

    def truncated_target(
        self, sequences: abc.Sequence[Sequence], exit_layer: int, capture_layers: Collection[int]
    ) -> TruncatedTarget:
        """Return the target's first `exit_layer` layers as a draft model for several sequences.

        Args:
            sequences: sequences that draft with the same exit layer.
            exit_layer: number of layers that draft.
            capture_layers: indices of the layers whose hidden states are stored.
        """
        return TruncatedTarget(
            sequences[0].models.target, exit_layer, capture_layers, {sequence.cache_slot: [] for sequence in sequences}
        )

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[DraftTree]:
        """Draft a chain for each sequence. Sequences with the same exit layer form one batch."""
        trees: dict[int, DraftTree] = {}
        exits = {id(sequence): cast(EarlyExitDrafter, sequence.drafter).exit_of(sequence) for sequence in sequences}
        for exit_layer in sorted(set(exits.values())):
            group = [sequence for sequence in sequences if exits[id(sequence)] == exit_layer]
            trees.update(zip(map(id, group), self._propose(group, exit_layer), strict=True))
        return [trees[id(sequence)] for sequence in sequences]

    def _propose(self, sequences: abc.Sequence[Sequence], exit_layer: int) -> list[DraftTree]:
        target = sequences[0].models.target
        for sequence in sequences:
            sequence.cache_slot.scratch = 0
        first = [to_device(sequence.committed[-1:], target.device) for sequence in sequences]
        slots = [sequence.cache_slot for sequence in sequences]
        capture_layers = {
            exit_layer - 1,
            *(layer for sequence in sequences for layer in sequence.state.captured_layers if layer < exit_layer),
        }
        exit_ = self.truncated_target(sequences, exit_layer, capture_layers)
        trees = draft_chain(sequences, exit_, slots, first, self.source)
        unread = [
            Segment(slot, tree.tokens[-1:])  # if a policy stopped the draft, its last token has been read
            for slot, tree in zip(slots, trees, strict=True)
            if slot.scratch == len(tree)
        ]
        if unread and target.may_begin_at(exit_layer):
            exit_.run_layers(unread, head=False)
        for sequence, slot, tree in zip(sequences, slots, trees, strict=True):
            draft, captures = cast(EarlyExitDrafter, sequence.drafter).exit_record(sequence), exit_.states[slot]
            draft.tree, draft.layer = tree, exit_layer
            draft.states = {layer: torch.cat([states[layer] for states in captures]) for layer in capture_layers}
        return trees

    def exit_states(self, sequence: Sequence, tree: DraftTree) -> EarlyExitStates | None:
        draft = self.exit_record(sequence)
        states = draft.states.get(draft.layer - 1)
        has_states = draft.tree is tree and states is not None and len(states) == len(tree) + 1
        if not has_states or not sequence.models.target.may_begin_at(draft.layer):
            return None
        assert states is not None
        return EarlyExitStates(draft.layer, states, draft.states)


@dataclass(frozen=True)
class EarlyExit(EarlyExitDrafter):
    """Draft with the first E layers of the target; E is a parameter. `EarlyExitDrafter` describes the algorithm.

    Source: Elhoushi et al. 2024, LayerSkip, arXiv:2404.16710, §3.3.
    """

    source: ClassVar[str] = "early-exit"
    exit_layer: int = param(2, ge=1, le=64, doc="number of the target's first layers used as drafter")

    def init_state(self, sequence: Sequence, models: Models) -> ExitStates:
        """Check that the target has enough layers, and return a drafting state without a draft."""
        n_layers = models.target.n_layers
        if self.exit_layer > n_layers:
            raise MethodUnavailableError(
                f"exit_layer={self.exit_layer}, but the target has {n_layers} layers.", f"Use 1 to {n_layers}."
            )
        return ExitStates()

    def exit_of(self, sequence: Sequence) -> int:
        """Return the number of the target's first layers that draft, the parameter `exit_layer`."""
        return self.exit_layer

"""Kangaroo: draft with the target's first layers and a small adapter after them.

An *exit state* h(s) is the residual stream at position s after the target's E-th layer. The adapter, one attention
layer over the exit states of the text, predicts the LM head's input f(s):

    position        s
    target          x(s) → layers 1 … E → h(s)
    adapter         h(≤ s) → f̂(s)  →  LM head  →  distribution of x(s + 1)
"""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.captured_states import CaptureSelection, states_of
from workbench.decoders.draft_verify.parts import Drafter, RoundFeedback
from workbench.engine.request import Sequence
from workbench.kernels.device_clock import Meter
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.kernels.segment import Output, Segment, Slot
from workbench.methods.common.attention_net import AttentionNet, DraftKVCache
from workbench.methods.common.partial_target import PartialTarget
from workbench.methods.common.trained_net import head_of, load_trained
from workbench.methods.tree_builders.chain import draft_chain
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH

CHUNK = 512
"""Maximum number of positions that Kangaroo's adapter reads in one call."""


class ExitAdapter(AttentionNet):
    """Kangaroo's adapter: one attention layer between two norms, without an MLP (4 D² weights).

    Args:
        width: the target's hidden size D.
        heads: number of attention heads.
        exit_layer: number E of the layer whose output the adapter reads, counted from 1.
        context: maximum sequence length, in positions.

    Source: Liu et al. 2024, Kangaroo, arXiv:2404.18911, §3.1.
    """

    kind: ClassVar[str] = "kangaroo"

    def __init__(self, width: int, heads: int, exit_layer: int, context: int = 1024) -> None:
        super().__init__(width, heads, context)
        if type(exit_layer) is not int:
            raise TypeError(f"exit_layer={exit_layer!r:.20} is not a whole number")
        self.exit_layer = exit_layer

    def forward(
        self, x: Float[Tensor, "B n D"], positions: Int[Tensor, " n"], kv_cache: DraftKVCache | None = None
    ) -> Float[Tensor, "B n D"]:
        """Return the LM head inputs that the adapter predicts from exit states at consecutive positions.

        Args:
            x: exit states: the target's hidden states after layer E.
            positions: positions in the text.
            kv_cache: KV cache of earlier positions; the new entries are appended.
        """
        return self.after(self.attend(x, positions, None, kv_cache))

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild Kangaroo's adapter."""
        return {"width": self.width, "heads": self.heads, "exit_layer": self.exit_layer}


@dataclass(slots=True)
class KangarooState:
    """Drafting state of Kangaroo for one text.

    Attributes:
        net: the adapter.
        head: the target's LM head over the adapter's draft vocabulary.
        kv_cache: the adapter's KV cache.
        first: position of the first cache entry. The adapter does not read earlier positions (images).
        position: position after the last cache entry of a committed token.
    """

    net: ExitAdapter
    head: SharedHead
    kv_cache: DraftKVCache
    first: int
    position: int

    def guess(self, states: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        """Run the adapter on new hidden states of the exit layer, and return the predicted LM head inputs."""
        start = self.first + self.kv_cache.n_used
        places = torch.arange(start, start + len(states), device=states.device)
        return self.net(states.unsqueeze(0), places, self.kv_cache)[0]

    def truncate(self, position: int) -> None:
        """Drop the adapter's KV cache entries of `position` and all later positions."""
        self.position = min(position, self.first + self.kv_cache.n_used)
        self.kv_cache.truncate(self.position - self.first)


@dataclass(frozen=True, slots=True)
class TruncatedTargetWithAdapter(PartialTarget):
    """The target's first layers, followed by Kangaroo's adapter, with the model interface that `draft_chain` needs."""

    meter: Meter
    states: Mapping[Slot, KangarooState]

    def forward(self, batch: abc.Sequence[Segment], layers: abc.Sequence[int] | None = None) -> Output:
        """Return logits after each sequence's new tokens, −∞ for tokens outside the draft vocabulary."""
        target = self.target
        order = sorted(batch, key=lambda segment: segment.slot.index)
        exit_layer = self.states[order[0].slot].net.exit_layer
        exits = target.exit_states(order, exit_layer)
        start = target.clock.mark()
        guesses = exits.new_zeros(exits.shape)
        for b, segment in enumerate(order):
            n = len(segment.tokens)
            guesses[b, :n] = self.states[segment.slot].guess(exits[b, :n])
        logits = self.states[order[0].slot].head.full_logits(guesses)
        owners = [segment.slot.sequence_id for segment in order]
        # adds only its duration: the forward was counted in `exit_states`
        self.meter.add(start, target.clock.mark(), owners, is_part=True)
        return Output(logits, guesses)


@dataclass(frozen=True)
class Kangaroo(Drafter):
    """Draft with the target's first layers over its own KV cache, followed by a trained adapter with a KV cache.

    The adapter's cache entries of accepted drafts stay valid. So verification only drops the entries of rejected
    tokens, and no token is read twice. If a whole draft is accepted, its last token is read at the start of the next
    round.

    Source: Liu et al. 2024, Kangaroo, arXiv:2404.18911, §3.1 (adapter), §3.2 (double early exit: `policy=confidence`).
    """

    needs: ClassVar[tuple[str, ...]] = (ExitAdapter.kind,)
    reads_target: ClassVar[bool] = True

    def captures(self, models: Models) -> CaptureSelection:
        """Return which hidden states of the target prefill captures: those after the exit layer."""
        return CaptureSelection(layers=frozenset({load_adapter(models).exit_layer - 1}))

    def init_state(self, sequence: Sequence, models: Models) -> KangarooState:
        """Return a drafting state. The adapter has read all committed text positions but the last, without images."""
        net, head = load_adapter(models), head_of(ExitAdapter, models)
        target, slot = models.target, sequence.cache_slot
        first = slot.image_prefill_length
        end = len(sequence.committed) - 1
        like = torch.empty(0, dtype=target.dtype, device=target.device)
        entries = DraftKVCache(net.heads, net.head_size, len(sequence.committed) + sequence.remaining + SCRATCH, like)
        state = KangarooState(net, head, entries, min(first, end), min(first, end))
        with torch.inference_mode():
            if state.first < end:
                last = net.exit_layer - 1
                exits = states_of(sequence, models, self.captures(models), state.first).layer_states[last]
                for at in range(0, len(exits), CHUNK):
                    state.guess(exits[at : at + CHUNK])
        state.truncate(end)
        return state

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[DraftTree]:
        """Draft chains for all sequences in lock-step.

        The first forward pass also reads committed tokens that the adapter has not read yet.
        """
        models = sequences[0].models
        slots = [sequence.cache_slot for sequence in sequences]
        states = [cast(KangarooState, sequence.state.drafter) for sequence in sequences]
        for slot, state in zip(slots, states, strict=True):
            models.target.rewind(slot, state.position)
        first = [
            to_device(sequence.committed[s.position :], models.target.device)
            for sequence, s in zip(sequences, states, strict=True)
        ]
        early = TruncatedTargetWithAdapter(models.target, models.meter, dict(zip(slots, states, strict=True)))
        try:
            return draft_chain(sequences, early, slots, first, "kangaroo")
        finally:
            for sequence, slot in zip(sequences, slots, strict=True):  # KV cache entries of other layers are unchanged
                slot.length, slot.scratch = len(sequence.committed) - 1, 0

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Drop the adapter's KV cache entries of rejected draft tokens."""
        sequence.state.drafter.truncate(len(sequence.committed) - 1)
        if len(feedback.result.path) < len(feedback.tokens):
            root = len(sequence.committed) - len(feedback.emitted) - 1
            sequence.state.drafter.truncate(root + 1 + len(feedback.result.path))


def load_adapter(models: Models) -> ExitAdapter:
    """Return the Kangaroo adapter that was trained for the target of `models`. It is loaded once.

    Raises:
        ModelError: the adapter cannot be read, or was trained for another target.
    """
    net, target = load_trained(ExitAdapter, models, "exit adapter", "Train or fetch the adapter again."), models.target
    if net.width != target.hidden_size or not 1 <= net.exit_layer < target.n_layers:
        raise ModelError(
            f"This exit adapter reads hidden states of width {net.width} after layer {net.exit_layer}, but the target "
            f"has width {target.hidden_size} and {target.n_layers} layers.",
            "Train an adapter for this target: workbench train kangaroo --target …",
        )
    return net

"""Types for the inputs and outputs of a forward pass: KV-cache slots, segments of new tokens, logits, hidden states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.kernels.image_layout import ImagePrefill

if TYPE_CHECKING:
    from workbench.kernels.kv_cache import KVCache


@runtime_checkable
class Retention(Protocol):
    """Rule that decides which committed entries of the KV cache a sequence keeps."""

    def after_commit(self, cache: KVCache, slot: Slot) -> None:
        """Drop the slot's KV-cache entries that this rule does not keep; adjust `slot.length` and `slot.shift`."""
        ...


@dataclass(frozen=True, slots=True)
class CaptureSelection:
    """Selection of the target's hidden states to capture.

    Attributes:
        features: whether to capture the LM head's input.
        layers: indices of the layers whose residual streams are captured.
    """

    features: bool = False
    layers: frozenset[int] = frozenset()


@dataclass(slots=True)
class PrefillHiddenStates:
    """Hidden states captured during prefill, from the first position on, one tensor per forward pass; by default none.

    Attributes:
        selection: selection of the hidden states that are captured.
        n: number of positions captured so far.
        features: the LM head's input, one tensor [1, n, D] per forward pass.
        layer_states: layer → its residual stream, one tensor [1, n, D] per forward pass.
    """

    selection: CaptureSelection = CaptureSelection()
    n: int = 0
    features: list[Tensor] = field(default_factory=list)
    layer_states: dict[int, list[Tensor]] = field(default_factory=dict)

    def take(self, out: Output, n: int) -> None:
        """Append the hidden states that a forward pass over n more positions captured."""
        self.n += n
        if self.selection.features:
            self.features.append(out.hidden)
        for layer in self.selection.layers:
            self.layer_states.setdefault(layer, []).append(out.layer_states[layer])

    def from_position(self, first: int) -> HiddenStates:
        """Return the captured hidden states at all positions from `first` on."""
        streams = {layer: torch.cat(pieces, 1)[0, first:] for layer, pieces in self.layer_states.items()}
        return HiddenStates(torch.cat(self.features, 1)[0, first:] if self.features else None, streams)


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Captured hidden states at n positions: `features`, the LM head's input, and residual streams by layer, [n, D].

    `features` is None if it was not captured or n is 0.
    """

    features: Float[Tensor, "n D"] | None
    layer_states: Mapping[int, Float[Tensor, "n D"]]


@dataclass(frozen=True, slots=True)
class DeviceLength:
    """Number of committed positions of a slot, which only the device knows until the host has read the round.

    Attributes:
        length: int64 [1] on the device.
        bound: number that `length` does not exceed, known to the host.
    """

    length: Int[Tensor, " one"]
    bound: int

    def longer(self, n: int) -> DeviceLength:
        """Return the number of committed positions after n more are committed."""
        return DeviceLength(self.length + n, self.bound + n)


@dataclass(slots=True, eq=False)
class Slot:
    """Row of a runner's KV cache, used by one sequence: `length` committed entries, then `scratch` drafted nodes.

    `positions` holds the sequence positions of the scratch nodes, for models whose masks depend on positions.
    `image_prefill` holds embeddings and hidden states of a prompt with images. `shift` is the number of tokens of the
    text that have no cache entry: in a draft model's slot if its prompt has fewer image tokens, in a target's slot if
    `retention` dropped their entries. `sequence_id` is the `id` of the engine's sequence that uses the slot, so that
    forward passes are counted for their sequences. `prefill_states` holds the hidden states captured for the drafter
    during prefill; they are dropped when the drafter has read them. `retention` decides after each commit which entries
    stay; None: all entries. `on_device` is set while rounds are queued that the host has not read: `length` is then
    the number of positions before these rounds.
    """

    index: int
    length: int = 0
    scratch: int = 0
    rope_delta: int = 0
    last_hidden: Tensor | None = None
    positions: Tensor | None = None
    image_prefill: ImagePrefill | None = None
    shift: int = 0
    sequence_id: int | None = None
    prefill_states: PrefillHiddenStates = field(default_factory=PrefillHiddenStates)
    retention: Retention | None = None
    on_device: DeviceLength | None = None

    @property
    def text_length(self) -> int:
        """Return the number of committed tokens of the text, whether or not they have a KV-cache entry."""
        return self.length + self.shift

    @property
    def image_prefill_length(self) -> int:
        """Return the number of prompt positions up to the end of the last image; 0 without an image."""
        return 0 if self.image_prefill is None else len(self.image_prefill.embeds)


@dataclass(slots=True)
class Segment:
    """New tokens of one sequence in a forward pass.

    Attributes:
        slot: slot of the sequence.
        tokens: int64 [n], token ids.
        attention_mask: bool [n, scratch + n], attention of the new tokens to the nodes after the committed entries and
            to the new tokens; None for a chain that continues the last node and attends to all nodes. If no new token
            attends to itself or to another new token, the mask may be [n, scratch]. Then no token attends to the
            entries that the new tokens write. In this case, if nothing is committed, each new token must attend to some
            node.
        depth: int64 [n], distance of each token from the committed entries, 0 for their first successor; None for a
            chain.
        states: [n, D], used instead of the tokens: residual stream before the first layer that is run, or input
            embeddings if that is layer 0. None: use the tokens. If the first layer that is run is not layer 0, either
            all segments of a forward pass have states or no segment has.
    """

    slot: Slot
    tokens: Int[Tensor, " n"]
    attention_mask: Bool[Tensor, "n s"] | None = None
    depth: Int[Tensor, " n"] | None = None
    states: Float[Tensor, "n D"] | None = None


@dataclass(slots=True)
class Output:
    """Results of a forward pass, in the order of the cache rows.

    Attributes:
        logits: float [B, n, V], padded to the longest segment.
        hidden: [B, k, D], the LM head's input; k is the number of positions with logits, or n if it was requested at
            every position.
        layer_states: layer index → [B, n, D], residual stream after that layer.
    """

    logits: Float[Tensor, "B n V"]
    hidden: Float[Tensor, "B k D"]
    layer_states: dict[int, Tensor] = field(default_factory=dict)


def states_of(
    rows: Sequence[Segment | None], n: int, embed: Callable[[Tensor], Tensor]
) -> Float[Tensor, "B n D"] | None:
    """Return the input states of a forward pass's first layer, zero-padded; None if it starts from token embeddings.

    Args:
        rows: segments of the batch; None: padding.
        n: number of tokens of the longest segment.
        embed: embedding function, for segments without states in a batch in which other segments have states.
    """
    segment_states = [None if segment is None else segment.states for segment in rows]
    like = next((states for states in segment_states if states is not None), None)
    if like is None:
        return None
    if len(rows) == 1:
        return like.unsqueeze(0)
    batch = like.new_zeros(len(rows), n, like.shape[1])
    for b, segment in enumerate(rows):
        if segment is not None:
            states = embed(segment.tokens) if segment.states is None else segment.states
            batch[b, : states.shape[0]] = states
    return batch

"""What goes into a forward and what comes out: a row's place in the cache, its new tokens, and what they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.kernels.image_layout import Pictured


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which states of the target are taken.

    Attributes:
        features: what the LM head reads.
        layers: indices of those whose residual streams are taken.
    """

    features: bool = False
    layers: frozenset[int] = frozenset()


@dataclass(slots=True)
class Heard:
    """States at the positions of a text from its first on, in pieces as they were read. By default none are kept.

    Attributes:
        wanted: which states.
        n: positions.
        features: pieces of [1, n, D].
        streams: layer → pieces of [1, n, D].
    """

    wanted: Wanted = Wanted()
    n: int = 0
    features: list[Tensor] = field(default_factory=list)
    streams: dict[int, list[Tensor]] = field(default_factory=dict)

    def take(self, out: Output, n: int) -> None:
        """Keep what a forward over n more positions gave."""
        self.n += n
        if self.wanted.features:
            self.features.append(out.hidden)
        for layer in self.wanted.layers:
            self.streams.setdefault(layer, []).append(out.taps[layer])

    def behind(self, first: int) -> States:
        """The states at positions from `first` on."""
        streams = {layer: torch.cat(pieces, 1)[0, first:] for layer, pieces in self.streams.items()}
        return States(torch.cat(self.features, 1)[0, first:] if self.features else None, streams)


@dataclass(frozen=True, slots=True)
class States:
    """Of the positions of a text, each [n, D]; `features` is None where they were not wanted, or n is 0."""

    features: Float[Tensor, "n D"] | None
    streams: Mapping[int, Float[Tensor, "n D"]]


@dataclass(slots=True, eq=False)
class Slot:
    """A row of a runner's cache. `length` positions are committed, `scratch` nodes are written behind them.

    `positions` holds the scratch nodes' places in the sequence, for models whose attention looks at them. `pictured`
    says what the pictures of the prompt became. `shift` is by how much the target's sequence is longer than this
    model's, which was given the same prompt with fewer tokens for its pictures. `owner` is the `id` of the row of the
    engine that it serves, so that a forward is counted for those who asked for it. `heard` is what the row's drafter
    takes of the prompt while that is read; it goes when the drafter has it.
    """

    index: int
    length: int = 0
    scratch: int = 0
    rope_delta: int = 0
    last_hidden: Tensor | None = None
    positions: Tensor | None = None
    pictured: Pictured | None = None
    shift: int = 0
    owner: int | None = None
    heard: Heard = field(default_factory=Heard)

    @property
    def n_pictured(self) -> int:
        """Positions of the prompt up to the end of its last picture; 0 without one."""
        return 0 if self.pictured is None else len(self.pictured.embeds)


@dataclass(slots=True)
class Segment:
    """New tokens of one row.

    Attributes:
        slot: the row.
        tokens: int64 [n].
        sees: bool [n, scratch + n] over the nodes behind the committed part; None for a chain that goes on from the
            last of them and sees them all. Tokens that see none of their own may leave those out: [n, scratch], of
            which some is seen wherever nothing is committed. What they write is read by none of them then.
        depth: int64 [n], distance behind the committed part, 0 for its first successor; None for a chain.
        states: [n, D], what is read in place of the tokens: their residual stream before the first layer that is run,
            or, where that is the model's first, input embeddings. None: the tokens themselves. Behind the first layer
            either all segments of a forward have them, or none.
    """

    slot: Slot
    tokens: Int[Tensor, " n"]
    sees: Bool[Tensor, "n s"] | None = None
    depth: Int[Tensor, " n"] | None = None
    states: Float[Tensor, "n D"] | None = None


@dataclass(slots=True)
class Output:
    """What a forward gives, in the order of the rows in the cache.

    Attributes:
        logits: [B, n, V], padded to the longest segment; float.
        hidden: [B, k, D], what the LM head reads; k is n, and more only where a forward was asked for it everywhere.
        taps: layer index → [B, n, D], residual stream after that layer.
    """

    logits: Float[Tensor, "B n V"]
    hidden: Float[Tensor, "B k D"]
    taps: dict[int, Tensor] = field(default_factory=dict)


def states_of(
    rows: Sequence[Segment | None], n: int, embed: Callable[[Tensor], Tensor]
) -> Float[Tensor, "B n D"] | None:
    """What a forward begins from, padded to its longest segment; None: from embeddings.

    Args:
        rows: segments, or padding.
        n: tokens of the longest.
        embed: of tokens, for segments without states beside some that have them.
    """
    given = [None if segment is None else segment.states for segment in rows]
    like = next((states for states in given if states is not None), None)
    if like is None:
        return None
    if len(rows) == 1:
        return like.unsqueeze(0)
    made = like.new_zeros(len(rows), n, like.shape[1])
    for b, segment in enumerate(rows):
        if segment is not None:
            states = embed(segment.tokens) if segment.states is None else segment.states
            made[b, : states.shape[0]] = states
    return made

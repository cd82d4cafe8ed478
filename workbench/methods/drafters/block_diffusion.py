"""Block diffusion: a small drafter unmasks a whole block of places at once, with the target's own states to read.

A block begins with the newest token, which is known; the places behind it hold a mask. Each layer of the drafter reads
the whole block, forwards and backwards, and the text as the target has it: streams of several depths, fused, enter each
layer as keys and values beside the block's own, and nothing of them has to pass through the block's few places:

    place     0 … t − 1                       t          t + 1    t + 2    …
    is read   fused streams h(0) … h(t − 1)   e(x(t))    m        m        …
    says                                                 x(t+1)   x(t+2)   …

One pass says a law for every masked place. Further passes *denoise*: the places that are surest get their likeliest
token, and the others are asked again with these in sight. A place keeps the law that it was unmasked by.

What is put in sight is the likeliest token, never a drawn one. So all laws of a block follow from the text alone, and a
chain draws each of its tokens from a law that no other draw had a part in: to a verifier the law of a place is the one
that its token was drawn from, whatever stands before it, and a tree may take several tokens of each. Were drawn tokens
put in sight, a token could depend on one that stands *behind* it; that the first was accepted would then tell something
of the second, its law would no longer be the one that is declared, and the text no longer the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.core.errors import ModelError
from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.engine.captured_states import states_of
from workbench.engine.feedback import Outcome
from workbench.engine.parts import Grower, LawDrafter
from workbench.engine.request import Request, Row
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.kernels.segment import Wanted
from workbench.methods.drafters.attention_net import EPS, DecoderLayer, Entries, Norm
from workbench.methods.drafters.eagle_3 import fused, streams_of
from workbench.methods.drafters.medusa import RANKS, HeadsGrowth
from workbench.methods.drafters.trained import TrainedNet, head_of, load_fitting
from workbench.methods.growers.chain import Chain
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH

LONGEST = 8
"""Places of a block, at most; the released drafters have 16 and 10, behind targets whose passes cost more."""
AGAIN = "Train it for this target: workbench train block-diffusion --target …"


@dataclass(frozen=True, slots=True)
class Text:
    """Keys and values of whole texts in one layer, for training, where nothing is kept: asked as `Entries` are."""

    entries: Float[Tensor, "two B H n d"]

    def put(self, new: Float[Tensor, "two B H m d"]) -> tuple[Tensor, Tensor]:
        """Keys and values with a block's own behind them, [B, H, n + m, d] each."""
        keys, values = torch.cat([self.entries, new], 3).unbind(0)
        return keys, values


Behind = Entries | Text
"""What a block reads beside itself, in one layer."""


class BlockLayer(DecoderLayer):
    """A decoder layer that sees all of its block, and the text by keys and values that are made of something else."""

    def __init__(self, width: int, heads: int, ffn: int, context: int, head_size: int) -> None:
        super().__init__(width, heads, context, head_size=head_size)
        del self.after  # what leaves the last layer is normed once, for the LM head
        self.feeds(ffn)

    def injected(self, text: Float[Tensor, "B n D"], places: Int[Tensor, " n"]) -> Float[Tensor, "two B H n d"]:
        """Keys and values of the text, by the weights that make the block's own."""
        return torch.stack(self.turned(text, places)[1:])

    def forward(
        self, x: Float[Tensor, "B m D"], places: Int[Tensor, "*b m"], behind: Behind, mask: Tensor | None
    ) -> Float[Tensor, "B m D"]:
        """The block's stream. `mask`: bool [B, 1, m, n + m], what each place sees; None: everything."""
        queries, *own = self.turned(self.before(x), places)
        keys, values = behind.put(torch.stack(own))
        return self.fed(self.mixed(nn.functional.scaled_dot_product_attention(queries, keys, values, mask), x))


class BlockNet(TrainedNet):
    """Layers that unmask blocks, a mask, and the fusion of the target's streams.

    Args:
        width: the target's hidden size D, and the stream's.
        heads: attention heads.
        ffn: width of the gated feed-forward.
        taps: T layers of the target whose outputs are fused, counted from 1, rising.
        block: places of a block, the known token's among them.
        layers: of the drafter.
        cond: numbers that the fusion goes through on its way from T · D to D: without them it would be most of a
            drafter of two layers.
        context: longest sequence, in positions.
        head_size: numbers of an attention head; 0: the heads share the width.

    Raises:
        ValueError: a block has no place for a mask, or more than `LONGEST`; taps are not distinct and rising.

    Source: Chen et al. 2026, DFlash, arXiv:2602.06036, §3 (recalled), and its released code: streams of several depths
    through one product and a norm, then by each layer's own weights into keys and values; the target's embedding and LM
    head. The mask is ours, a learned vector, where theirs is the row of a token.
    """

    kind: ClassVar[str] = "block-diffusion"
    accuracy: ClassVar[tuple[tuple[float, ...], ...]] = ()
    """How often each rank of each place is right was not measured."""

    def __init__(
        self,
        width: int,
        heads: int,
        ffn: int,
        taps: Sequence[int] = (1, 2),
        block: int = LONGEST,
        layers: int = 2,
        cond: int = 64,
        context: int = 1024,
        head_size: int = 0,
    ) -> None:
        super().__init__()
        if not 2 <= block <= LONGEST:
            raise ValueError(f"block={block}: give 2 to {LONGEST} positions")
        if not taps or any(a >= b for a, b in zip((0, *taps), taps, strict=False)):
            raise ValueError(f"taps={list(taps)}: give layer numbers from 1, ascending and distinct")
        self.width, self.heads, self.taps, self.block = width, heads, tuple(taps), block
        self.mask = nn.Parameter(torch.randn(width) * width**-0.5)
        self.narrow = nn.Linear(len(taps) * width, cond, bias=False)
        self.widen = nn.Linear(cond, width, bias=False)
        self.norm_text, self.after = Norm(width, eps=EPS), Norm(width, eps=EPS)
        self.layers = nn.ModuleList(
            BlockLayer(width, heads, ffn, context + block, head_size) for _ in range(max(1, layers))
        )

    @property
    def each(self) -> list[BlockLayer]:
        """Its layers."""
        return [layer for layer in self.layers if isinstance(layer, BlockLayer)]

    def injected(
        self, streams: Float[Tensor, "B n TD"], places: Int[Tensor, " n"]
    ) -> list[Float[Tensor, "two B H n d"]]:
        """Of each layer the keys and values of a text."""
        text = self.norm_text(self.widen(self.narrow(streams)))
        return [layer.injected(text, places) for layer in self.each]

    def forward(
        self,
        x: Float[Tensor, "B m D"],
        places: Int[Tensor, "*b m"],
        behind: Sequence[Behind],
        mask: Bool[Tensor, "B 1 m used"] | None = None,
    ) -> Float[Tensor, "B m D"]:
        """What an LM head reads at the places of blocks.

        Args:
            x: embeddings of the tokens known there, the mask at the others.
            places: in the text, of each row [B, m] or of all [m].
            behind: of each layer, the text's keys and values.
            mask: which of these, and of the blocks' own, each place sees; None: all.
        """
        for layer, read in zip(self.each, behind, strict=True):
            x = layer(x, places, read, mask)
        return self.after(x)

    def shown(self, embeds: Float[Tensor, "*b m D"], is_known: Bool[Tensor, "*b m"]) -> Float[Tensor, "*b m D"]:
        """What enters at places of blocks."""
        return torch.where(is_known.unsqueeze(-1), embeds, self.mask.to(embeds.dtype))

    def blocks(
        self,
        streams: Float[Tensor, "B n TD"],
        embeds: Float[Tensor, "B n D"],
        anchors: Int[Tensor, "B A"],
        is_known: Bool[Tensor, "B A m"],
    ) -> Float[Tensor, "B A m D"]:
        """What drafting says in blocks that begin at places of texts, all at once: what it learns from.

        A block sees the text before it, itself, and no other block.

        Args:
            streams: of the target.
            embeds: of its tokens.
            anchors: where the blocks begin.
            is_known: at which of their places the text's token is in sight; at the first always.
        """
        (b, n), (a, m) = embeds.shape[:2], is_known.shape[1:]
        places = (anchors.unsqueeze(-1) + torch.arange(m, device=anchors.device)).flatten(1)
        tokens = embeds.gather(1, places.clamp_max(n - 1).unsqueeze(-1).expand(-1, -1, self.width))
        text = torch.arange(n, device=anchors.device) < anchors.repeat_interleave(m, 1).unsqueeze(-1)
        number = torch.arange(a, device=anchors.device).repeat_interleave(m)
        own = (number == number[:, None]).expand(b, -1, -1)
        behind = [Text(entries) for entries in self.injected(streams, torch.arange(n, device=anchors.device))]
        x = self.shown(tokens, is_known.flatten(1))
        return self(x, places, behind, torch.cat([text, own], 2).unsqueeze(1)).unflatten(1, (a, m))

    def settle(self) -> BlockNet:
        """For drafting: no gradients, and the layers' weights laid out for a few rows."""
        super().settle()
        for layer in self.each:
            layer.settle()
        return self

    @property
    def sizes(self) -> dict[str, Any]:
        """What the constructor needs to build it again."""
        layer = self.each[0]
        return {
            "width": self.width, "heads": self.heads, "ffn": layer.down.in_features, "taps": list(self.taps),
            "block": self.block, "layers": len(self.layers), "cond": self.narrow.out_features,
            "head_size": layer.head_size,
        }  # fmt: skip


def unmasked(step: int, steps: int, masks: int) -> int:
    """How many of a block's masks are gone behind a step, from 1, of so many: shared out evenly, more at first.

    Example:
        >>> [unmasked(step, 3, 7) for step in (1, 2, 3)]
        [3, 5, 7]
    """
    return -(-step * masks // steps)


@dataclass(slots=True)
class BlockState:
    """What the drafter knows about one text. Its laws at a place know nothing of what is drawn before it.

    Attributes:
        net: the drafter.
        models: whose target's embedding and LM head it shares.
        head: the target's LM head, over the tokens that the drafter keeps.
        entries: of each layer, the text's keys and values.
        place: the position that the next block begins at: all before it is read, or waits in `fresh`.
        fresh: the target's streams, [1, m, T · D] each, that have not been read yet.
    """

    net: BlockNet
    models: Models
    head: SharedHead
    entries: list[Entries]
    place: int
    fresh: list[Float[Tensor, "1 m TD"]] = field(default_factory=list[Tensor])

    def hear(self, streams: Float[Tensor, "m TD"]) -> None:
        """Take the target's streams of the next m places."""
        self.fresh.append(streams.unsqueeze(0))
        self.place += len(streams)

    def read(self) -> None:
        """Keep keys and values of what was heard."""
        if self.fresh:
            streams, self.fresh = torch.cat(self.fresh, 1), []
            places = torch.arange(self.place - streams.shape[1], self.place, device=streams.device)
            for entries, new in zip(self.entries, self.net.injected(streams, places), strict=True):
                entries.put(new)
                entries.settle()

    def draft(self, token: Int[Tensor, " 1"], steps: int) -> Float[Tensor, "m W"]:
        """Logits of a block's masked places behind a token, from which each was unmasked.

        Args:
            token: the newest of the text.
            steps: passes; each unmasks the places that are surest, the last one all that are left.
        """
        net, target, masks = self.net, self.models.target, self.net.block - 1
        start = target.clock.mark()
        self.read()
        places = torch.arange(self.place, self.place + net.block, device=token.device)
        is_known = torch.arange(net.block, device=token.device) == 0
        tokens, said = token.expand(net.block), None
        for step in range(1, steps + 1):
            x = net.shown(target.embed(tokens), is_known)
            states = net(x.unsqueeze(0), places, self.entries)[0, 1:]
            for entries in self.entries:
                entries.forget()
            now = self.head(states).float()
            said = now if said is None else torch.where(is_known[1:, None], said, now)
            if step < steps:
                surest, best = self.head.ranked(said, 1)
                more = unmasked(step, steps, masks) - unmasked(step - 1, steps, masks)
                asked = surest[:, 0].masked_fill(is_known[1:], -torch.inf).topk(more).indices
                is_known = is_known.index_fill(0, asked + 1, True)
                tokens = torch.cat([token, best[:, 0]])
            end = target.clock.mark()
            self.models.meter.add(start, end)
            start = end
        assert said is not None
        return said

    def whole(self, said: Float[Tensor, "1 m W"], level: int) -> Float[Tensor, "1 V"]:
        """Logits of one place of the block, from 0, over all of the target's tokens: those of all places are known."""
        return self.head.spread(said[:, level])


@dataclass(frozen=True)
class BlockDiffusion(LawDrafter):
    """A block of the length that it was trained for, in one pass or a few; the plan takes the places that it wants.

    A tree over them is Medusa's: the law of a level is the same behind all nodes of the level before. Of a prompt with
    pictures it reads what stands behind them.

    Attributes:
        unmaskings: passes that unmask a block, at most one for each mask.

    Source: Chen et al. 2026, DFlash, arXiv:2602.06036, §3 (recalled), which has one step. Several, surest places first:
    Chang et al. 2022, MaskGIT, arXiv:2202.04200, §3.2; of blocks behind a text: Arriola et al. 2025, Block diffusion,
    arXiv:2503.09573, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (BlockNet.kind, "trees")
    reads_target: ClassVar[bool] = True
    usual: ClassVar[Grower | None] = Chain()
    unmaskings: int = param(
        1, ge=1, le=LONGEST - 1, doc="drafter passes per block; each fills in the most confident positions"
    )

    def taps(self, models: Models) -> set[int]:
        """Indices of the layers that its net was trained to read."""
        return {layer - 1 for layer in _net(models).taps} if BlockNet.kind in models.heads else set()

    def hears(self, models: Models) -> Wanted:
        """The streams of the prompt that it reads."""
        return streams_of(_net(models).taps)

    def prime(self, row: Row, models: Models) -> BlockState:
        """Hear the streams of all committed positions but the last, behind pictures."""
        net, target, slot = _net(models), models.target, row.place
        end = len(row.committed) - 1
        first = min(slot.n_pictured, end)
        like = torch.empty(0, dtype=target.dtype, device=target.device)
        capacity = len(row.committed) + row.remaining + SCRATCH
        entries = [Entries(net.heads, layer.head_size, capacity, like) for layer in net.each]
        state = BlockState(net, models, head_of(BlockNet, models), entries, first)
        if first < end:
            with torch.inference_mode():
                state.hear(fused(states_of(row, models, streams_of(net.taps), first).streams, net.taps))
                state.read()
        return state

    def reach(self, row: Row) -> int:
        """One level a mask."""
        return row.state.net.block - 1

    def begin(self, row: Row) -> HeadsGrowth:
        """Unmask a block behind the newest token."""
        state: BlockState = row.state
        token = to_device(row.committed[-1:], row.models.target.device)
        said = state.draft(token, min(self.unmaskings, state.net.block - 1))
        return HeadsGrowth(row, said, *state.head.ranked(said, RANKS))

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Hear the streams of the root and of the accepted nodes."""
        state: BlockState = row.state
        rows = outcome.places
        state.hear(fused(outcome.taps, state.net.taps)[rows])

    def explain(
        self, models: Models, request: Request, tokens: Sequence[int], told: Callable[[float], None] = lambda _: None
    ) -> None:
        """It sees no picture."""


def _net(models: Models) -> BlockNet:
    """The net that was trained for a target, loaded once.

    Raises:
        ModelError: it cannot be read, or reads layers that the target does not have.
    """
    net, layers = load_fitting(BlockNet, models, "block diffusion weights", AGAIN), models.target.n_layers
    if net.taps[-1] > layers:
        message = f"These weights read layers {', '.join(map(str, net.taps))}; the target has {layers}."
        raise ModelError(message, AGAIN)
    return net

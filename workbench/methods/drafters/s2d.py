"""S2D: a draft model with several sizes in one, which takes for each token the smallest that is sure of it.

A small language model can be left behind some of its layers; each exit speaks through the one norm and the one LM head
of all, so that every size is the beginning of the next larger one:

    blocks   | layer 1 |  layer 2  |  layers 3, 4  |
    exits              1           2               3

A token comes from the first exit whose largest probability reaches its threshold. Where an exit is not sure, the next
block runs; the last exit always answers, and where even that is unsure the draft ends.

What a token leaves behind is the trap. One that left early has no keys and values in the layers above, which later
tokens want to see. So the stream that it left with waits in front of the next block, and when a later token goes
further, all that waits runs through the block together, in one pass:

    places       0 … 5   6   7   8          read by layer 1:  0 … 8
    left at        3     1   1   2          by layer 2:       0 … 5, and now 6, 7, 8 in one pass
                                            by layers 3, 4:   0 … 5; 6, 7 and 8 wait

In the end each layer has the entries that it would have had if every token had run through all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.core.cells import cells
from workbench.core.errors import ModelError
from workbench.core.params import param
from workbench.core.transfer import to_device, to_host
from workbench.engine.feedback import Outcome
from workbench.engine.parts import Grower, LawDrafter
from workbench.engine.request import Row
from workbench.engine.tree_building import STOPPED, Growth, Laws, WholeLaws
from workbench.kernels.distributions import weigh
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.methods.drafters.attention_net import Entries
from workbench.methods.drafters.draft_tree import laws_of
from workbench.methods.drafters.s2d_net import S2DLayer, S2DNet
from workbench.methods.drafters.trained import load_fitting
from workbench.methods.growers.chain import Chain, single
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH

CHUNK = 512
"""Places that run through a block at a time, at most: a long prompt would need a large mask."""
AGAIN = "Train it for this target: workbench train s2d --target …"


@dataclass(slots=True)
class Block:
    """The layers in front of an exit, what they have read of a text, and what waits for them.

    Attributes:
        layers: of the net.
        entries: of each, the keys and values of the places that it has read.
        waiting: the stream in front of it at the places behind these, [m, W].
    """

    layers: Sequence[S2DLayer]
    entries: Sequence[Entries]
    waiting: Float[Tensor, "m W"]

    @property
    def read(self) -> int:
        """Places that it has read."""
        return self.entries[0].used

    def keep(self, n: int) -> None:
        """Forget what was read, and what waits, behind the first n places."""
        self.waiting = self.waiting[: max(0, n - self.read)]
        for entries in self.entries:
            entries.keep(min(n, entries.used))


@dataclass(slots=True)
class S2DState:
    """What the drafter knows about one text.

    Attributes:
        net: the drafter.
        models: whose clock runs.
        head: its LM head, over the tokens that it keeps.
        blocks: one for each exit.
        first: position of the first token that it reads; what stands before (pictures) it never does.
        thresholds: of each exit, the largest probability from which it answers; of the last, below which a draft ends.
        n_text: places of the text that stand in front of the blocks, or in them.
        levels: of each level of the draft behind these, what its nodes see of the draft, bool [w, nodes].
        scratch_of: of each node of the last draft that was read, its place behind the text.
        is_unsure: whether even the last exit was, behind all nodes that were read last.
    """

    net: S2DNet
    models: Models
    head: SharedHead
    blocks: Sequence[Block]
    first: int
    thresholds: Sequence[float]
    n_text: int = 0
    levels: list[Bool[Tensor, "w n"]] = field(default_factory=list[Tensor])
    scratch_of: dict[int, int] = field(default_factory=dict[int, int])
    is_unsure: bool = False

    def take(self, tokens: Int[Tensor, " w"], sees: Bool[Tensor, "w n"] | None = None) -> None:
        """Let tokens wait in front of the first block: the next ones of the text, or a level of the draft behind it."""
        block = self.blocks[0]
        block.waiting = torch.cat([block.waiting, self.net.entering(tokens)])
        if sees is None:
            self.n_text += len(tokens)
        else:
            self.levels.append(sees)

    def keep(self, n: int) -> None:
        """Forget all behind the first n places, in every block; what is left of a draft is text now."""
        for block in self.blocks:
            block.keep(n)
        self.n_text, self.levels, self.scratch_of = self.blocks[0].read + len(self.blocks[0].waiting), [], {}

    def through(self, number: int) -> Float[Tensor, "m W"]:
        """Run all that waits in front of a block through it, to wait in front of the next one."""
        block, found = self.blocks[number], list[Tensor]()
        for at in range(0, len(block.waiting), CHUNK):
            stream = block.waiting[at : at + CHUNK].unsqueeze(0)
            places, mask = self.laid(block.read, block.read + stream.shape[1])
            for layer, entries in zip(block.layers, block.entries, strict=True):
                stream = layer(stream, places, mask, entries)
            found.append(stream[0])
        block.waiting, stream = block.waiting[:0], torch.cat(found)
        for behind in self.blocks[number + 1 : number + 2]:
            behind.waiting = torch.cat([behind.waiting, stream])
        return stream

    def laid(self, start: int, end: int) -> tuple[Int[Tensor, " n"], Bool[Tensor, "n end"] | None]:
        """The positions of places, and which others each of them sees; None: all before it, as in a text."""
        device, text, widths = self.blocks[0].waiting.device, self.n_text, [len(level) for level in self.levels]
        if end <= text or max(widths) == 1:  # a chain is laid as a text is
            return torch.arange(start, end, device=device), None
        deep = [torch.full((width,), text + level, device=device) for level, width in enumerate(widths)]
        places = torch.cat([torch.arange(text, device=device), *deep])[start:end]
        mask = torch.ones(end - start, end, dtype=torch.bool, device=device).tril(start)
        sees = torch.cat([nn.functional.pad(level, (0, sum(widths) - level.shape[1])) for level in self.levels])
        mask[max(0, text - start) :, text:] = sees[max(0, start - text) : end - text, : end - text]
        return places, mask

    def said(self, w: int) -> tuple[Float[Tensor, "w K"], Int[Tensor, " w"]]:
        """Logits behind the newest w places, each by the first exit that is sure enough, and which exit that is."""
        start, last = self.models.target.clock.mark(), len(self.blocks) - 1
        logits = number = unsure = None
        self.is_unsure = False
        for exit_, least in enumerate(self.thresholds):
            stream = self.through(exit_)[-w:]
            if least >= 1 and exit_ < last:  # never sure enough: it need not speak
                continue
            now = single(self.head(self.net.after(stream)))
            if logits is None or number is None or unsure is None:
                logits, unsure = now, torch.ones(w, dtype=torch.bool, device=now.device)
                number = torch.full((w,), exit_, device=now.device)
            else:
                logits, number = torch.where(unsure[:, None], now, logits), torch.where(unsure, exit_, number)
            if least <= 0:
                break
            unsure = unsure & (largest(now) < least)
            if not (left := int(unsure.sum())):
                break
            self.is_unsure = exit_ == last and left == w
        assert logits is not None
        assert number is not None
        self.models.meter.add(start, self.models.target.clock.mark())
        return self.head.spread(logits), number


def largest(logits: Float[Tensor, "w K"]) -> Float[Tensor, " w"]:
    """The probability of each row's likeliest token: plain, without temperature."""
    found = weigh(logits, 1)
    return logits.softmax(1).amax(1) if found is None else found.p_top[:, 0]


class S2DGrowth(Growth):
    """A tree that grows behind all that is committed: a level is read by as many blocks as its unsurest node needs."""

    def __init__(self, row: Row) -> None:
        self.state: S2DState = row.state
        super().__init__(row, S2DNet.kind, self.state.blocks[0].waiting.device)
        self.exits: list[Int[Tensor, " w"]] = []
        self.root = self._laws(1)

    def laws(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> WholeLaws:
        self.state.take(tokens, self.sees)
        return self._laws(len(tokens))

    def goes_on(self, laws: Laws) -> bool:
        """Not behind nodes of which even the whole drafter is unsure. They are asked before a token is drawn there."""
        if self.state.is_unsure:
            self.row.signals[STOPPED] = len(self.tokens)
        return not self.state.is_unsure and super().goes_on(laws)

    def close(self, kept: Int[Tensor, " kept"] | None = None) -> None:
        """Remember where the nodes that are drafted stand, and show which exit drafted each."""
        none = self.tokens[0][:0]
        asked = [torch.cat([none, *self.read]), torch.cat(self.exits), torch.cat(self.parents)]
        read, exits, parents, *chosen = to_host([*asked, *([] if kept is None else [kept])])
        final: Sequence[int] = chosen[0] if chosen else range(self.n)
        scratch: dict[int, int] = {node: i for i, node in enumerate(read)}
        exit_of: dict[int, int] = dict(zip([-1, *read], exits, strict=True))
        self.state.scratch_of = {i: scratch[node] for i, node in enumerate(final) if node in scratch}
        layers = [float(self.state.net.exits[exit_of[parents[node]]]) for node in final]
        self.row.signals.update(cells("layers that drafted each token", {"layers": layers}))

    def _laws(self, w: int) -> WholeLaws:
        logits, exits = self.state.said(w)
        self.exits.append(exits)
        if not self.tokens:
            return laws_of(self.row, logits, [[]])
        return laws_of(self.row, logits, self.paths() if self.row.sampling.needs_history else [])


@dataclass(frozen=True)
class S2D(LawDrafter):
    """A chain, or another tree, each of whose tokens is drawn from the law of the exit that was sure enough.

    Which exit answers follows from the text before alone, so the law that a draft carries is the one that its token was
    drawn from. Of a prompt with pictures it reads what stands behind them.

    Attributes:
        sure: from which largest probability the smallest size answers.
        sure_later: the same of the sizes between it and the whole drafter.
        least: below which largest probability of the whole drafter the draft ends.

    Source: Kavehzadeh et al. 2024, S2D, arXiv:2407.01955, §3 (adaptive draft size).
    """

    needs: ClassVar[tuple[str, ...]] = (S2DNet.kind, "trees")
    usual: ClassVar[Grower | None] = Chain()
    sure: float = param(
        0.8, ge=0.0, le=1.0, doc="least top probability at which the smallest size's token is used; 1: never"
    )
    sure_later: float = param(0.6, ge=0.0, le=1.0, doc="the same for sizes between the smallest and the largest")
    least: float = param(0.2, ge=0.0, le=1.0, doc="top probability of the largest size below which the draft ends")

    def prime(self, row: Row, models: Models) -> S2DState:
        """Nothing is read before a draft wants it."""
        net = _net(models)
        like = net.embed.weight.detach()
        capacity = len(row.committed) + row.remaining + SCRATCH
        blocks = [
            Block(
                layers, [Entries(net.heads, layer.head_size, capacity, like) for layer in layers], like[:0].contiguous()
            )
            for layers in net.blocks
        ]
        asked = [self.sure, *[self.sure_later] * (len(blocks) - 2)][: len(blocks) - 1]
        first = min(row.place.n_pictured, len(row.committed) - 1)
        return S2DState(net, models, _head(net, models), blocks, first, [*asked, self.least])

    def begin(self, row: Row) -> S2DGrowth | None:
        """Read what is committed; there is no draft where nobody is sure of its first token."""
        state: S2DState = row.state
        state.keep(min(state.n_text, len(row.committed) - 1 - state.first))
        unread = row.committed[state.first + state.n_text :]
        state.take(to_device(unread, state.blocks[0].waiting.device))
        growth = S2DGrowth(row)
        if state.is_unsure:
            row.signals[STOPPED] = 0
            return None
        return growth

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Keep the accepted nodes that stand as a text does, each right behind its parent; the others are read anew."""
        state: S2DState = row.state
        n = 0
        for node in outcome.verdict.path[: len(outcome.emitted)]:
            if state.scratch_of.get(node) != n:
                break
            n += 1
        state.keep(state.n_text + n)


def _net(models: Models) -> S2DNet:
    """The net that was trained for a target, loaded once.

    Raises:
        ModelError: it cannot be read, or knows other tokens than the target.
    """
    net, size = load_fitting(S2DNet, models, "S2D weights", AGAIN), models.target.vocab_size
    if len(net.embed.weight) != size:
        raise ModelError(f"These S2D weights are for {len(net.embed.weight)} tokens; the target has {size}.", AGAIN)
    return net


def _head(net: S2DNet, models: Models) -> SharedHead:
    """Its LM head over the tokens that it keeps, laid out once.

    Raises:
        ModelError: it keeps tokens that the target does not have.
    """
    info = models.heads[S2DNet.kind]
    key = ("head of", S2DNet.kind, info.name)
    if key not in models.shared:
        models.shared[key] = SharedHead(net.embed, info.config)
    return cast(SharedHead, models.shared[key])

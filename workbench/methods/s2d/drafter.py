"""S2D: a draft model with several exits; each token comes from the first exit that is confident enough.

A small language model has exits after some of its layers. All exits share one norm and one LM head. Each smaller model
consists of the first layers of the next larger one:

    blocks   | layer 1 |  layer 2  |  layers 3, 4  |
    exits              1           2               3

A token comes from the first exit whose largest probability (its confidence) reaches a threshold. If no exit so far has
reached it, the next block of layers runs. The last exit always returns a token; if even its confidence is low, the
draft ends.

Tokens that exited early have no keys and values in the later layers, which later tokens need. So the hidden state of
such a token waits before the next block. When a later token needs that block, all waiting positions run through it
together, in one pass:

    positions    0 … 5   6   7   8          read by layer 1:  0 … 8
    exit           3     1   1   2          by layer 2:       0 … 5, and now 6, 7, 8 in one pass
                                            by layers 3, 4:   0 … 5; 6, 7 and 8 wait

So each layer gets the same cache entries as if every token had run through all layers at once.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.core.errors import ModelError
from workbench.core.params import param
from workbench.core.table_signals import make_table_signals
from workbench.core.transfer import to_device, to_host
from workbench.decoders.draft_verify.parts import DistributionDrafter, RoundFeedback, TreeBuilder
from workbench.decoders.draft_verify.tree_building import STOPPED, FullDistributions, NodeDistributions, PartialTree
from workbench.engine.request import Sequence
from workbench.kernels.distributions import summarise_softmax
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.methods.common.attention_net import DraftKVCache
from workbench.methods.common.draft_model_tree import distributions_of
from workbench.methods.common.trained_net import load_fitting
from workbench.methods.s2d.net import S2DLayer, S2DNet
from workbench.methods.tree_builders.chain import Chain, to_float32
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH

CHUNK = 512
"""Maximum number of positions that run through a block of layers at once. A long prompt would need a large
attention mask."""
TRAIN_ADVICE = "Train a head for this target: workbench train s2d --target …"


@dataclass(slots=True)
class Block:
    """Block of the drafter's layers before an exit, with its KV caches and the hidden states of waiting positions.

    Attributes:
        layers: layers of the drafter after the previous exit, up to this exit.
        kv_caches: KV cache of each layer, for the positions that it has processed.
        waiting: inputs of the block at the m positions after the processed ones, [m, W]; W is the layers' width.
    """

    layers: abc.Sequence[S2DLayer]
    kv_caches: abc.Sequence[DraftKVCache]
    waiting: Float[Tensor, "m W"]

    @property
    def n_processed(self) -> int:
        """Return the number of positions that the block of layers has processed."""
        return self.kv_caches[0].n_used

    def truncate(self, n: int) -> None:
        """Drop all positions of the block after the first n, processed or waiting."""
        self.waiting = self.waiting[: max(0, n - self.n_processed)]
        for entries in self.kv_caches:
            entries.truncate(min(n, entries.n_used))


@dataclass(slots=True)
class S2DState:
    """Drafting state of S2D for one text.

    Attributes:
        net: the drafter.
        models: models of the run, which have the clock and the time meter.
        head: the drafter's LM head, over its draft vocabulary.
        blocks: block of layers before each exit.
        first: position of the first token that the drafter reads. Earlier positions (images) are never read.
        thresholds: minimum top probability at each exit for using its token. Below the last threshold, the draft ends.
        n_text: number of text positions, processed or waiting.
        levels: for each draft level, the attention mask of its w nodes over the draft's nodes, bool [w, nodes].
        scratch_of: for each processed node of the last draft, the index of its entry among the KV cache entries after
            the text.
        is_unsure: whether even the last exit's confidence was below the threshold at all nodes of the newest level.
    """

    net: S2DNet
    models: Models
    head: SharedHead
    blocks: abc.Sequence[Block]
    first: int
    thresholds: abc.Sequence[float]
    n_text: int = 0
    levels: list[Bool[Tensor, "w n"]] = field(default_factory=list[Tensor])
    scratch_of: dict[int, int] = field(default_factory=dict[int, int])
    is_unsure: bool = False

    def queue_tokens(self, tokens: Int[Tensor, " w"], tree_mask: Bool[Tensor, "w n"] | None = None) -> None:
        """Append tokens to the queue of inputs that the first block of layers has not yet processed.

        Args:
            tokens: the text's next tokens, or the tokens of a level of the draft.
            tree_mask: attention mask of the level over draft nodes; None: the tokens are text.
        """
        block = self.blocks[0]
        block.waiting = torch.cat([block.waiting, self.net.embed_tokens(tokens)])
        if tree_mask is None:
            self.n_text += len(tokens)
        else:
            self.levels.append(tree_mask)

    def truncate(self, n: int) -> None:
        """Drop all positions after the first n in every block of layers. Draft positions that remain become text."""
        for block in self.blocks:
            block.truncate(n)
        self.n_text, self.levels, self.scratch_of = self.blocks[0].n_processed + len(self.blocks[0].waiting), [], {}

    def run_block(self, number: int) -> Float[Tensor, "m W"]:
        """Run a block of layers on its waiting inputs, and return its outputs, now waiting inputs of the next block."""
        block, outputs = self.blocks[number], list[Tensor]()
        for at in range(0, len(block.waiting), CHUNK):
            stream = block.waiting[at : at + CHUNK].unsqueeze(0)
            places, mask = self.positions_and_mask(block.n_processed, block.n_processed + stream.shape[1])
            for layer, entries in zip(block.layers, block.kv_caches, strict=True):
                stream = layer(stream, places, mask, entries)
            outputs.append(stream[0])
        block.waiting, stream = block.waiting[:0], torch.cat(outputs)
        for next_block in self.blocks[number + 1 : number + 2]:
            next_block.waiting = torch.cat([next_block.waiting, stream])
        return stream

    def positions_and_mask(self, start: int, end: int) -> tuple[Int[Tensor, " n"], Bool[Tensor, "n end"] | None]:
        """Return the text positions and the attention mask of the KV cache entries from `start` to `end` − 1.

        The mask is None if it is causal.
        """
        device, text, widths = self.blocks[0].waiting.device, self.n_text, [len(level) for level in self.levels]
        if end <= text or max(widths) == 1:  # a chain is causal, as a text is
            return torch.arange(start, end, device=device), None
        level_places = [torch.full((width,), text + level, device=device) for level, width in enumerate(widths)]
        places = torch.cat([torch.arange(text, device=device), *level_places])[start:end]
        mask = torch.ones(end - start, end, dtype=torch.bool, device=device).tril(start)
        sees = torch.cat([nn.functional.pad(level, (0, sum(widths) - level.shape[1])) for level in self.levels])
        mask[max(0, text - start) :, text:] = sees[max(0, start - text) : end - text, : end - text]
        return places, mask

    def exit_logits(self, w: int) -> tuple[Float[Tensor, "w K"], Int[Tensor, " w"]]:
        """Return logits at the newest w positions, each from its first confident exit, and the exits' indices."""
        start, last = self.models.target.clock.mark(), len(self.blocks) - 1
        logits = exits = is_unsure = None
        self.is_unsure = False
        for exit_, threshold in enumerate(self.thresholds):
            stream = self.run_block(exit_)[-w:]
            if threshold >= 1 and exit_ < last:  # this exit is never used
                continue
            exit_logits = to_float32(self.head(self.net.after(stream)))
            if logits is None or exits is None or is_unsure is None:
                logits, is_unsure = exit_logits, torch.ones(w, dtype=torch.bool, device=exit_logits.device)
                exits = torch.full((w,), exit_, device=exit_logits.device)
            else:
                logits, exits = (
                    torch.where(is_unsure[:, None], exit_logits, logits),
                    torch.where(is_unsure, exit_, exits),
                )
            if threshold <= 0:
                break
            is_unsure = is_unsure & (top_prob(exit_logits) < threshold)
            if not (n_unsure := int(is_unsure.sum())):
                break
            self.is_unsure = exit_ == last and n_unsure == w
        assert logits is not None
        assert exits is not None
        self.models.meter.add(start, self.models.target.clock.mark())
        return self.head.scatter_logits(logits), exits


def top_prob(logits: Float[Tensor, "w K"]) -> Float[Tensor, " w"]:
    """Return the largest probability of each of w distributions, without temperature."""
    summary = summarise_softmax(logits, 1)
    return logits.softmax(1).amax(1) if summary is None else summary.p_top[:, 0]


class S2DGrowth(PartialTree):
    """Draft tree of S2D. Each level runs through as many blocks of layers as its least confident node needs."""

    def __init__(self, sequence: Sequence) -> None:
        self.state: S2DState = sequence.state.drafter
        super().__init__(sequence, S2DNet.kind, self.state.blocks[0].waiting.device)
        self.exits: list[Int[Tensor, " w"]] = []
        self.root = self._distributions(1)

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> FullDistributions:
        self.state.queue_tokens(tokens, self.attention_mask)
        return self._distributions(len(tokens))

    def should_continue(self, distributions: NodeDistributions) -> bool:
        """Return whether drafting should continue: at least one node of the newest level has a confident exit.

        The test is made before tokens are drawn, so it does not bias the output.
        """
        if self.state.is_unsure:
            self.sequence.report.signals[STOPPED] = len(self.tokens)
        return not self.state.is_unsure and super().should_continue(distributions)

    def close(self, nodes: Int[Tensor, " kept"] | None = None) -> None:
        """Store the indices of the drafted nodes, and record in the trace how many layers drafted each node."""
        empty = self.tokens[0][:0]
        index_tensors = [torch.cat([empty, *self.expanded]), torch.cat(self.exits), torch.cat(self.parents)]
        read, exits, parents, *selection = to_host([*index_tensors, *([] if nodes is None else [nodes])])
        final: abc.Sequence[int] = selection[0] if selection else range(self.n)
        scratch: dict[int, int] = {node: i for i, node in enumerate(read)}
        exit_of: dict[int, int] = dict(zip([-1, *read], exits, strict=True))
        self.state.scratch_of = {i: scratch[node] for i, node in enumerate(final) if node in scratch}
        layers = [float(self.state.net.exits[exit_of[parents[node]]]) for node in final]
        self.sequence.report.signals.update(make_table_signals("layers that drafted each token", {"layers": layers}))

    def _distributions(self, w: int) -> FullDistributions:
        logits, exits = self.state.exit_logits(w)
        self.exits.append(exits)
        if not self.tokens:
            return distributions_of(self.sequence, logits, [[]])
        return distributions_of(self.sequence, logits, self.paths() if self.sequence.sampling.needs_history else [])


@dataclass(frozen=True)
class S2D(DistributionDrafter):
    """Draft a chain or a tree. Each token is drawn from the distribution of the first confident exit.

    The exit depends on earlier tokens alone, so the verifier gets the distribution from which each token was drawn. In
    a prompt with images the drafter reads only the text after the images.

    Attributes:
        sure: minimum top probability for using the first exit's token.
        sure_later: minimum top probability for using the token of an intermediate exit.
        least: minimum top probability at the last exit; below it the draft ends.

    Source: Kavehzadeh et al. 2024, S2D, arXiv:2407.01955, §3 (adaptive draft size).
    """

    needs: ClassVar[tuple[str, ...]] = (S2DNet.kind, "trees")
    default_tree_builder: ClassVar[TreeBuilder | None] = Chain()
    sure: float = param(0.8, ge=0.0, le=1.0, doc="minimum top probability to use the smallest exit's token; 1: never")
    sure_later: float = param(
        0.6, ge=0.0, le=1.0, doc="minimum top probability to use the token of an intermediate exit"
    )
    least: float = param(0.2, ge=0.0, le=1.0, doc="stop drafting when the last exit's top probability is below this")

    def init_state(self, sequence: Sequence, models: Models) -> S2DState:
        """Return a drafting state without processed positions. Tokens are read when a draft needs them."""
        net = _net(models)
        like = net.embed.weight.detach()
        capacity = len(sequence.committed) + sequence.remaining + SCRATCH
        blocks = [
            Block(
                layers,
                [DraftKVCache(net.heads, layer.head_size, capacity, like) for layer in layers],
                like[:0].contiguous(),
            )
            for layers in net.blocks
        ]
        thresholds = [self.sure, *[self.sure_later] * (len(blocks) - 2)][: len(blocks) - 1]
        first = min(sequence.cache_slot.image_prefill_length, len(sequence.committed) - 1)
        return S2DState(net, models, _head(net, models), blocks, first, [*thresholds, self.least])

    def begin(self, sequence: Sequence) -> S2DGrowth | None:
        """Read the committed tokens, and return an empty draft tree; None if even the last exit's confidence is low."""
        state: S2DState = sequence.state.drafter
        state.truncate(min(state.n_text, len(sequence.committed) - 1 - state.first))
        unread = sequence.committed[state.first + state.n_text :]
        state.queue_tokens(to_device(unread, state.blocks[0].waiting.device))
        growth = S2DGrowth(sequence)
        if state.is_unsure:
            sequence.report.signals[STOPPED] = 0
            return None
        return growth

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Retain the KV cache entries of accepted nodes that directly follow their parent's entry.

        All other accepted nodes are read again in the next round.
        """
        state: S2DState = sequence.state.drafter
        n = 0
        for node in feedback.result.path[: len(feedback.emitted)]:
            if state.scratch_of.get(node) != n:
                break
            n += 1
        state.truncate(state.n_text + n)


def _net(models: Models) -> S2DNet:
    """Return the S2D draft model that was trained for the target of `models`. It is loaded once.

    Raises:
        ModelError: the draft model cannot be read, or its vocabulary size differs from the target's.
    """
    net, size = load_fitting(S2DNet, models, "S2D weights", TRAIN_ADVICE), models.target.vocab_size
    if len(net.embed.weight) != size:
        raise ModelError(
            f"These S2D weights are for a vocabulary of {len(net.embed.weight)} tokens, but the target's has {size}.",
            TRAIN_ADVICE,
        )
    return net


def _head(net: S2DNet, models: Models) -> SharedHead:
    """Return the S2D draft model's LM head over its draft vocabulary. It is built once and cached.

    Raises:
        ModelError: the net's draft vocabulary has tokens that the target does not have.
    """
    info = models.heads[S2DNet.kind]
    key = ("head of", S2DNet.kind, info.name)
    if key not in models.shared:
        models.shared[key] = SharedHead(net.embed, info.config)
    return cast(SharedHead, models.shared[key])

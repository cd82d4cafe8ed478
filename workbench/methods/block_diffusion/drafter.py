"""Block diffusion: a small drafter fills in a block of masked positions at once, from the target's hidden states.

A block begins with the newest token, which is known; the positions after it are masked. Each layer of the drafter
attends to the whole block, in both directions, and to the text through the target's hidden states. The hidden states of
several target layers are fused. Each layer of the drafter computes keys and values from the result h, which precede the
block's own:

    position    0 … t − 1                       t          t + 1    t + 2    …
    input       fused states h(0) … h(t − 1)    e(x(t))    m        m        …
    predicts                                               x(t+1)   x(t+2)   …

One pass predicts a distribution for every masked position. Further passes *denoise*: the positions with the highest
confidence get their most likely token, and all other positions are predicted again with these tokens as input. The
distribution of a position is that of the last pass in which the position was masked.

The tokens filled in are the most likely ones, never sampled ones. So all distributions of a block depend on the text
alone, and no draw influences the distribution of another token of the draft. The verifier gets exactly the distribution
from which a token was drawn, and a tree may draw several tokens from each distribution. If sampled tokens were filled
in, a token could depend on one that *follows* it. The acceptance of the first token would then carry information about
the second, whose true distribution would differ from the declared one, and the output would not be exact.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.core.errors import ModelError
from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.decoders.draft_verify.captured_states import states_of
from workbench.decoders.draft_verify.parts import DistributionDrafter, RoundFeedback, TreeBuilder
from workbench.engine.request import Request, Sequence
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.kernels.segment import CaptureSelection
from workbench.methods.common.attention_net import EPS, DecoderLayer, DraftKVCache, Norm
from workbench.methods.common.trained_net import TrainedNet, head_of, load_fitting
from workbench.methods.eagle_3.drafter import concat_hidden_states, select_layers
from workbench.methods.medusa.drafter import RANKS, HeadsGrowth
from workbench.methods.tree_builders.chain import Chain
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH

LONGEST = 8
"""Maximum number of positions in a drafted block. DFlash's released drafters have 16 and 10, for targets whose
forward passes cost more."""
TRAIN_ADVICE = "Train a head for this target: workbench train block-diffusion --target …"


@dataclass(frozen=True, slots=True)
class TrainingKV:
    """Keys and values of whole texts in one layer. It replaces a KV cache in training, but stores no new entries.

    Attributes:
        keys_values: keys (index 0) and values (index 1) of the texts' n positions.
    """

    keys_values: Float[Tensor, "two B H n d"]

    def append(self, new: Float[Tensor, "two B H m d"]) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of the text's n positions, followed by those of the block's m positions."""
        keys, values = torch.cat([self.keys_values, new], 3).unbind(0)
        return keys, values


TextKV = DraftKVCache | TrainingKV
"""Type of the keys and values, in one layer, of the text to which a block of drafted positions attends."""


class BlockLayer(DecoderLayer):
    """Decoder layer whose positions attend to their whole block and to the text.

    The keys and values of the text are computed separately, from hidden states of the target.
    """

    def __init__(self, width: int, heads: int, ffn: int, context: int, head_size: int) -> None:
        super().__init__(width, heads, context, head_size=head_size)
        del self.after  # the output of the last layer is normalised once, for the LM head
        self.add_mlp(ffn)

    def project_text_kv(
        self, text: Float[Tensor, "B n D"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "two B H n d"]:
        """Return the keys and values of the text in one layer. The same weights also compute those of the block.

        Args:
            text: fused hidden states of the target.
            positions: positions of the hidden states in the text.
        """
        return torch.stack(self.project_qkv(text, positions)[1:])

    def forward(
        self, x: Float[Tensor, "B m D"], positions: Int[Tensor, "*b m"], text_kv: TextKV, mask: Tensor | None
    ) -> Float[Tensor, "B m D"]:
        """Return the hidden states of a drafted block after one layer of the drafter.

        Args:
            x: hidden states of the block's m positions.
            positions: positions in the text, shared [m] or per sequence [B, m].
            text_kv: keys and values of n text positions.
            mask: bool [B, 1, m, n + m], true at the entries of the text and of the block (columns) that each position
                (row) attends to; None: all.
        """
        queries, *new = self.project_qkv(self.before(x), positions)
        keys, values = text_kv.append(torch.stack(new))
        return self.apply_mlp(
            self.add_attention(nn.functional.scaled_dot_product_attention(queries, keys, values, mask), x)
        )


class BlockNet(TrainedNet):
    """Drafter of block diffusion: layers that fill in blocks, a mask vector, and the fusion of target hidden states.

    Args:
        width: hidden size D of the target and of the drafter.
        heads: number of attention heads.
        ffn: inner width of the gated MLP.
        taps: numbers of the T target layers whose outputs are fused, counted from 1, ascending.
        block: positions of a block, including the one of the known token.
        layers: number of the drafter's layers.
        cond: width of the bottleneck (rank) of the linear fusion from T · D to D; at full rank, the fusion would hold
            most weights of a two-layer drafter.
        context: maximum sequence length, in positions.
        head_size: size of an attention head; 0: the width divided by the number of heads.

    Raises:
        ValueError: a block has no masked position, or more than `LONGEST` positions; or the taps are not distinct and
            ascending.

    Source: Chen et al. 2026, DFlash, arXiv:2602.06036, §3 (from memory) and its code: hidden states of several
    layers pass one linear layer and a norm, and each layer's own weights turn them into keys and values; embedding and
    LM head are the target's. The mask here is a learned vector; the released code embeds a mask token instead.
    """

    kind: ClassVar[str] = "block-diffusion"
    accuracy: ClassVar[tuple[tuple[float, ...], ...]] = ()
    """Accuracy of the r-th most likely token at each block position; empty, because it is not measured for this net."""

    def __init__(
        self,
        width: int,
        heads: int,
        ffn: int,
        taps: abc.Sequence[int] = (1, 2),
        block: int = LONGEST,
        layers: int = 2,
        cond: int = 64,
        context: int = 1024,
        head_size: int = 0,
    ) -> None:
        super().__init__()
        if not 2 <= block <= LONGEST:
            raise ValueError(f"block={block} is out of range: give 2 to {LONGEST} positions")
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
    def decoder_layers(self) -> list[BlockLayer]:
        """Return the decoder layers of the drafter."""
        return [layer for layer in self.layers if isinstance(layer, BlockLayer)]

    def project_text_kv(
        self, hidden_states: Float[Tensor, "B n TD"], positions: Int[Tensor, " n"]
    ) -> list[Float[Tensor, "two B H n d"]]:
        """Return the keys and values of a text for each layer of the drafter.

        Args:
            hidden_states: concatenated hidden states of the T captured layers of the target, at n positions.
            positions: positions of the hidden states in the text.
        """
        text = self.norm_text(self.widen(self.narrow(hidden_states)))
        return [layer.project_text_kv(text, positions) for layer in self.decoder_layers]

    def forward(
        self,
        x: Float[Tensor, "B m D"],
        positions: Int[Tensor, "*b m"],
        text_kv: abc.Sequence[TextKV],
        mask: Bool[Tensor, "B 1 m used"] | None = None,
    ) -> Float[Tensor, "B m D"]:
        """Return the inputs of the LM head at m positions, which belong to one block or to several.

        Args:
            x: embeddings at known positions, the mask vector at all other positions.
            positions: positions in the text, per sequence [B, m] or shared [m].
            text_kv: keys and values of the text for each layer.
            mask: true at the entries of the text and of the blocks that each position attends to; None: all.
        """
        for layer, cache in zip(self.decoder_layers, text_kv, strict=True):
            x = layer(x, positions, cache, mask)
        return self.after(x)

    def block_inputs(self, embeds: Float[Tensor, "*b m D"], is_known: Bool[Tensor, "*b m"]) -> Float[Tensor, "*b m D"]:
        """Return the inputs of a block's m positions: embeddings of the known tokens, elsewhere the mask vector."""
        return torch.where(is_known.unsqueeze(-1), embeds, self.mask.to(embeds.dtype))

    def forward_blocks(
        self,
        hidden_states: Float[Tensor, "B n TD"],
        embeds: Float[Tensor, "B n D"],
        anchors: Int[Tensor, "B A"],
        is_known: Bool[Tensor, "B A m"],
    ) -> Float[Tensor, "B A m D"]:
        """Return the LM head inputs of A blocks per text in one forward pass, for training.

        A block attends to the text before it and to itself, but to no other block.

        Args:
            hidden_states: concatenated hidden states of the T captured layers of the target.
            embeds: embeddings of the text's tokens.
            anchors: first position of each block.
            is_known: mask of the block positions whose input is the text's token. It must be true at the first position
                of every block.
        """
        (b, n), (a, m) = embeds.shape[:2], is_known.shape[1:]
        places = (anchors.unsqueeze(-1) + torch.arange(m, device=anchors.device)).flatten(1)
        tokens = embeds.gather(1, places.clamp_max(n - 1).unsqueeze(-1).expand(-1, -1, self.width))
        text = torch.arange(n, device=anchors.device) < anchors.repeat_interleave(m, 1).unsqueeze(-1)
        block_index = torch.arange(a, device=anchors.device).repeat_interleave(m)
        same_block = (block_index == block_index[:, None]).expand(b, -1, -1)
        caches = [
            TrainingKV(entries)
            for entries in self.project_text_kv(hidden_states, torch.arange(n, device=anchors.device))
        ]
        x = self.block_inputs(tokens, is_known.flatten(1))
        return self(x, places, caches, torch.cat([text, same_block], 2).unsqueeze(1)).unflatten(1, (a, m))

    def prepare_for_drafting(self) -> BlockNet:
        """Prepare the block diffusion net for drafting: disable gradients, copy its weights into a faster layout."""
        super().prepare_for_drafting()
        for layer in self.decoder_layers:
            layer.prepare_for_drafting()
        return self

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild the block diffusion net."""
        layer = self.decoder_layers[0]
        return {
            "width": self.width, "heads": self.heads, "ffn": layer.down.in_features, "taps": list(self.taps),
            "block": self.block, "layers": len(self.layers), "cond": self.narrow.out_features,
            "head_size": layer.head_size,
        }  # fmt: skip


def n_unmasked(step: int, steps: int, masks: int) -> int:
    """Return the total number of masked positions that are filled in by the end of a denoising step.

    The positions are distributed evenly over the steps; the total is rounded up.

    Args:
        step: number of the step, from 1.
        steps: number of steps per block.
        masks: number of masked positions in a block.

    Example:
        >>> [n_unmasked(step, 3, 7) for step in (1, 2, 3)]
        [3, 5, 7]
    """
    return -(-step * masks // steps)


@dataclass(slots=True)
class BlockState:
    """Drafting state of block diffusion for one text. The prediction at a level does not depend on drafted tokens.

    Attributes:
        net: the drafter.
        models: models of the run; the drafter shares the target's embedding and LM head.
        head: the target's LM head over the drafter's vocabulary.
        kv_caches: KV cache of the text, for each layer of the drafter.
        position: position at which the next block begins. All earlier positions have entries in `kv_caches`, or hidden
            states in `new_hidden_states`.
        new_hidden_states: for each round, the target's hidden states of T layers at m positions, [1, m, T · D], from
            which keys and values have not been computed yet.
    """

    net: BlockNet
    models: Models
    head: SharedHead
    kv_caches: list[DraftKVCache]
    position: int
    new_hidden_states: list[Float[Tensor, "1 m TD"]] = field(default_factory=list[Tensor])

    def add_hidden_states(self, hidden_states: Float[Tensor, "m TD"]) -> None:
        """Store the target's concatenated hidden states of the next m positions."""
        self.new_hidden_states.append(hidden_states.unsqueeze(0))
        self.position += len(hidden_states)

    def catch_up(self) -> None:
        """Compute the text's keys and values from `new_hidden_states`, and append them to the KV caches.

        The list `new_hidden_states` is then emptied.
        """
        if self.new_hidden_states:
            streams, self.new_hidden_states = torch.cat(self.new_hidden_states, 1), []
            places = torch.arange(self.position - streams.shape[1], self.position, device=streams.device)
            for entries, new in zip(self.kv_caches, self.net.project_text_kv(streams, places), strict=True):
                entries.append(new)
                entries.commit()

    def draft(self, token: Int[Tensor, " 1"], steps: int) -> Float[Tensor, "m W"]:
        """Draft a block in one or several passes, and return the logits at its m masked positions.

        The logits of a position are those of the last pass in which the position was masked.

        Args:
            token: newest token of the text.
            steps: number of passes. Each pass but the last fills in the positions with the highest confidence.
        """
        net, target, masks = self.net, self.models.target, self.net.block - 1
        start = target.clock.mark()
        self.catch_up()
        places = torch.arange(self.position, self.position + net.block, device=token.device)
        is_known = torch.arange(net.block, device=token.device) == 0
        tokens, logits = token.expand(net.block), None
        for step in range(1, steps + 1):
            x = net.block_inputs(target.embed(tokens), is_known)
            states = net(x.unsqueeze(0), places, self.kv_caches)[0, 1:]
            for entries in self.kv_caches:
                entries.drop_speculative()
            new_logits = self.head(states).float()
            logits = new_logits if logits is None else torch.where(is_known[1:, None], logits, new_logits)
            if step < steps:
                top_logprobs, best = self.head.top_tokens(logits, 1)
                more = n_unmasked(step, steps, masks) - n_unmasked(step - 1, steps, masks)
                most_confident = top_logprobs[:, 0].masked_fill(is_known[1:], -torch.inf).topk(more).indices
                is_known = is_known.index_fill(0, most_confident + 1, True)
                tokens = torch.cat([token, best[:, 0]])
            end = target.clock.mark()
            self.models.meter.add(start, end)
            start = end
        assert logits is not None
        return logits

    def level_logits(self, logits: Float[Tensor, "1 m W"], level: int) -> Float[Tensor, "1 V"]:
        """Return the logits at one masked position of a block, over the target's V tokens.

        Args:
            logits: logits at all masked positions of the block, over the W tokens of the drafter's vocabulary.
            level: index of the masked position, from 0.
        """
        return self.head.scatter_logits(logits[:, level])


@dataclass(frozen=True)
class BlockDiffusion(DistributionDrafter):
    """Draft a block of the trained length in one or a few passes, and use the planned number of its positions.

    A tree is built as in Medusa: all nodes of a level have the same distribution for their children. In a prompt with
    images the drafter reads only the text after the images.

    Attributes:
        unmaskings: number of forward passes per block, at most one per masked position.

    Source: Chen et al. 2026, DFlash, arXiv:2602.06036, §3 (from memory): one pass. Several passes, highest confidence
    first: Chang et al. 2022, MaskGIT, arXiv:2202.04200, §3.2. Blocks after a text: Arriola et al. 2025, Block
    diffusion, arXiv:2503.09573, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (BlockNet.kind, "trees")
    reads_target: ClassVar[bool] = True
    default_tree_builder: ClassVar[TreeBuilder | None] = Chain()
    unmaskings: int = param(
        1,
        ge=1,
        le=LONGEST - 1,
        doc=("number of drafter passes per block; each pass fills in the most confident positions"),
    )

    def captured_layers(self, models: Models) -> set[int]:
        """Return the indices of the target layers whose outputs the drafter was trained to read."""
        return {layer - 1 for layer in _net(models).taps} if BlockNet.kind in models.heads else set()

    def captures(self, models: Models) -> CaptureSelection:
        """Return which hidden states of the target prefill captures: those that the drafter reads."""
        return select_layers(_net(models).taps)

    def init_state(self, sequence: Sequence, models: Models) -> BlockState:
        """Return a drafting state with the KV cache entries of all committed positions but the last.

        Positions of images are left out.
        """
        net, target, slot = _net(models), models.target, sequence.cache_slot
        end = len(sequence.committed) - 1
        first = min(slot.image_prefill_length, end)
        like = torch.empty(0, dtype=target.dtype, device=target.device)
        capacity = len(sequence.committed) + sequence.remaining + SCRATCH
        entries = [DraftKVCache(net.heads, layer.head_size, capacity, like) for layer in net.decoder_layers]
        state = BlockState(net, models, head_of(BlockNet, models), entries, first)
        if first < end:
            with torch.inference_mode():
                state.add_hidden_states(
                    concat_hidden_states(
                        states_of(sequence, models, select_layers(net.taps), first).layer_states, net.taps
                    )
                )
                state.catch_up()
        return state

    def max_levels(self, sequence: Sequence) -> int:
        """Return the maximum number of levels of a draft: one per masked position of a block."""
        return sequence.state.drafter.net.block - 1

    def begin(self, sequence: Sequence) -> HeadsGrowth:
        """Predict a block of masked positions after the newest token, and start a draft tree."""
        state: BlockState = sequence.state.drafter
        token = to_device(sequence.committed[-1:], sequence.models.target.device)
        logits = state.draft(token, min(self.unmaskings, state.net.block - 1))
        return HeadsGrowth(sequence, logits, *state.head.top_tokens(logits, RANKS))

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Store the target's hidden states of the root and of the accepted nodes, for the next draft."""
        state: BlockState = sequence.state.drafter
        accepted = feedback.path_indices
        state.add_hidden_states(concat_hidden_states(feedback.layer_states, state.net.taps)[accepted])

    def explain(
        self,
        models: Models,
        request: Request,
        tokens: abc.Sequence[int],
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Return None, because a drafter that reads no images has no attribution maps."""


def _net(models: Models) -> BlockNet:
    """Return the block diffusion drafter that was trained for the target of `models`. It is loaded once.

    Raises:
        ModelError: the head cannot be read, or reads layers that the target does not have.
    """
    net, layers = load_fitting(BlockNet, models, "block diffusion weights", TRAIN_ADVICE), models.target.n_layers
    if net.taps[-1] > layers:
        message = (
            f"These block diffusion weights read the target's layers {', '.join(map(str, net.taps))}, but the target "
            f"has {layers} layers."
        )
        raise ModelError(message, TRAIN_ADVICE)
    return net

"""Clover: one small recurrent step drafts token after token, from a state of the text and of the tokens drafted so far.

The target's last hidden state f(s) predicts the next token; it was not trained to predict later ones. An augmenting
block, a decoder layer over the whole text, turns f into a speculation state s₀. Then a gate adds each drafted token to
the state, and this step is repeated. e is a token's embedding, A₁ and A₂ are the gates:

    text        u(s) = A₁(f(s), e(s + 1))  for s ≤ t;   s₀ = norm( block(u(≤ t)) )
    level 1     s₀                            →  distribution of x(t + 2)
    level k     A₂(s, e(t + k)), e(t + k)     →  distribution of x(t + 1 + k)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.core.transfer import to_device
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine.request import Sequence
from workbench.kernels.device_clock import Mark
from workbench.methods.common.attention_net import DecoderLayer, DraftKVCache, Norm
from workbench.methods.hydra.drafter import HydraDistributions
from workbench.methods.hydra_plus_plus.drafter import HydraPlusPlus, PrefixHeads, PrefixState


class AttentionDecoder(nn.Module):
    """Gate that adds a token to a state s: A(s, e) = s + cos( q(norm s), k(e) ) · v(e), with one cosine per head.

    e is the token's projected embedding; q, k and v are linear layers. The formula is attention over a single token,
    with the cosine in place of the attention weight.

    Args:
        width: width D of a state.
        cond: width C of a token's projected embedding.
        heads: number of heads.

    Source: Xiao et al. 2024, Clover-2, arXiv:2408.00264, §3 (formula from the released code).
    """

    def __init__(self, width: int, cond: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = Norm(width, eps=1e-6)
        self.query, self.key, self.value = nn.Linear(width, cond), nn.Linear(cond, cond), nn.Linear(cond, width)

    def forward(self, states: Float[Tensor, "*b D"], token_embeds: Float[Tensor, "*b C"]) -> Float[Tensor, "*b D"]:
        """Return the states A(s, e) after the gate has added one token to each state s.

        Args:
            states: states s before the tokens.
            token_embeds: projected embeddings e of the tokens.
        """
        query, key, value = (
            x.unflatten(-1, (self.heads, -1))
            for x in (self.query(self.norm(states)), self.key(token_embeds), self.value(token_embeds))
        )
        gate = nn.functional.cosine_similarity(query, key, dim=-1)
        return states + (gate.unsqueeze(-1) * value).flatten(-2)


class AugmentingBlock(nn.Module):
    """Augmenting block of Clover: decoder layers over the text's states, projected to width C.

    The output of the layers is projected back to width D and added to the states.

    Args:
        width: width D of the states.
        cond: width C of the layers.
        heads: number of attention heads.
        ffn: width of the MLPs.
        layers: number of layers.
        context: maximum sequence length, in positions.
    """

    def __init__(self, width: int, cond: int, heads: int, ffn: int, layers: int, context: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(Norm(width, eps=1e-6), nn.Linear(width, cond, bias=False))
        self.layers = nn.ModuleList(DecoderLayer(cond, heads, context) for _ in range(layers))
        for layer in self.decoders:
            layer.add_mlp(ffn)
        self.leave = nn.Linear(cond, width, bias=False)

    @property
    def decoders(self) -> list[DecoderLayer]:
        """Return the decoder layers of the augmenting block."""
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]

    def forward(
        self, states: Float[Tensor, "B n D"], positions: Int[Tensor, " n"], kv_caches: list[DraftKVCache] | None = None
    ) -> Float[Tensor, "B n D"]:
        """Return the augmenting block's output states at consecutive text positions.

        Args:
            states: states of a text, at the positions after those in `kv_caches`.
            positions: positions of the inputs in the text.
            kv_caches: KV cache of each layer; None: there are no earlier positions.
        """
        x = self.enter(states)
        for i, layer in enumerate(self.decoders):
            x = layer.apply_mlp(layer.attend(x, positions, None, None if kv_caches is None else kv_caches[i]))
        return states + self.leave(x)


class CloverHeads(PrefixHeads):
    """Trained net of Clover: an augmenting block, gates, and a step that is repeated for every draft level.

    The logits of level 1 are W norm(r + O P r), where W is the target's LM head and r the state. From level 2 on they
    are W norm(r + O' (P' r + E e)), where e is the projected embedding of the token added last. O, P, O', P' and E are
    learned matrices; their products O P, O' P' and O' E have rank C.

    Args:
        width: the target's hidden size D.
        blocks: number K of levels that the net is trained to draft. The number of parameters does not depend on K.
        cond: rank C of the products, and width of projected embeddings.
        prefix_heads: heads of the gates and of the augmenting block.
        ffn: width of the block's MLPs.
        augmenting: number of layers of the block: 1 in Clover, 2 in Clover-2.
        mixes: whether the newest token is added to the states before the augmenting block, as in Clover-2. Otherwise it
            is added after the block, by the gate that also adds all drafted tokens.
        context: maximum sequence length, in positions.

    Source: Xiao et al. 2024, Clover, arXiv:2405.00263; Clover-2, arXiv:2408.00264.
    """

    kind: ClassVar[str] = "clover"

    def __init__(
        self, width: int, blocks: int = 5, cond: int = 64, prefix_heads: int = 4, ffn: int = 192, augmenting: int = 1,
        mixes: bool = True, context: int = 1024,
    ) -> None:  # fmt: skip
        super().__init__(width, blocks, cond)
        self.ffn, self.mixes = ffn, mixes
        self.first_gate = AttentionDecoder(width, cond, prefix_heads) if mixes else None
        self.gate = AttentionDecoder(width, cond, prefix_heads)
        self.block = AugmentingBlock(width, cond, prefix_heads, ffn, augmenting, context)
        self.begun, self.after = Norm(width, eps=1e-6), Norm(width, eps=1e-6)
        self.first = nn.Linear(width, cond, bias=False) if mixes else None
        self.first_out = nn.Linear(cond, width, bias=False) if mixes else None
        self.later, self.later_told = nn.Linear(width, cond, bias=False), nn.Linear(cond, cond, bias=False)
        self.later_out = nn.Linear(cond, width, bias=False)
        for layer in (self.block.leave, self.first_out, self.later_out):
            if layer is not None:
                nn.init.zeros_(layer.weight)

    def head_inputs(
        self, features: Float[Tensor, "B n D"], token_embeds: Float[Tensor, "B n C"] | None = None,
        positions: Int[Tensor, " n"] | None = None, kv_caches: list[DraftKVCache] | None = None,
    ) -> Float[Tensor, "B n D"]:  # fmt: skip
        """Return Clover's speculation state, from which drafting starts, after each of n text positions.

        Args:
            features: the target's last hidden states.
            token_embeds: projected embedding of the token after each position; not used unless the net has `mixes`.
            positions: positions in the text; by default 0 … n − 1.
            kv_caches: KV caches of earlier positions, one per layer of the block; None: there are no such positions.
        """
        if positions is None:
            positions = torch.arange(features.shape[1], device=features.device)
        if self.first_gate is not None:
            assert token_embeds is not None
            features = self.first_gate(features, token_embeds)
        return self.begun(self.block(features, positions, kv_caches))

    def begin(
        self, state: Float[Tensor, "*b D"], token_embeds: Float[Tensor, "*b C"]
    ) -> tuple[Float[Tensor, "*b D"], Float[Tensor, "*b D"]]:
        """Return the recurrent state and the LM head input of the first draft level.

        Args:
            state: speculation state of the text.
            token_embeds: projected embedding of the newest token.
        """
        if self.first is None or self.first_out is None:
            return self.step(state, token_embeds)
        return state, self.after(state + self.first_out(self.first(state)))

    def step(
        self, state: Float[Tensor, "*b D"], token_embeds: Float[Tensor, "*b C"]
    ) -> tuple[Float[Tensor, "*b D"], Float[Tensor, "*b D"]]:
        """Return the recurrent state and the LM head input of the next draft level, after one more drafted token.

        Args:
            state: state of the level at which the token was drafted.
            token_embeds: projected embedding of the drafted token.
        """
        state = self.gate(state, token_embeds)
        return state, self.after(state + self.later_out(self.later(state) + self.later_told(token_embeds)))

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild Clover's net."""
        block = {"prefix_heads": self.gate.heads, "ffn": self.ffn, "augmenting": len(self.block.layers)}
        return super().sizes | block | {"mixes": self.mixes}

    @property
    def text_layers(self) -> list[DecoderLayer]:
        return self.block.decoders

    def prepare_for_drafting(self) -> CloverHeads:
        """Prepare Clover's net for drafting: disable gradients, and copy the augmenting block into a faster layout."""
        super().prepare_for_drafting()
        for layer in self.block.decoders:
            layer.prepare_for_drafting()
        return self


@dataclass(slots=True)
class CloverState(PrefixState):
    """Drafting state of Clover for one text, with the KV caches of the augmenting block's layers."""

    def head_inputs(
        self, sequence: Sequence, features: Float[Tensor, "1 n D"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "1 n D"]:
        assert isinstance(self.net, CloverHeads)
        begin = self.kv_caches[0].n_used
        ids = to_device(sequence.committed[begin + 1 : begin + 1 + features.shape[1]], features.device)
        return self.net.head_inputs(
            features, self.net.project(sequence.models.target.embed(ids)).unsqueeze(0), positions, self.kv_caches
        )


class CloverGrowth(PartialTree):
    """Draft tree in which each node has a recurrent state: its parent's state, to which its token was added.

    Args:
        sequence: the sequence.
        state: the text's speculation state, from `CloverHeads.head_inputs`.
    """

    def __init__(self, sequence: Sequence, state: Float[Tensor, " D"]) -> None:
        self.state: CloverState = sequence.state.drafter
        assert isinstance(self.state.net, CloverHeads)
        self.net = self.state.net
        super().__init__(sequence, self.net.kind, state.device)
        self.rank_probs = self.net.accuracy
        start, newest = sequence.models.target.clock.mark(), to_device(sequence.committed[-1:], state.device)
        self.root = self._distributions(*self.net.begin(state.unsqueeze(0), self._projected(newest)), start)

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> HydraDistributions:
        start = self.sequence.models.target.clock.mark()
        parent_states = self._states.expand(tokens.shape[0], -1) if below is None else self._states[below]
        return self._distributions(*self.net.step(parent_states, self._projected(tokens)), start)

    def _projected(self, tokens: Int[Tensor, " w"]) -> Float[Tensor, "w C"]:
        return self.net.project(self.sequence.models.target.embed(tokens))

    def _distributions(
        self, states: Float[Tensor, "w D"], guesses: Float[Tensor, "w D"], start: Mark
    ) -> HydraDistributions:
        """Return the next-token distributions after w nodes of one tree level, and record the drafting time.

        Args:
            states: recurrent states of the nodes, stored for their children.
            guesses: LM head inputs of the nodes.
            start: time at which the computation of the level began; the time since then is recorded.
        """
        self.sequence.models.meter.add(start, self.sequence.models.target.clock.mark())
        self._states = states  # states of the nodes expanded last
        return HydraDistributions(self.state, guesses, self.sequence)


@dataclass(frozen=True)
class Clover(HydraPlusPlus):
    """Draft from a state of the whole text, with one recurrent step per level.

    Source: Xiao et al. 2024, Clover, arXiv:2405.00263, §3; Clover-2, arXiv:2408.00264, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (CloverHeads.kind, "trees")
    heads: ClassVar[type[PrefixHeads]] = CloverHeads
    state: ClassVar[type[PrefixState]] = CloverState
    display_name: ClassVar[str] = "Clover"

    def growth(self, sequence: Sequence, hidden: Float[Tensor, " D"]) -> CloverGrowth:
        return CloverGrowth(sequence, hidden)

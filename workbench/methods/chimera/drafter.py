"""Chimera: approximate the target's hidden state at new tokens from three tokens and its earlier hidden states.

After a text the target's hidden states f(1) … f(t) exist, but the newest token x(t + 1) has none yet. A trigram encoder
reads each new token and the two before it. Its output enters one decoder layer, the fusion layer, which attends to all
hidden states. The layer's output g replaces the missing hidden state, for the head that predicts the next token and for
later tokens:

    trigram     c(s) = E( e(s − 2), e(s − 1), e(s) )
    fusion      g(t + k) = layer( c(t + k) ) over  f(1), …, f(t), g(t + 1), …, g(t + k − 1)  and itself
    head k      f(t), g(t + k)   →  distribution of x(t + 1 + k)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.core.transfer import to_device
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine.request import Sequence
from workbench.methods.common.attention_net import DecoderLayer, DraftKVCache, Norm
from workbench.methods.hydra.drafter import HydraDistributions
from workbench.methods.hydra_plus_plus.drafter import HydraPlusPlus, PrefixHeads, PrefixState

TOKENS = 3
"""Number of consecutive tokens that Chimera's trigram encoder reads."""


class FusionLayer(DecoderLayer):
    """Decoder layer in which later positions attend to keys and values computed from the layer's earlier outputs."""

    def __init__(self, width: int, heads: int, ffn: int, context: int) -> None:
        super().__init__(width, heads, context)
        self.add_mlp(ffn)

    def forward(
        self,
        x: Float[Tensor, "B n C"],
        positions: Int[Tensor, " n"],
        mask: Bool[Tensor, "n used"],
        kv_cache: DraftKVCache,
    ) -> Float[Tensor, "B n C"]:
        """Return the fusion layer's outputs, and append keys and values that are computed from them to the KV cache.

        Args:
            x: inputs of the layer.
            positions: positions of the inputs in the text.
            mask: true at the KV cache entries (columns) that each input (row) attends to.
            kv_cache: KV cache of earlier positions.
        """
        state = self.after(self.apply_mlp(self.attend(x, positions, mask, kv_cache)))
        kv_cache.replace(self.project_kv(state, positions))
        return state

    def project_kv(self, states: Float[Tensor, "B n C"], positions: Int[Tensor, " n"]) -> Float[Tensor, "two B H n d"]:
        """Return the keys (index 0) and values (index 1) of hidden states of width C at the given positions."""
        return torch.stack(self.project_qkv(self.before(states), positions)[1:])


class ChimeraHeads(PrefixHeads):
    """Trigram encoder, fusion layer and K heads, all of width C. The LM head is the target's.

    Head k computes logits W (f(t) + H(k) [u(t) ; g(t + k)]), where W is the LM head, f(t) the target's last hidden
    state, u(t) its projection to width C, and g(t + k) the fusion layer's output. H(k) is initialised as 0, so each
    head starts as the LM head alone.

    Args:
        width: the target's hidden size D.
        blocks: number K of heads.
        cond: width C.
        prefix_heads: attention heads of the fusion layer.
        ffn: width of the fusion layer's MLP.
        context: maximum sequence length, in positions.

    Source: Zeng et al. 2024, Chimera, arXiv:2402.15758, §3.
    """

    kind: ClassVar[str] = "chimera"
    no_random_init: ClassVar[tuple[str, ...]] = ("says.",)

    def __init__(
        self, width: int, blocks: int = 4, cond: int = 64, prefix_heads: int = 4, ffn: int = 192, context: int = 1024
    ) -> None:
        super().__init__(width, blocks, cond)
        self.enter = nn.Sequential(Norm(width, eps=1e-6), nn.Linear(width, cond, bias=False))
        self.mixes, self.speaks = nn.Linear(TOKENS * cond, TOKENS * cond), nn.Linear(TOKENS * cond, cond)
        self.layer = FusionLayer(cond, prefix_heads, ffn, context)
        self.says = nn.ModuleList(nn.Linear(2 * cond, width, bias=False) for _ in range(blocks))
        for head in self.says:
            nn.init.zeros_(head.get_parameter("weight"))

    def encode_trigram(self, token_embeds: Float[Tensor, "*b TC"]) -> Float[Tensor, "*b C"]:
        """Return the trigram encoding c of three consecutive tokens, from their projections, the newest last."""
        return self.speaks(token_embeds + nn.functional.silu(self.mixes(token_embeds)))

    def forward(
        self, features: Float[Tensor, "*b D"], states: Float[Tensor, "*b C"], block: int
    ) -> Float[Tensor, "*b D"]:
        """Return the LM head's input for one level of the draft.

        Args:
            features: the target's newest hidden state f(t).
            states: outputs g of the fusion layer at the tokens whose next token is predicted.
            block: index of the level, from 0.
        """
        return features + self.says[block](torch.cat([self.enter(features), states], -1))

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild Chimera's net."""
        return super().sizes | {"prefix_heads": self.layer.heads, "ffn": self.layer.down.in_features}

    @property
    def text_layers(self) -> list[DecoderLayer]:
        return [self.layer]

    def prepare_for_drafting(self) -> ChimeraHeads:
        """Prepare Chimera's net for drafting: disable gradients, and copy the fusion layer into a faster layout."""
        super().prepare_for_drafting()
        self.layer.prepare_for_drafting()
        return self


@dataclass(slots=True)
class ChimeraState(PrefixState):
    """Drafting state of Chimera for one text. The target's hidden states determine the fusion layer's KV cache."""

    def head_inputs(
        self, sequence: Sequence, features: Float[Tensor, "1 n D"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "1 n D"]:
        assert isinstance(self.net, ChimeraHeads)
        self.kv_caches[0].append(self.net.layer.project_kv(self.net.enter(features), positions))
        return features


class ChimeraGrowth(PartialTree):
    """Draft tree in which each node's hidden state is approximated from the last three tokens of its path.

    Args:
        sequence: the sequence.
        feature: the target's newest hidden state f(t).
    """

    def __init__(self, sequence: Sequence, feature: Float[Tensor, " D"]) -> None:
        self.state: ChimeraState = sequence.state.drafter
        assert isinstance(self.state.net, ChimeraHeads)
        self.net, self._feature = self.state.net, feature.unsqueeze(0)
        super().__init__(sequence, self.net.kind, feature.device)
        self.rank_probs = self.net.accuracy
        newest = sequence.committed[-TOKENS:]
        projected = self._projected(to_device([newest[0]] * (TOKENS - len(newest)) + newest, feature.device))
        self.root = self._distributions(projected.flatten().unsqueeze(0))

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> HydraDistributions:
        tails = self._tails.expand(tokens.shape[0], -1) if below is None else self._tails[below]
        return self._distributions(torch.cat([tails[:, self.net.cond :], self._projected(tokens)], 1))

    def close(self, nodes: Int[Tensor, " kept"] | None = None) -> None:
        """Drop the KV cache entries of approximated hidden states; verification computes the target's own ones."""
        self.state.kv_caches[0].drop_speculative()

    def _projected(self, tokens: Int[Tensor, " w"]) -> Float[Tensor, "w C"]:
        return self.net.project(self.sequence.models.target.embed(tokens))

    def _distributions(self, tails: Float[Tensor, "w TC"]) -> HydraDistributions:
        """Return the next-token distributions after the w nodes of one level of the draft tree. At the root, w is 1.

        Each node attends to the text, to the root and to the nodes of its own path.

        Args:
            tails: concatenated projected embeddings of the last three tokens of each node's path.
        """
        clock, entries = self.sequence.models.target.clock, self.state.kv_caches[0]
        start, self._tails = clock.mark(), tails  # tails of the nodes expanded last
        w, level = len(tails), len(self.tokens)
        mask = torch.ones(w, entries.n_stable + 1 + self.attention_mask.shape[1], dtype=torch.bool, device=self.device)
        if level:
            mask[:, entries.n_stable + 1 :] = self.attention_mask
        places = torch.full((w,), entries.n_stable + level, device=self.device)
        states = self.net.layer(self.net.encode_trigram(tails).unsqueeze(0), places, mask, entries)[0]
        head_inputs = self.net(self._feature.expand(w, -1), states, level)
        self.sequence.models.meter.add(start, clock.mark())
        return HydraDistributions(self.state, head_inputs, self.sequence)


@dataclass(frozen=True)
class Chimera(HydraPlusPlus):
    """Draft with approximated hidden states, each computed from three tokens and all of the target's hidden states.

    Source: Zeng et al. 2024, Chimera, arXiv:2402.15758, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (ChimeraHeads.kind, "trees")
    heads: ClassVar[type[PrefixHeads]] = ChimeraHeads
    state: ClassVar[type[PrefixState]] = ChimeraState
    display_name: ClassVar[str] = "Chimera"

    def growth(self, sequence: Sequence, hidden: Float[Tensor, " D"]) -> ChimeraGrowth:
        return ChimeraGrowth(sequence, hidden)

"""A feature drafter's layer on the target's own compiled passes: drafting then takes about as long as reading weights.

Such a layer, its last norm and the rows of the LM head that it keeps are a decoder of the Llama kind with one layer,
whose input is not an embedding but a pair (see `feature_net`). So `Fused` runs it: a dozen small operations a level
become one, and bfloat16 is read at the pace of memory. Drafts may differ by rounding from those of the net's own code,
which decides nothing but how many of them are right; the target judges them all the same.
"""

from __future__ import annotations

import logging
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from workbench.engine.cache import TreeCache, Window
from workbench.engine.fused import Fused, compiled, together
from workbench.engine.models import Models
from workbench.engine.trimmed import SharedHead
from workbench.methods.drafters.attention_net import ROPE_BASE, DecoderLayer, Entries, Norm
from workbench.methods.drafters.feature_net import NORMS, FeatureNet

log = logging.getLogger(__name__)

OWN = ("forward", "reads", "left", "said", "pairs", "taken")
"""What a net must not do in a way of its own."""


class FeatureTwin:
    """The compiled layer and head of a net. Make it with `FeatureTwin.of`."""

    def __init__(self, net: FeatureNet, embed: nn.Embedding, fused: Fused) -> None:
        joining: Any = compiled("joining")
        self._fused, self._join, self._embed, self._eps = fused, joining.join, embed, np.float32(net.eps)
        self._fuse = net.fuse.weight
        norms = [norm.weight.float() for norm in (net.norm_embed, net.norm_feature) if isinstance(norm, Norm)]
        self._norms = (torch.stack(norms) if norms else torch.empty(2, 0)).numpy()
        self.pairs(torch.zeros(1, dtype=torch.long), embed.weight[:1])  # which compiles it where it never was

    @classmethod
    def of(cls, net: FeatureNet, head: SharedHead, embed: nn.Module, capacity: int) -> FeatureTwin | None:
        """The twin of a net that runs as the base class does, or None where there is none.

        Args:
            net: settled.
            head: the target's, over the tokens that the net keeps.
            embed: the target's embedding.
            capacity: longest sequence with its scratch, in tokens.
        """
        weight, kind = net.qkv.weight, type(net)
        as_ever = all(getattr(kind, name) is getattr(FeatureNet, name) for name in OWN)
        as_ever &= all(getattr(kind, name) is getattr(DecoderLayer, name) for name in ("mix", "turned", "mixed", "fed"))
        biases = {"qkv.bias", "fuse.bias"} & {name for name, _ in net.named_parameters()}
        plain = net.norms in (NORMS, NORMS[2:]) and net.guesses_features and not biases
        rows = head.rows
        if not as_ever or not plain or rows is None or weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
            return None
        table = embed.get_parameter("weight")
        if type(embed) is not nn.Embedding or table.dtype != weight.dtype or not table.is_contiguous():
            return None
        with torch.inference_mode(False), torch.no_grad():
            fused = Fused.of(_as_model(net, rows, capacity), capacity)
            return None if fused is None else cls(net, embed, fused)

    def takes(self, n: int) -> bool:
        """Whether a pass over so many inputs is one for compiled passes."""
        return self._fused.takes((1, n))

    def pairs(self, tokens: Int[Tensor, " n"], features: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
        """As `FeatureNet.pairs`, of token ids."""
        table = self._embed.weight
        out = torch.empty(len(tokens), len(self._fuse), dtype=table.dtype)
        given = (
            _bits(table), tokens.numpy(), _bits(features), self._norms, self._eps, _bits(self._fuse), _bits(out),
            np.zeros(2, np.int64),
        )  # fmt: skip
        together(lambda: self._join(*given))
        return out

    def stream(
        self,
        x: Float[Tensor, "1 n D"],
        places: Int[Tensor, " n"],
        sees: Bool[Tensor, "n s_plus_n"] | None,
        entries: Entries,
    ) -> Float[Tensor, "n D"]:
        """What the layer makes of inputs, for `read`.

        Args:
            x: pairs.
            places: their positions in the text.
            sees: which of the newest entries each of them sees, all others are seen; None: all before it, and itself.
            entries: as of `FeatureNet.forward`.
        """
        n = x.shape[1]
        room, start = entries.reserve(n)
        used = start + n
        shut = torch.zeros(n, used)
        if sees is not None:
            shut[:, used - sees.shape[1] :].masked_fill_(sees.logical_not(), -torch.inf)
        elif n > 1:
            shut[:, start:] = torch.full((n, n), -torch.inf).triu_(1)
        cache = _Room(room, Window(slice(0, 1), start, None, used))
        return self._fused(x[0], shut[None, None], places[None], cache, (0,))[0]

    def read(self, stream: Float[Tensor, "n D"]) -> tuple[Float[Tensor, "n D"], Float[Tensor, "n K"]]:
        """The states, which are guesses at features, and logits behind them."""
        logits, states = self._fused.read(stream)
        return states, logits


def _bits(numbers: Tensor) -> np.ndarray:
    """Of bfloat16 the bits, as compiled functions read and write them."""
    return numbers.detach().contiguous().view(torch.int16).numpy()


class _Room(TreeCache):
    """A drafter's entries as a pass finds its cache: the buffer and the window, and nothing else of one."""

    def __init__(self, room: Float[Tensor, "two 1 H C d"], window: Window) -> None:
        self._room, self.window = room, window

    def buffer(self, heads: int, head_size: int, like: Tensor) -> Float[Tensor, "1 two 1 H C d"]:
        """Of the one layer."""
        return self._room.unsqueeze(0)


def twin_of(net: FeatureNet, head: SharedHead, models: Models) -> FeatureTwin | None:
    """The twin of a net for its target, made once; None where there is none, or where the target has none either."""
    key, target = ("twin of", net.kind, models.heads[net.kind].name), models.target
    if key not in models.shared:
        models.shared[key] = None
        if target.lean is not None and target.lean.fused is not None:
            try:
                models.shared[key] = FeatureTwin.of(net, head, target.embed, target.cache.capacity)
            except Exception as error:  # numba raises many kinds, and the net's own code is there
                log.warning("%s is not compiled: %s: %s", net.kind, type(error).__name__, error)
    return cast(FeatureTwin | None, models.shared[key])


def _as_model(net: FeatureNet, rows: Float[Tensor, "K D"], capacity: int) -> LlamaForCausalLM:
    """A decoder of one layer that shares the net's weights, with these rows as its LM head."""
    inner, ffn = net.heads * net.head_size, net.down.in_features
    make: Any = LlamaConfig  # takes more than its stubs know
    config = make(
        vocab_size=4, hidden_size=net.width, num_hidden_layers=1, num_attention_heads=net.heads,
        num_key_value_heads=net.heads, head_dim=net.head_size, intermediate_size=ffn, rms_norm_eps=net.eps,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE} | net.rope, tie_word_embeddings=False,
        max_position_embeddings=capacity,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    rates = model.model.rotary_emb.inv_freq.clone()
    model = model.to(net.qkv.weight.dtype).requires_grad_(False).eval()
    model.model.rotary_emb.inv_freq = rates  # rounded to bfloat16 they turn by 0.4 too much at place 1,000
    layer = model.model.layers[0]
    q, k, v = torch.split(net.qkv.weight.detach(), inner)
    gate, up = torch.split(net.gate_up.weight.detach(), ffn)
    attention, mlp = layer.self_attn, layer.mlp
    same: list[tuple[Any, Tensor]] = [
        (attention.q_proj, q), (attention.k_proj, k), (attention.v_proj, v), (attention.o_proj, net.out.weight),
        (mlp.gate_proj, gate), (mlp.up_proj, up), (mlp.down_proj, net.down.weight),
        (layer.input_layernorm, net.before.weight), (layer.post_attention_layernorm, net.between.weight),
        (model.model.norm, net.after.weight),
    ]  # fmt: skip
    for module, weight in same:
        module.weight.data = weight.detach()
    model.lm_head = nn.Linear(net.width, len(rows), bias=False, device="meta")
    model.lm_head.weight = nn.Parameter(rows.detach(), requires_grad=False)
    return model

"""Compiled version of a feature drafter's layer, which takes about as long as reading the layer's weights.

The layer, its last norm and the LM head rows of the draft vocabulary form a Llama decoder with one layer, whose input
is not an embedding but a feature fused with an embedding (see `feature_net`). In EAGLE-3 the embedding is not fused
into the residual stream; its projection is added to queries, keys and values, as a bias per token. `FusedDecoder` can
therefore run the layer: a dozen small operations per level become one, and bfloat16 weights are read at memory
bandwidth. Because of rounding, a draft may differ from the draft of the uncompiled net. This changes only the number
of accepted tokens, because the target verifies every draft.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from workbench.core.transfer import from_numpy
from workbench.kernels.compilation import load_kernels, run_in_parallel
from workbench.kernels.distributions import TOP, SoftmaxSummary, prepare_softmax_summary
from workbench.kernels.fused import FusedDecoder
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.methods.common.attention_net import ROPE_BASE, DecoderLayer, DraftKVCache, Norm
from workbench.methods.common.feature_net import NORMS, QKV_ONLY, FeatureNet
from workbench.models.loading import Models
from workbench.models.runner import Runner

log = logging.getLogger(__name__)
_NOTHING = np.empty(0, np.float32)


class LevelOutput(NamedTuple):
    """Outputs of the drafter's layer and of the LM head for k pairs of a token and a feature.

    Attributes:
        states: output states of the layer of width D, [k, D].
        logits: logits over the K tokens of the draft vocabulary, bfloat16 [k, K].
        summary: for each pair, the most likely tokens, their probabilities and the entropy.
    """

    states: Tensor
    logits: Tensor
    summary: SoftmaxSummary


INHERITED_METHODS = (
    "forward",
    "attention_inputs",
    "output_state",
    "lm_head_input",
    "make_pairs",
    "combine_hidden_states",
)
"""Names of the methods that a net must inherit unchanged from the class that sets `input_fusion`. A net that
overrides one of them is not compiled."""


class CompiledFeatureNet:
    """Compiled layer and LM head of a feature drafter's net. Create it with `CompiledFeatureNet.of`."""

    def __init__(self, net: FeatureNet, embed: nn.Embedding, fused: FusedDecoder) -> None:
        levels: Any = load_kernels("draft_levels")
        self._fused, self._run, self._list, self._eps = fused, levels.level, levels.list_seen, np.float32(net.eps)
        self._width, self._is_state = net.width, not net.predicts_features
        embed_weight = net.qkv.weight[:, : net.width].contiguous() if net.input_fusion == QKV_ONLY else None
        self._kept = (embed.weight, net.fuse.weight, embed_weight)  # keeps the memory of these weights alive
        self._table, self._fuse = _bits(embed.weight), _bits(net.fuse.weight)
        self._beside = None if embed_weight is None else _bits(embed_weight)
        norms = (getattr(net, name, None) for name in NORMS[:2])
        first, second = (n.weight.detach().float().numpy() if isinstance(n, Norm) else _NOTHING for n in norms)
        self._norms = first, second
        zero, entries = torch.zeros(1, dtype=torch.long), DraftKVCache(net.heads, net.head_size, 1, embed.weight)
        # this call compiles the functions if they are not compiled yet
        self.run_level(zero, embed.weight[:1], zero, None, entries)

    @classmethod
    def of(cls, net: FeatureNet, head: SharedHead, embed: nn.Module, capacity: int) -> CompiledFeatureNet | None:
        """Return the compiled version of a feature drafter's net; None if net, dtype or device is not supported.

        Args:
            net: net prepared for drafting (`prepare_for_drafting`).
            head: LM head over the draft vocabulary, the target's or the net's own.
            embed: the target's input embedding.
            capacity: maximum sequence length including scratch positions, in tokens.
        """
        weight, kind = net.qkv.weight, type(net)
        defining = next(base for base in kind.__mro__ if "input_fusion" in vars(base))
        is_standard = bool(net.input_fusion) and all(
            getattr(kind, name) is getattr(defining, name) for name in INHERITED_METHODS
        )
        is_standard &= all(
            getattr(kind, name) is getattr(DecoderLayer, name)
            for name in ("attend", "project_qkv", "add_attention", "apply_mlp")
        )
        biases = {"qkv.bias", "fuse.bias"} & {name for name, _ in net.named_parameters()}
        has_standard_norms = net.norms in (NORMS, NORMS[2:]) and not biases
        rows = head.rows
        if (
            not is_standard
            or not has_standard_norms
            or rows is None
            or weight.dtype != torch.bfloat16
            or weight.device.type != "cpu"
        ):
            return None
        table = embed.get_parameter("weight")
        if type(embed) is not nn.Embedding or table.dtype != weight.dtype or not table.is_contiguous():
            return None
        with torch.inference_mode(False), torch.no_grad():
            fused = FusedDecoder.from_model(_as_model(net, rows, capacity), capacity)
            return None if fused is None else cls(net, embed, fused)

    def takes(self, n: int) -> bool:
        """Return whether one compiled call can process n pairs of a token and a feature at once."""
        return self._fused.supports((1, n))

    def run_level(
        self,
        tokens: Int[Tensor, " n"],
        features: Float[Tensor, "n D"],
        pair_positions: Int[Tensor, " n"],
        tree_mask: Bool[Tensor, "n s_plus_n"] | None,
        kv_cache: DraftKVCache,
        last_only: bool = False,
    ) -> LevelOutput:
        """Run the drafter's layer and the LM head on pairs of a token and a feature, in one compiled call.

        Args:
            tokens: token ids.
            features: hidden states of the target for committed text, or the drafter's own states within a draft.
            pair_positions: positions of the pairs in the text.
            tree_mask: true at the entries (columns) that each pair (row) attends to, among the newest s entries of the
                KV cache and the n new ones. Every pair attends to all older entries. None: causal attention.
            kv_cache: KV cache; the pairs' keys and values are appended.
            last_only: whether to return outputs of the last pair only.
        """
        n = tokens.shape[0]
        room, start = kv_cache.reserve(n)
        used = start + n
        tree_mask = _in_order(n) if tree_mask is None else tree_mask
        visible, count = np.empty((n, used), np.int32), np.empty(n, np.int64)
        self._list(tree_mask.numpy(), used - tree_mask.shape[1], visible, count)
        stream, join_args, bias_args = self._entering(tokens.numpy(), features)
        shared = (np.zeros(n, np.int64), np.arange(start, used), visible, count)
        positions, bias = pair_positions.numpy(), None if self._beside is None else bias_args[-2][None]
        layer_args = self._fused.layer_arguments(stream, room.unsqueeze(0), shared, positions, (0,), qkv_bias=bias)
        outputs = stream[-1:] if last_only else stream
        logits, states, head_args = self._fused.logit_arguments(outputs)
        summary, softmax_args = prepare_softmax_summary(logits, min(TOP, logits.shape[1]))
        # the default argument keeps `room` alive until the function has run
        run_in_parallel(lambda room=room: self._run(join_args, bias_args, layer_args, head_args, softmax_args))
        return LevelOutput((outputs if self._is_state else states).to(features.dtype), logits, summary)

    def _entering(
        self, tokens: np.ndarray, features: Float[Tensor, "n F"]
    ) -> tuple[Float[Tensor, "n D"], tuple[Any, ...], tuple[Any, ...]]:
        """Return the array that will hold the residual stream, and the arguments of two calls of `feature_inputs.join`.

        The first call writes the residual stream, the second the bias of queries, keys and values. If one of them is
        not needed, the arguments of its call are empty arrays.
        """
        of_token, of_feature = self._norms
        nothing = self._join(None, tokens, None, (of_token, of_feature), np.empty((0, 0), np.int16))
        if self._beside is None:
            join_args = self._join(self._table, tokens, features, (of_token, of_feature), self._fuse)
            return from_numpy(join_args[-2]), join_args, nothing
        bias_args = self._join(self._table, tokens, None, (of_token, of_feature), self._beside)
        if features.shape[1] == self._width:  # a state, not the hidden states to fuse
            return features.to(torch.float32, copy=True), nothing, bias_args
        join_args = self._join(None, tokens, features, (of_feature, of_feature), self._fuse)
        return from_numpy(join_args[-2]), join_args, bias_args

    def _join(
        self,
        table: np.ndarray | None,
        tokens: np.ndarray,
        features: Float[Tensor, "n F"] | None,
        norms: tuple[np.ndarray, np.ndarray],
        weight: np.ndarray,
    ) -> tuple[Any, ...]:
        """Return the arguments of the compiled function `feature_inputs.join`; the second to last is its output array.

        Args:
            table: bits of the embedding matrix; None: the output does not depend on embeddings.
            tokens: token ids.
            features: hidden states; None: the output does not depend on them.
            norms: weights of the norms of embeddings and of features.
            weight: bits of the matrix that multiplies the normalised embeddings and features.
        """
        n = len(tokens)
        embeds = np.empty((len(self._table), 0), np.int16) if table is None else table
        feature_bits = np.empty((n, 0), np.int16) if features is None else _bits(features)
        output = np.empty((n, weight.shape[0]), np.float32)
        return embeds, tokens, feature_bits, norms, self._eps, weight, output, np.zeros(2, np.int64)


def _bits(numbers: Tensor) -> np.ndarray:
    """Return the bits of bfloat16 numbers as an int16 array, the format that compiled functions read."""
    return numbers.detach().contiguous().view(torch.int16).numpy()


@lru_cache(maxsize=32)
def _in_order(n: int) -> Bool[Tensor, "n n"]:
    """Return the causal mask over n positions. The tensor is cached, so callers must not write to it."""
    return torch.ones(n, n, dtype=torch.bool).tril_()


def compiled_net_of(net: FeatureNet, head: SharedHead, models: Models) -> CompiledFeatureNet | None:
    """Return the compiled version of a feature drafter's net; None if net or target cannot be compiled.

    The net is compiled at the first call; later calls return the same object.
    """
    key = ("compiled", net.kind, models.heads[net.kind].name)
    if key not in models.shared:
        models.shared[key] = compile_net(net, head, models.target)
    return cast(CompiledFeatureNet | None, models.shared[key])


def compile_net(net: FeatureNet, head: SharedHead, target: Runner) -> CompiledFeatureNet | None:
    """Compile a feature drafter's net with its current weights. Return None if net or target cannot be compiled."""
    if target.lean is None or target.lean.fused is None:
        return None
    try:
        return CompiledFeatureNet.of(net, head, target.embed, target.cache.capacity)
    except Exception as error:  # numba raises many exception types; the net's own code still works
        log.warning("%s is not compiled: %s: %s", net.kind, type(error).__name__, error)
        return None


def _as_model(net: FeatureNet, rows: Float[Tensor, "K D"], capacity: int) -> LlamaForCausalLM:
    """Return a one-layer Llama decoder that shares a feature drafter's weights, with `rows` as LM head.

    Args:
        net: feature net.
        rows: LM head rows of the K tokens of the draft vocabulary.
        capacity: maximum sequence length in tokens.
    """
    inner, ffn = net.heads * net.head_size, net.down.in_features
    config_class: Any = LlamaConfig  # transformers' type stubs lack parameters
    config = config_class(
        vocab_size=4, hidden_size=net.width, num_hidden_layers=1, num_attention_heads=net.heads,
        num_key_value_heads=net.heads, head_dim=net.head_size, intermediate_size=ffn, rms_norm_eps=net.eps,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE} | net.rope, tie_word_embeddings=False,
        max_position_embeddings=capacity,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    rates = model.model.rotary_emb.inv_freq.clone()
    model = model.to(net.qkv.weight.dtype).requires_grad_(False).eval()
    model.model.rotary_emb.inv_freq = rates  # in bfloat16 the rotation would be off by 0.4 at position 1,000
    layer = model.model.layers[0]
    # the decoder reads only the columns for the residual stream
    stream_weight = net.qkv.weight.detach()[:, -net.width :]
    q, k, v = torch.split(stream_weight.contiguous(), inner)
    gate, up = torch.split(net.gate_up.weight.detach(), ffn)
    attention, mlp = layer.self_attn, layer.mlp
    shared: list[tuple[Any, Tensor]] = [
        (attention.q_proj, q), (attention.k_proj, k), (attention.v_proj, v), (attention.o_proj, net.out.weight),
        (mlp.gate_proj, gate), (mlp.up_proj, up), (mlp.down_proj, net.down.weight),
        (layer.input_layernorm, net.before.weight), (layer.post_attention_layernorm, net.between.weight),
        (model.model.norm, net.after.weight),
    ]  # fmt: skip
    for module, weight in shared:
        module.weight.data = weight.detach()
    model.lm_head = nn.Linear(net.width, len(rows), bias=False, device="meta")
    model.lm_head.weight = nn.Parameter(rows.detach(), requires_grad=False)
    return model

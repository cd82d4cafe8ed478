"""Run Llama-like models with as few operations as possible, for forward passes over few tokens (lean decoders).

Decoding processes one to a few dozen tokens at a time. In a small model most of the time is not arithmetic but the
launch of some seventy operations per layer. A lean layer has about twenty operations: queries, keys and values come
from one product, RoPE is applied in place, keys and values are stored by one copy, residuals are added by the products
themselves. The weights remain the model's own; only rearranged copies are added. Measured on two cores (AMD EPYC, torch
2.13, context 130; ms for 1 / 5 / 9 tokens, the model's own forward pass on packed layers → lean): 13 M parameters (12 ×
288) float32 9.0 / 8.6 / 9.4 → 5.7 / 6.0 / 6.3, bfloat16 7.8 / 7.7 / 8.3 → 4.8 / 4.9 / 5.5; 0.7 M (1 × 128) float32 0.52
/ 0.65 / 0.69 → 0.27 / 0.37 / 0.42.

The arithmetic equals that of the Hugging Face decoders named in `KINDS`. A self-test checks this for every model that
is loaded (`workbench.kernels.self_test`): a model whose results differ by more than rounding uses its own forward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.kernels.few_token_decoder import FewTokenDecoder, norm
from workbench.kernels.fused import FusedDecoder
from workbench.kernels.kv_cache import TreeCache, Window
from workbench.kernels.layers import text_config
from workbench.kernels.packed import Matrix, is_small_on_cpu
from workbench.kernels.quantised import quantise, weight_dtype
from workbench.kernels.reduced_vocabulary import TrimmedLinear, scatter_logits

KINDS = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
"""Class names of the Hugging Face decoders that `LeanDecoder` supports. The decoder may be part of a
vision-language model whose images are only input embeddings."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
FEW = 8
"""Number of tokens from which on `attend` does not regroup queries, because regrouping pays off only for few tokens."""
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""RoPE types whose cosines and sines do not depend on the length of the sequence."""


class CacheViews:
    """Views of the part of a KV cache that one forward pass writes and reads, created once for all layers."""

    def __init__(self, buffer: Tensor, window: Window, n: int) -> None:
        rows = buffer[:, :, window.rows]
        self._read = rows[..., : window.used, :].unbind(0)
        self._index = window.index
        if window.index is None:
            assert window.start is not None
            self._write = rows[..., window.start : window.start + n, :].unbind(0)
        else:
            self._write = rows.unbind(0)
            self._row = torch.arange(rows.shape[2], device=rows.device).unsqueeze(1)

    def put(self, layer: int, new: Float[Tensor, "two B H n D"]) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values; return those that the mask covers, [B, H, used, D] each."""
        if self._index is None:
            self._write[layer].copy_(new)
        else:
            self._write[layer].transpose(2, 3)[:, self._row, self._index] = new.transpose(2, 3)
        keys, values = self._read[layer].unbind(0)
        return keys, values


class LeanLayer:
    """Decoder layer that runs with few operations: attention and gated MLP, each after an RMS norm, with residuals."""

    def __init__(self, layer: nn.Module) -> None:
        attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
        parts = [attention.get_submodule(f"{name}_proj") for name in "qkv"]
        self.qkv = Matrix.from_linears(*parts)
        self.out = Matrix.from_linears(attention.get_submodule("o_proj"))
        self._feed_by(mlp)
        self.input_norm, self.post_attention_norm = (
            layer.get_submodule("input_layernorm"),
            layer.get_submodule("post_attention_layernorm"),
        )
        self.head_size: int = attention.head_dim  # type: ignore[assignment]
        self.scale: float = attention.scaling  # type: ignore[assignment]
        heads = [part.get_parameter("weight").shape[0] // self.head_size for part in parts]
        self.heads, self.kv_heads = heads[0], heads[1]
        children = dict(attention.named_children())
        self.head_norms = (children["q_norm"], children["k_norm"]) if "q_norm" in children else None

    def _feed_by(self, mlp: nn.Module) -> None:
        self.gate_up = Matrix.from_linears(mlp.get_submodule("gate_proj"), mlp.get_submodule("up_proj"))
        self.down = Matrix.from_linears(mlp.get_submodule("down_proj"))

    def with_mlp(self, mlp: nn.Module) -> LeanLayer:
        """Return a copy of this decoder layer with another MLP."""
        shared_copy = copy.copy(self)
        shared_copy._feed_by(mlp)
        return shared_copy

    def __call__(
        self, x: Float[Tensor, "T D"], rope: tuple[Tensor, Tensor], mask: Tensor, store: CacheViews, number: int
    ) -> Float[Tensor, "T D"]:
        """Run the decoder layer, and return the residual stream after it.

        Args:
            x: residual stream before the layer.
            rope: cosines and sines of the tokens' positions.
            mask: additive attention mask.
            store: views of the KV cache that the layer writes and reads.
            number: index of the layer in the KV cache.
        """
        return self.apply_mlp(self.apply_attention(x, rope, mask, store, number))

    def apply_attention(
        self, x: Float[Tensor, "T D"], rope: tuple[Tensor, Tensor], mask: Tensor, store: CacheViews, number: int
    ) -> Float[Tensor, "T D"]:
        """Run the attention of the decoder layer, and return the residual stream after the attention.

        Args:
            x: residual stream before the layer.
            rope: cosines and sines of the tokens' positions.
            mask: additive attention mask.
            store: views of the KV cache that the layer writes and reads.
            number: index of the layer in the KV cache.
        """
        n_rows, n = rope[0].shape[0], rope[0].shape[2]
        n_rotary = self.heads + self.kv_heads
        heads = (
            self.qkv(norm(self.input_norm, x)).view(n_rows, n, n_rotary + self.kv_heads, self.head_size).transpose(1, 2)
        )
        rotary = heads[:, :n_rotary]
        if self.head_norms is not None:
            rotary[:, : self.heads] = norm(self.head_norms[0], rotary[:, : self.heads])
            rotary[:, self.heads :] = norm(self.head_norms[1], rotary[:, self.heads :])
        other_half = rotary.roll(self.head_size // 2, -1)
        rotary.mul_(rope[0]).addcmul_(other_half, rope[1])
        keys, values = store.put(number, heads[:, self.heads :].unflatten(1, (2, self.kv_heads)).transpose(0, 1))
        attention_output = attend(rotary[:, : self.heads], keys, values, mask, self.scale)
        return self.out(attention_output.transpose(1, 2).reshape(x.shape[0], -1), add=x)

    def apply_mlp(self, x: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Run the MLP of the decoder layer on a residual stream, and return the stream after the MLP."""
        gate, up = self.gate_up(norm(self.post_attention_norm, x)).chunk(2, -1)
        return self.down(nn.functional.silu(gate, inplace=True).mul_(up), add=x)


def has_lean_version(model: PreTrainedModel) -> bool:
    """Return whether `LeanDecoder` (few operations per layer) supports a model's class, dtype, device and size."""
    return has_lean_architecture(model) and model.dtype in DTYPES and is_small_on_cpu(model)


def has_lean_architecture(model: PreTrainedModel) -> bool:
    """Return whether `LeanDecoder` (few operations per layer) supports a model's class, activation and RoPE type.

    RoPE's cosines and sines must not depend on the length of the sequence.
    """
    config = text_config(model.config)
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    trunk = model.get_decoder() if hasattr(model, "get_decoder") else None
    return type(trunk).__name__ in KINDS and getattr(config, "hidden_act", "") == "silu" and rope in STATIC_ROPE


class LeanDecoder(FewTokenDecoder):
    """Decoder with few operations per layer. Create it with `self_test.make_lean_decoder`, which tests it."""

    def __init__(self, model: PreTrainedModel, capacity: int) -> None:
        if weight_dtype(model) == torch.int8:
            quantise(model)  # rounds layers that were replaced or copied since the last call
        trunk, head = model.get_decoder(), model.get_output_embeddings()
        assert isinstance(trunk, nn.Module)
        assert head is not None
        self.table = table = model.get_input_embeddings().get_parameter("weight")
        self.head = head if isinstance(head, TrimmedLinear) else Matrix.from_linears(head)
        self.last_norm = trunk.get_submodule("norm")
        self.layers = [LeanLayer(layer) for layer in trunk.get_submodule("layers").children()]
        self.fused: FusedDecoder | None = None
        self._watch_weights(model)
        self._model, self.capacity = model, capacity
        with torch.inference_mode():
            positions = torch.arange(capacity, device=model.device).unsqueeze(0)
            cos, sin = trunk.get_submodule("rotary_emb")(table[:1], positions)
        half = cos.shape[-1] // 2
        self._rope = torch.cat(
            [cos[0], -sin[0, :, :half], sin[0, :, half:]], -1
        )  # the sines of the first half are negated here, once

    def fresh(self) -> LeanDecoder:
        """Return this decoder, or a new one if the model's weights have changed."""
        if not self._has_changed():
            return self
        new = LeanDecoder(self._model, self.capacity)
        new.fused = None if self.fused is None else FusedDecoder.from_model(self._model, self.capacity)
        return new

    @property
    def has_float32_stream(self) -> bool:
        """Return whether the residual stream is kept in float32 between layers, which only compiled layers do."""
        return self.fused is not None

    def supports(self, shape: Sequence[int]) -> bool:
        """Return whether this decoder runs a forward pass of a given shape: always true."""
        return True

    def run_layers(
        self,
        order: Sequence[int],
        x: Float[Tensor, "T D"],
        mask: Float[Tensor, "B 1 n used"],
        positions: Int[Tensor, "B n"],
        cache: TreeCache,
        capture_layers: Collection[int] = (),
        skipped_halves: Collection[int] = (),
    ) -> tuple[Float[Tensor, "T D"], dict[int, Tensor]]:
        """Run some decoder layers on a residual stream.

        Args:
            order: indices of the layers, in the order in which they run.
            x: residual stream before the first of these layers.
            mask: additive attention mask.
            positions: positions of the tokens in their sequences.
            cache: KV cache, written and read at the positions in `cache.window`.
            capture_layers: layers after which hidden states are captured.
            skipped_halves: attention or MLP halves of layers that are left out (see `workbench.kernels.layers`).

        Returns:
            The residual stream after these layers; and captured hidden states [B, n, D] by layer.
        """
        if self.fused is not None and self.fused.supports(positions.shape):
            return self.fused(x, mask, positions, cache, order, capture_layers, skipped_halves)
        x, (rope, store) = x.to(self.table.dtype), self.prepare(positions, cache)
        tap_states: dict[int, Tensor] = {}
        for index in order:
            layer = self.layers[index]
            if 2 * index not in skipped_halves and 2 * index + 1 not in skipped_halves:
                x = layer(x, rope, mask, store, index)
            elif 2 * index not in skipped_halves:
                x = layer.apply_attention(x, rope, mask, store, index)
            elif 2 * index + 1 not in skipped_halves:
                x = layer.apply_mlp(x)
            if index in capture_layers:
                tap_states[index] = x.view(*positions.shape, -1)
        return x, tap_states

    def prepare(self, positions: Int[Tensor, "B n"], cache: TreeCache) -> tuple[tuple[Tensor, Tensor], CacheViews]:
        """Return inputs that all layers share: (cosines, sines) of the tokens' positions, and views of the KV cache."""
        first = self.layers[0]
        store = CacheViews(cache.buffer(first.kv_heads, first.head_size, self._rope), cache.window, positions.shape[1])
        cos, sin = torch.embedding(self._rope, positions).unsqueeze(1).chunk(2, -1)
        return (cos, sin), store

    def project_to_logits(self, x: Float[Tensor, "T D"]) -> tuple[Float[Tensor, "T V"], Float[Tensor, "T D"]]:
        """Return the logits for the last layer's residual stream, and the LM head's input."""
        if x.dtype != self.table.dtype:  # float32, from compiled layers
            assert self.fused is not None
            logits, hidden = self.fused.project_to_logits(x)
            if isinstance(self.head, TrimmedLinear):
                logits = scatter_logits(logits, self.head.token_ids, self.head.out_features)
            return logits, hidden
        hidden = norm(self.last_norm, x.to(self.table.dtype))
        return self.head(hidden), hidden


def attend(
    queries: Float[Tensor, "B H n D"],
    keys: Float[Tensor, "B G used D"],
    values: Float[Tensor, "B G used D"],
    mask: Float[Tensor, "B 1 n used"],
    scale: float,
) -> Float[Tensor, "B H n D"]:
    """Return the attention output of each query; H / G query heads share keys and values.

    In bfloat16 torch multiplies a single query by all keys several times slower than two queries. So for few tokens,
    heads that share keys are laid out as several queries of one head, and a single query is duplicated. Measured
    on one core (AMD EPYC, AVX-512 with bfloat16, torch 2.13; µs, plain → regrouped): 9 heads over 3, one token, 200
    keys 186 → 42, 800 keys 795 → 123; eight rows 4593 → 307, 21809 → 5166; 15 heads over 15, 200 keys 431 → 135. On
    that machine the products are bit-identical, on other machines equal up to rounding.
    """
    n_rows, n_heads, n, size = queries.shape
    groups = keys.shape[1]
    group_size = n_heads // groups
    if queries.dtype != torch.bfloat16 or n >= FEW:
        attention = nn.functional.scaled_dot_product_attention
        return attention(queries, keys, values, mask, scale=scale, enable_gqa=group_size > 1)
    grouped = queries.reshape(n_rows, groups, group_size * n, size)
    repeats = group_size
    if group_size * n == 1:
        grouped, repeats = grouped.expand(-1, -1, 2, -1), 2
    mask = mask.expand(-1, -1, repeats, -1) if n == 1 else mask.repeat(1, 1, repeats, 1)
    output = nn.functional.scaled_dot_product_attention(grouped, keys, values, mask, scale=scale)
    return output[:, :, : group_size * n].reshape(n_rows, n_heads, n, size)

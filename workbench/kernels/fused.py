"""Run a lean decoder with compiled code, so that a forward pass over few tokens takes as long as reading the weights.

Sums are in float32, and so is the residual stream from layer to layer; weights and KV cache keep their dtype. The
self-test of the lean decoder checks that the results equal the model's (`workbench.kernels.self_test`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.kernels import compilation
from workbench.kernels.compilation import load_kernels, may_compile, run_in_parallel
from workbench.kernels.kv_cache import TreeCache
from workbench.kernels.quantised import GROUP, int8_weight_of, weight_dtype

if TYPE_CHECKING:
    from types import ModuleType

STEP = 32
"""Number of inputs that a compiled bfloat16 matrix product reads at once. The width of its input must be a multiple of
this number."""
HEAD_SIZES = (32, 64, 96, 128)
"""Sizes of attention heads that the compiled forward pass supports: 16 times `instructions.VECTORS`."""
FUSED_TOKENS = 128
"""Maximum number of tokens per sequence in a compiled forward pass, enough for the largest draft tree. The prefill of
longer prompts uses torch."""
MOST_BESIDE_TILES = 16
"""Maximum number of tokens, over all sequences, of a compiled forward pass if torch uses AMX tiles and the compiled
code does not (as with int8 weights): with more tokens, torch is faster. On such machines, a token's result is
independent of the other tokens in the batch, bit for bit, only in forward passes of up to this size."""


def has_compiled_sizes(config: Mapping[str, Any]) -> bool:
    """Return whether the compiled forward pass supports a bfloat16 decoder with the sizes in a configuration."""
    width, inner, head = (config.get(key) for key in ("hidden_size", "intermediate_size", "head_dim"))
    draft_vocabulary = config.get("draft_vocabulary")
    n_outputs = len(draft_vocabulary) if isinstance(draft_vocabulary, list) else config.get("vocab_size")
    are_multiples = all(isinstance(size, int) and size % STEP == 0 for size in (width, inner))
    return are_multiples and head in HEAD_SIZES and isinstance(n_outputs, int) and n_outputs % 4 == 0


class FusedDecoder:
    """Compiled layers and LM head of a decoder, for forward passes over few tokens; created by `from_model`.

    Matrix products read the model's weights in place and keep them alive; norms and biases are copies.
    `LeanDecoder.fresh` creates a new compiled decoder when the model's weights have changed.
    """

    def __init__(self, model: PreTrainedModel, capacity: int, forward: ModuleType) -> None:
        trunk, head = model.get_decoder(), model.get_output_embeddings()
        assert isinstance(trunk, nn.Module)
        assert head is not None
        self._run, self._read, self._see = forward.run_layers, forward.read_logits, forward.list_seen
        self._phases: int = forward.PHASES
        layers = [part for part in map(_Layer.of, trunk.get_submodule("layers").children()) if part is not None]
        kinds = load_kernels("llvm")
        assert kinds is not None
        self.dtype, self._kind = model.dtype, kinds.INT8 if weight_dtype(model) == torch.int8 else kinds.BF16
        layer_weights = [[_read(linear) for linear in layer.linears] for layer in layers]
        self._kept = [
            tensor for pairs in layer_weights for pair in pairs for tensor in pair
        ]  # keeps the weights' memory alive
        self._weights = np.array([[weight.data_ptr() for weight, _ in pairs] for pairs in layer_weights], np.int64)
        self._scales = np.array([[scale.data_ptr() for _, scale in pairs] for pairs in layer_weights], np.int64)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self._biases = _single(torch.stack(biases)[:, None]) if biases else np.zeros((0, 0, 0), np.float32)
        self._norms = _single(torch.stack([torch.stack(layer.norms) for layer in layers]))
        last: Any = trunk.get_submodule("norm")
        self._last, self._eps = _single(last.weight), np.float32(last.variance_epsilon)
        q, k, _, _, gate, *_ = (weight for weight, _ in layer_weights[0])
        self.size, self._scale = layers[0].size, np.float32(layers[0].scale)
        self.heads, self.groups = q.shape[0] // self.size, k.shape[0] // self.size
        self._sizes = (self.heads, self.groups, self.size, gate.shape[0])
        head_weight, self._head_scale = _read(head)
        self._head = _kept(head, head_weight)
        weights = [self._head, *(weight for layer in layers for weight in layer.weights)]
        is_divisible = all(weight.shape[0] % 16 == 0 for weight in weights)
        self._by_tiles = self._kind == kinds.BF16 and is_divisible and compilation.may_use_tiles()
        if self._by_tiles:
            self._kind = kinds.TILES
        self.n_tokens = self._head.shape[0]
        with torch.inference_mode():
            positions = torch.arange(capacity, device=model.device).unsqueeze(0)
            cos, sin = trunk.get_submodule("rotary_emb")(torch.zeros(1), positions)
        self._cos, self._sin = _single(cos[0]), _single(sin[0])

    @classmethod
    def from_model(cls, model: PreTrainedModel, capacity: int) -> FusedDecoder | None:
        """Return the compiled decoder of a model that `LeanDecoder` supports; None if its layer sizes are unsupported.

        Args:
            model: model on the CPU, of a kind that `workbench.kernels.lean` supports.
            capacity: maximum length of a sequence in tokens, scratch positions included.
        """
        if model.dtype != torch.bfloat16 or not may_compile():
            return None
        trunk, head = model.get_decoder(), model.get_output_embeddings()
        assert isinstance(trunk, nn.Module)
        children = list(trunk.get_submodule("layers").children())
        layers = [part for part in map(_Layer.of, children) if part is not None]
        if len(layers) < len(children) or not isinstance(head, nn.Linear) or head.bias is not None:
            return None
        if (
            hasattr(head, "token_ids") and weight_dtype(model) == torch.int8
        ):  # a trimmed head; its int8 scales are not trimmed
            return None
        weights = [*(weight for layer in layers for weight in layer.weights), _kept(head, head.weight)]
        step = GROUP if weight_dtype(model) == torch.int8 else STEP
        if any(w.shape[1] % step or w.shape[0] % 4 or not w.is_contiguous() or w.dtype != model.dtype for w in weights):
            return None
        if len({(tuple(w.shape for w in layer.weights), layer.bias is None) for layer in layers}) != 1:
            return None
        if (forward := load_kernels("forward")) is None:
            return None
        return cls(model, capacity, forward) if layers[0].size in HEAD_SIZES else None

    def supports(self, shape: Sequence[int]) -> bool:
        """Return whether compiled layers should run a forward pass of the shape (sequences, tokens per sequence)."""
        n_rows, n = shape
        return n <= FUSED_TOKENS and (self._by_tiles or n_rows * n <= MOST_BESIDE_TILES or not compilation.has_tiles())

    def __call__(
        self,
        x: Float[Tensor, "T D"],
        mask: Float[Tensor, "B 1 n used"],
        positions: Int[Tensor, "B n"],
        cache: TreeCache,
        layers: Sequence[int],
        capture_layers: Collection[int] = (),
        skipped_halves: Collection[int] = (),
    ) -> tuple[Float[Tensor, "T D"], dict[int, Tensor]]:
        """Run some decoder layers.

        Return the residual stream after these layers, in float32, and captured hidden states by layer.

        Args:
            x: input of the first of these layers, of any dtype, [T, D].
            mask: additive mask [B, 1, n, used]: a token attends to the cache positions where it is 0.
            positions: positions in the sequence, [B, n].
            cache: KV cache, written and read at the positions in `cache.window`.
            layers: indices of layers.
            capture_layers: those of `layers` after which hidden states are captured, [B, n, D] in the model's dtype.
            skipped_halves: attention or MLP halves of layers that are left out (see `workbench.kernels.layers`).
        """
        n_rows, n = positions.shape
        stream = x.to(torch.float32, copy=True).contiguous()
        window = cache.window
        cache_rows = np.repeat(np.arange(window.rows.start, window.rows.start + n_rows), n)
        if window.index is None:
            assert window.start is not None
            cache_positions = np.tile(np.arange(window.start, window.start + n), n_rows)
        else:
            cache_positions = window.index.reshape(-1).numpy()
        visible, count = np.empty((n_rows * n, window.used), np.int32), np.empty(n_rows * n, np.int64)
        self._see(mask.reshape(n_rows * n, -1).contiguous().float().numpy(), visible, count)
        buffer = cache.buffer(self.groups, self.size, x.new_empty(0, dtype=self.dtype))
        token_positions = positions.reshape(-1).numpy()
        hidden_states: dict[int, Tensor] = {}
        for part in _split_after(layers, capture_layers):
            arguments = self.layer_arguments(
                stream, buffer, (cache_rows, cache_positions, visible, count), token_positions, part, skipped_halves
            )
            run_in_parallel(
                lambda arguments=arguments, whole=buffer: self._run(*arguments)
            )  # `arguments` has its address
            if part[-1] in capture_layers:
                hidden_states[part[-1]] = stream.to(self.dtype).view(n_rows, n, -1)
        return stream, hidden_states

    def layer_arguments(
        self,
        stream: Float[Tensor, "T D"],
        kv_buffer: Float[Tensor, "L two B G C d"],
        shared: tuple[np.ndarray, ...],
        positions: np.ndarray,
        layers: Sequence[int],
        skipped_halves: Collection[int] = (),
        qkv_bias: np.ndarray | None = None,
    ) -> tuple[Any, ...]:
        """Return the arguments of the compiled function `forward.run_layers`; several threads may call it at once.

        Args:
            stream: residual stream, float32 [T, D], changed in place.
            kv_buffer: buffer of the KV cache, which must outlive the run: the arguments contain its address.
            shared: for each token, its cache row and position, the cache positions it attends to, and their number.
            positions: positions in the sequence, int64 [T].
            layers: indices of layers; hidden states can be captured only after the last of these layers.
            skipped_halves: attention or MLP halves of layers that are left out.
            qkv_bias: values added to queries, keys and values of each token instead of the model's biases, float32
                [layers, T, (H + 2 G) d] for H query heads and G key-value heads of size d.
        """
        biases = self._biases if qkv_bias is None else qkv_bias
        item_bytes, n_tokens = kv_buffer.element_size(), stream.shape[0]
        address = np.array([kv_buffer.data_ptr(), *(item_bytes * step for step in kv_buffer.stride()[:4])], np.int64)
        counters = np.zeros((self._phases * len(layers), 2), np.int64)
        halves = np.array([[2 * i not in skipped_halves, 2 * i + 1 not in skipped_halves] for i in layers], np.int64)
        heads, _, size, wide = self._sizes
        query, attention_output = np.empty((2, n_tokens, heads, size), np.float32)
        return (
            self._kind,
            np.array(layers, np.int64),
            halves,
            stream.numpy(),
            self._weights,
            self._scales,
            biases,
            self._norms,
            self._eps,
            self._sizes,
            self._scale,
            self._cos[positions],
            self._sin[positions],
            address,
            *shared,
            counters,
            query,
            attention_output,
            np.empty((n_tokens, wide), np.float32),
        )

    def project_to_logits(self, x: Float[Tensor, "T D"]) -> tuple[Float[Tensor, "T K"], Float[Tensor, "T D"]]:
        """Return the logits for the last layer's residual stream, and the LM head's input, both in the model's dtype.

        For a trimmed LM head (see `workbench.kernels.reduced_vocabulary`), these are the logits of the tokens that it
        can propose.
        """
        out, hidden, arguments = self.logit_arguments(x.to(torch.float32).contiguous())
        run_in_parallel(lambda: self._read(*arguments))
        return out, hidden.to(self.dtype)

    def logit_arguments(
        self, stream: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, "T K"], Float[Tensor, "T D"], tuple[Any, ...]]:
        """Allocate the logits and the LM head's input (float32).

        Return both, and the arguments with which the compiled function `forward.read_logits` writes them.
        """
        hidden, out = torch.empty_like(stream), torch.empty(stream.shape[0], self.n_tokens, dtype=self.dtype)
        return out, hidden, (
            self._kind, stream.numpy(), self._last, self._eps, self._head.data_ptr(), self._head_scale.data_ptr(),
            hidden.numpy(), out.view(torch.int16).numpy(), np.zeros(2, np.int64),
        )  # fmt: skip


def _split_after(layers: Sequence[int], taps: Collection[int]) -> list[list[int]]:
    """Split a list of layers into runs, each of which ends with a layer in `taps` or with the last layer.

    `taps` are the layers after which hidden states are captured.
    """
    parts: list[list[int]] = [[]]
    for layer in layers:
        parts[-1].append(layer)
        if layer in taps:
            parts.append([])
    return [part for part in parts if part]


class _Layer(NamedTuple):
    """Modules and weights of a decoder layer: seven linear layers, two norms, one bias for queries, keys and values."""

    linears: list[nn.Module]
    bias: Tensor | None
    norms: list[Tensor]
    size: int
    scale: float

    @property
    def weights(self) -> list[Tensor]:
        """Return the weights of the decoder layer's seven linear layers, in the model's dtype."""
        return [linear.get_parameter("weight") for linear in self.linears]

    @classmethod
    def of(cls, layer: nn.Module) -> _Layer | None:
        """Return the modules and weights of a decoder layer; None if it has others, such as a bias of an MLP."""
        attention: Any = layer.get_submodule("self_attn")
        mlp = layer.get_submodule("mlp")
        linears = [attention.get_submodule(f"{name}_proj") for name in "qkvo"]
        linears += [mlp.get_submodule(f"{name}_proj") for name in ("gate", "up", "down")]
        biases = [getattr(linear, "bias", None) for linear in linears]
        qkv_biases = [bias.detach() for bias in biases[:3] if bias is not None]
        if len(qkv_biases) in (1, 2) or any(bias is not None for bias in biases[3:]):
            return None
        if "q_norm" in dict(attention.named_children()):
            return None
        norms = [layer.get_submodule(f"{name}_layernorm") for name in ("input", "post_attention")]
        return cls(
            linears,
            torch.cat(qkv_biases) if qkv_biases else None,
            [norm.get_parameter("weight") for norm in norms],
            attention.head_dim,
            attention.scaling,
        )


def _read(linear: nn.Module) -> tuple[Tensor, Tensor]:
    """Return a linear layer's weight and its scales, which are empty unless the layer is int8 (see `quantised`)."""
    if (int8_weight := int8_weight_of(linear)) is not None:
        return int8_weight.values, int8_weight.scale
    return linear.get_parameter("weight").detach(), torch.empty(0)


def _kept(head: nn.Module, weight: Tensor) -> Tensor:
    """Return the rows of an LM head's weight that compute logits; for a trimmed head, a copy of the used rows."""
    token_ids = getattr(head, "token_ids", None)
    return weight if token_ids is None else weight[token_ids]


def _single(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().contiguous().numpy()

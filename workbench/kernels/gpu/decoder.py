"""Forward passes of a Llama-like decoder over few tokens by Triton kernels, seven per layer.

Transformers' forward pass launches about 45 kernels per layer. For few tokens most of them take as long to start as to
run, so that a pass over a model of 1 B parameters in bfloat16 reads its weights at a quarter of the memory's rate.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.kernels.few_token_decoder import FewTokenDecoder
from workbench.kernels.gpu.attention import attend
from workbench.kernels.gpu.products import MOST_TOKENS, Product, n_splits, programs_aimed_at
from workbench.kernels.kv_cache import TreeCache

HEAD_SIZES = (16, 32, 64, 128, 256)


class GpuLayer:
    """One decoder layer: attention and gated MLP, each after an RMS norm and added to the residual stream."""

    def __init__(self, layer: nn.Module, n_programs: int) -> None:
        attention: Any = layer.get_submodule("self_attn")
        mlp = layer.get_submodule("mlp")
        parts = [attention.get_submodule(f"{name}_proj") for name in "qkv"]
        input_norm, second_norm = (layer.get_submodule(f"{name}_layernorm") for name in ("input", "post_attention"))
        self.qkv = _product(parts, n_programs, norm=input_norm)
        self.out = _product([attention.get_submodule("o_proj")], n_programs)
        gate_up = [mlp.get_submodule(f"{name}_proj") for name in ("gate", "up")]
        self.gate_up = _product(gate_up, n_programs, norm=second_norm, is_gated=True)
        self.down = _product([mlp.get_submodule("down_proj")], n_programs)
        self.head_size: int = attention.head_dim
        self.scale: float = attention.scaling
        heads = [part.get_parameter("weight").shape[0] // self.head_size for part in parts]
        self.heads, self.kv_heads = heads[0], heads[1]
        children: dict[str, Any] = dict(attention.named_children())
        self.head_norms: tuple[Tensor, float] | None = None
        if "q_norm" in children:
            weights = torch.stack([children["q_norm"].weight.detach(), children["k_norm"].weight.detach()])
            self.head_norms = weights, children["q_norm"].variance_epsilon


class GpuDecoder(FewTokenDecoder):
    """Decoder of a model on a GPU whose layers are Triton kernels; create it with `self_test.make_gpu_decoder`.

    Stacked weights replace the model's own: its linear layers become views of them.

    Args:
        model: Llama-like model (`lean.KINDS`) in bfloat16 or float32.
        capacity: maximum length of a sequence in tokens, scratch positions included.
    """

    most_tokens = MOST_TOKENS

    def __init__(self, model: PreTrainedModel, capacity: int) -> None:
        trunk, head = model.get_decoder(), model.get_output_embeddings()
        assert isinstance(trunk, nn.Module)
        assert head is not None
        self.table = model.get_input_embeddings().get_parameter("weight")
        self.last_norm = trunk.get_submodule("norm")
        device = self.table.device
        n_programs = programs_aimed_at(device)
        self.layers = [GpuLayer(layer, n_programs) for layer in trunk.get_submodule("layers").children()]
        self._head = _product([head], n_programs)
        self._model, self.capacity = model, capacity
        with torch.inference_mode():
            positions = torch.arange(capacity, device=device).unsqueeze(0)
            cos, sin = trunk.get_submodule("rotary_emb")(self.table[:1], positions)
        self._tables = cos[0].contiguous(), sin[0].contiguous()
        self._watch_weights(model)

    def fresh(self) -> GpuDecoder:
        """Return this decoder, or a new one if the model's weights have changed."""
        return GpuDecoder(self._model, self.capacity) if self._has_changed() else self

    def supports(self, shape: Sequence[int]) -> bool:
        """Return whether the kernels support a forward pass of the shape (sequences, tokens per sequence)."""
        return shape[0] * shape[1] <= self.most_tokens

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
        """Run the layers `order` on a residual stream x. Other arguments are as in `FewTokenDecoder.__call__`.

        Returns:
            The residual stream after these layers; and captured hidden states [B, n, D] by layer.
        """
        first, window, (n_sequences, n) = self.layers[0], cache.window, positions.shape
        buffer = cache.buffer(first.kv_heads, first.head_size, self.table)
        rows = torch.arange(window.rows.start, window.rows.start + n_sequences, device=x.device)
        if window.index is None:
            assert window.start is not None
            index = torch.arange(window.start, window.start + n, device=x.device).repeat(n_sequences)
        else:
            index = window.index.reshape(-1)
        written = rows[:, None].expand(-1, n).reshape(-1).contiguous(), index.contiguous()
        mask, token_positions = mask.expand(n_sequences, 1, n, -1).contiguous(), positions.reshape(-1).contiguous()
        x, states = x.to(self.table.dtype).contiguous(), dict[int, Tensor]()
        for number in order:
            layer = self.layers[number]
            if 2 * number not in skipped_halves:
                attention_output = attend(
                    layer.qkv(x), self._tables, token_positions, buffer[number], written, mask, window.rows.start,
                    layer.scale, layer.heads, layer.head_norms,
                )  # fmt: skip
                x = layer.out(attention_output, add=x)
            if 2 * number + 1 not in skipped_halves:
                x = layer.down(layer.gate_up(x), add=x)
            if number in capture_layers:
                states[number] = x.view(n_sequences, n, -1)
        return x, states

    def project_to_logits(self, x: Float[Tensor, "T D"]) -> tuple[Float[Tensor, "T V"], Float[Tensor, "T D"]]:
        """Return the logits for the last layer's residual stream, and the LM head's input."""
        hidden = self.normalise(x.to(self.table.dtype))
        return self._head(hidden), hidden


def why_unsupported(model: PreTrainedModel) -> str:
    """Return why the Triton kernels cannot run a model of a supported architecture; empty if they can."""
    if model.dtype not in (torch.bfloat16, torch.float32):
        return f"they compute in bfloat16, not in {str(model.dtype).removeprefix('torch.')}"
    head = model.get_output_embeddings()
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if type(head) is not nn.Linear or any(type(m) is not nn.Linear or m.weight.dtype != model.dtype for m in linears):
        return "a linear layer was replaced or quantised"
    trunk = model.get_decoder()
    assert isinstance(trunk, nn.Module)
    for layer in trunk.get_submodule("layers").children():
        attention: Any = layer.get_submodule("self_attn")
        if attention.head_dim not in HEAD_SIZES:
            return f"its attention heads have size {attention.head_dim}, which the kernels do not support"
    return ""


def _product(linears: list[nn.Module], n_programs: int, norm: Any = None, is_gated: bool = False) -> Product:
    """Fuse linear layers that read the same input into one `Product`. Their weights become views of one tensor."""
    weights = [linear.get_parameter("weight") for linear in linears]
    biases = [getattr(linear, "bias", None) for linear in linears]
    stacked = weights[0].detach()
    if len(weights) > 1:
        stacked = torch.cat([weight.detach() for weight in weights])
        for weight, view in zip(weights, stacked.split([w.shape[0] for w in weights]), strict=True):
            weight.data = view
    parts = n_splits(stacked.shape[0], stacked.shape[1], n_programs)
    bias = torch.cat([b.detach() for b in biases if b is not None]) if biases[0] is not None else None
    norm_weight, eps = (None, 0.0) if norm is None else (norm.weight.detach(), norm.variance_epsilon)
    return Product(stacked, bias, norm_weight, eps, is_gated, parts)

"""Attention layer with its own KV cache, the base of the layers of trained drafters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from workbench.kernels.packed import Matrix, is_small_on_cpu
from workbench.methods.common.trained_net import TrainedNet

ROPE_BASE = 10_000.0
EPS = 1e-6
"""Epsilon of norms whose configuration does not set it."""
_Net = TypeVar("_Net", bound="AttentionNet")


class DraftKVCache:
    """KV cache of a drafter's layer for one text: committed entries, then speculative entries of drafted tokens.

    Committed entries, the first `n_stable`, were computed from hidden states of the target. Speculative entries were
    computed from the drafter's own predictions while it built a tree. All speculative entries are dropped after every
    verification: for accepted nodes, new entries are computed from the target's hidden states.
    """

    def __init__(self, heads: int, head_size: int, capacity: int, like: Tensor) -> None:
        self._buffer = like.new_zeros(2, 1, heads, capacity, head_size)
        self.n_stable = self.n_used = 0

    def append(self, new: Float[Tensor, "two 1 H n d"]) -> tuple[Tensor, Tensor]:
        """Append the keys and values of n positions to the KV cache.

        Return the keys and the values of all entries in use, old and new, [1, H, n_used, d] each (H heads of size d).
        """
        buffer, start = self.reserve(new.shape[3])
        buffer[:, :, :, start : self.n_used] = new
        keys, values = buffer[:, :, :, : self.n_used].unbind(0)
        return keys, values

    def reserve(self, n: int) -> tuple[Float[Tensor, "two 1 H C d"], int]:
        """Reserve n more KV cache entries, whose keys and values the caller writes into the buffer.

        Returns:
            The buffer of keys (index 0) and values (index 1) for C entries, and the index of the first new entry.
        """
        start, self.n_used = self.n_used, self.n_used + n
        while self.n_used > self._buffer.shape[3]:
            self._buffer = torch.cat([self._buffer, torch.zeros_like(self._buffer)], 3)
        return self._buffer, start

    def replace(self, new: Float[Tensor, "two 1 H n d"]) -> None:
        """Overwrite the keys and values of the newest n KV cache entries with `new`."""
        self._buffer[:, :, :, self.n_used - new.shape[3] : self.n_used] = new

    def commit(self) -> None:
        """Commit all KV cache entries, so that `drop_speculative` retains them."""
        self.n_stable = self.n_used

    def truncate(self, n: int) -> None:
        """Commit the first n entries of the KV cache, and drop all later entries."""
        self.n_stable = self.n_used = n

    def drop_speculative(self) -> None:
        """Drop the speculative KV cache entries, which belong to drafted tokens."""
        self.n_used = self.n_stable

    @property
    def bytes_each(self) -> int:
        """Return the size of one KV cache entry in bytes: keys and values of one position in this layer, all heads."""
        return self._buffer[:, :, :, 0].numel() * self._buffer.element_size()


class Norm(nn.RMSNorm):
    """RMS norm that converts its weight to the dtype of its input, as mixed-precision training requires."""

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        return torch.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class AttentionNet(TrainedNet):
    """Causal attention with rotary positions, added to the residual stream. Subclasses add MLPs, inputs and norms.

    Args:
        width: D, width of the residual stream.
        heads: number of attention heads.
        context: maximum sequence length, in positions.
        eps: epsilon of the norms.
        rope: RoPE settings, as transformers' `rope_parameters`; None: plain RoPE of base 10,000.
        bias: whether the query, key and value projections have a bias.
        head_size: size of a head; 0: the width divided by the number of heads.

    Raises:
        ValueError: `heads` does not divide the width into heads of an even size, or `head_size` is odd or negative.
    """

    packed_layers: ClassVar[tuple[str, ...]] = ("qkv", "out")
    """Names of the linear layers whose weights are packed into a faster layout for drafting."""
    _rope: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        context: int,
        eps: float = EPS,
        rope: Mapping[str, Any] | None = None,
        bias: bool = False,
        head_size: int = 0,
    ) -> None:
        super().__init__()
        if heads < 1 or (not head_size and width % (2 * heads)):
            raise ValueError(f"width {width} cannot be divided into {heads} heads of an even size")
        if head_size < 0 or head_size % 2:
            raise ValueError(f"head_size={head_size} is not an even number of 0 or more")
        self.width, self.heads, self.head_size = width, heads, head_size or width // heads
        inner = heads * self.head_size
        self.eps, self.rope = eps, dict(rope or {})
        self.before, self.after = Norm(width, eps=eps), Norm(width, eps=eps)
        self.qkv = nn.Linear(width, 3 * inner, bias=bias)
        self.out = nn.Linear(inner, width, bias=False)
        self._matrices: dict[str, Matrix] = {}
        self.register_buffer("_rope", rope_table(context, self.head_size, self.rope), persistent=False)

    def attend(
        self,
        x: Float[Tensor, "B n D"],
        positions: Int[Tensor, " n"],
        mask: Bool[Tensor, "*b n used"] | None = None,
        kv_cache: DraftKVCache | None = None,
        qkv_input: Float[Tensor, "B n R"] | None = None,
    ) -> Float[Tensor, "B n D"]:
        """Return the residual stream after attention.

        Args:
            x: residual stream before the attention.
            positions: positions of the inputs in the text.
            mask: true at the KV cache entries (columns) that each input (row) attends to; None: causal attention.
            kv_cache: keys and values of earlier positions; the keys and values of the inputs are appended.
            qkv_input: input of the query, key and value projections; None: the normalised residual stream.
        """
        n = x.shape[1]
        queries, keys, values = self.project_qkv(self.before(x) if qkv_input is None else qkv_input, positions)
        if kv_cache is not None:
            keys, values = kv_cache.append(torch.stack([keys, values]))
            if mask is None and n > 1:
                mask = torch.ones(n, keys.shape[2], dtype=torch.bool, device=x.device).tril(keys.shape[2] - n)
        attention = nn.functional.scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=mask is None and n > 1
        )
        return self.add_attention(attention, x)

    def add_attention(
        self, attention_output: Float[Tensor, "B H n d"], x: Float[Tensor, "B n D"]
    ) -> Float[Tensor, "B n D"]:
        """Project the attention output, and return its sum with the residual stream `x`."""
        return self._times("out", attention_output.transpose(1, 2).flatten(2), x)

    def project_qkv(
        self, qkv_input: Float[Tensor, "B n R"], positions: Int[Tensor, "*b n"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys after RoPE, and values, [B, H, n, d] each, for B sequences and H heads of size d.

        Args:
            qkv_input: input of the projections.
            positions: positions in the text, [n] or [B, n].
        """
        heads = self._times("qkv", qkv_input).view(*qkv_input.shape[:2], 3, self.heads, self.head_size)
        heads = heads.permute(2, 0, 3, 1, 4)
        angles = torch.embedding(self._rope, positions).unsqueeze(-3)
        cos, sin = angles.chunk(2, -1)  # the table contains the sign of the rotated half
        rotated = torch.addcmul(heads[:2] * cos, heads[:2].roll(self.head_size // 2, -1), sin)
        return rotated[0], rotated[1], heads[2]

    def _times(self, name: str, x: Float[Tensor, "*b i"], add: Tensor | None = None) -> Float[Tensor, "*b o"]:
        """Return the output of the linear layer `name` for input `x`, plus the tensor `add` if it is given."""
        matrix = self._matrices.get(name)
        if matrix is None:
            y = getattr(self, name)(x)
            return y if add is None else add + y
        y = matrix(x.reshape(-1, x.shape[-1]), None if add is None else add.reshape(-1, add.shape[-1]))
        return y.view(*x.shape[:-1], y.shape[-1])

    def prepare_for_drafting(self: _Net) -> _Net:
        """Prepare the net for drafting.

        Disable gradients. On a CPU, also copy the weights of a small net into a layout that is fast for few positions.
        """
        super().prepare_for_drafting()
        if is_small_on_cpu(self):
            self._matrices = {name: Matrix.from_linears(getattr(self, name)) for name in self.packed_layers}
        return self

    def unpack(self: _Net) -> _Net:
        """Drop the weights' copies in the faster layout, which support no gradients, and use the original weights."""
        self._matrices = {}
        return self


class DecoderLayer(AttentionNet):
    """Decoder layer: attention followed by a gated MLP. Subclasses define the layer's inputs and outputs."""

    packed_layers: ClassVar[tuple[str, ...]] = (*AttentionNet.packed_layers, "gate_up", "down")

    def add_mlp(self, ffn: int) -> None:
        """Create the decoder layer's gated MLP with the inner width `ffn`."""
        self.between = Norm(self.width, eps=self.eps)
        self.gate_up = nn.Linear(self.width, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, self.width, bias=False)

    def apply_mlp(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Return the residual stream after the MLP."""
        gate, up = self._times("gate_up", self.between(x)).chunk(2, -1)
        return self._times("down", nn.functional.silu(gate) * up, x)


def rope_table(context: int, head_size: int, rope: Mapping[str, Any] | None = None) -> Float[Tensor, "context twice"]:
    """Return the cosines and signed sines of RoPE for each position, [context, 2 · head_size].

    The vector x of a head is rotated to x · cos + (x rolled by head_size / 2) · sin.

    Args:
        context: maximum sequence length, in positions.
        head_size: size of a head.
        rope: RoPE settings, as transformers' `rope_parameters`; None: plain RoPE of base 10,000.
    """
    settings: dict[str, Any] = {"rope_type": "default", "rope_theta": ROPE_BASE} | dict(rope or {})
    rates: Tensor = settings["rope_theta"] ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    scale = 1.0
    if settings["rope_type"] != "default":
        rates, scale = _scaled(settings, head_size)
    angles = torch.arange(context, dtype=torch.float64).unsqueeze(1) * rates
    cos, sin = scale * angles.cos(), scale * angles.sin()
    return torch.cat([cos, cos, -sin, sin], 1).float()


def _scaled(settings: Mapping[str, Any], head_size: int) -> tuple[Tensor, float]:
    """Return the RoPE frequencies of a scaling type ("linear", "yarn", …), and a factor on all cosines and sines."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config_class: Any = LlamaConfig  # transformers' type stubs lack parameters
    config = config_class(hidden_size=head_size, num_attention_heads=1, rope_parameters=dict(settings))
    rates, scale = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, torch.device("cpu"))
    return rates.double(), float(scale)

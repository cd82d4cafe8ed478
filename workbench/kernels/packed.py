"""Rearrange the weights of linear layers so that products of few rows, as in decoding, are fast.

On a CPU a plain matrix product of five rows spends much of its time on rearranging the weights. With weights stored in
the rearranged order, a product of five rows, as in verification, takes little longer than one row. Measured on one core
(AMD EPYC, AVX-512, torch 2.13, µs, plain / transposed / packed): float32 4096×288 one row 555 / 227 / 323, five rows
867 / 732 / 254; 768×288 five rows 154 / 116 / 62; 128×128 five rows 6 / 6 / 16; bfloat16 4096×288 five rows 369 / 367 /
155. The baseline and every method run on the same layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

_M = TypeVar("_M", bound=nn.Module)

LARGEST_MODEL = 200_000_000
"""Maximum number of parameters of a model whose weights are packed (copied in rearranged order). For larger models, the
copies would take too much memory."""
SMALLEST = 150_000
"""Minimum number of entries of a float32 weight matrix that is packed (copied in rearranged order); for smaller
matrices, packing does not make products faster."""
WIDENED = 8
"""Minimum number of rows for which CPUs without bfloat16 instructions compute a bfloat16 product in float32."""


def has_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16 products; emulating them is far slower than float32.

    CPUs with AVX-512 BF16 or AMX have them.
    """
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Matrix:
    """Weight of a linear layer, or of several layers that read the same input, in layouts that are fast for few rows.

    Args:
        weight: [o, i], bfloat16, float32, or float64 (never packed), on the CPU.
        bias: [o] or None.
    """

    def __init__(self, weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None) -> None:
        weight = weight.detach()
        self._wide, self._bias = weight.dtype != torch.bfloat16, bias
        is_large = weight.dtype == torch.float32 and weight.numel() >= SMALLEST
        packs = is_large if self._wide else has_bfloat16()
        self._emulated = None if self._wide or packs else weight
        # Single rows of float32, and small matrices, are fastest as a plain product with the transposed weight.
        self._transposed = weight.t().contiguous() if self._wide else None
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8) if packs else None

    @classmethod
    def from_linears(cls, *linears: nn.Module) -> Matrix:
        """Stack the weights of linear layers that read the same input."""
        biases = [getattr(linear, "bias", None) for linear in linears]
        weight = torch.cat([linear.get_parameter("weight").detach() for linear in linears])
        return cls(weight, torch.cat([b.detach() for b in biases if b is not None]) if biases[0] is not None else None)

    def __call__(self, x: Float[Tensor, "T i"], add: Float[Tensor, "T o"] | None = None) -> Float[Tensor, "T o"]:
        """Return the matrix product x Wᵀ + bias + add.

        Args:
            x: inputs.
            add: values to add to the product, such as the residual stream; None: nothing.
        """
        if self._emulated is not None:
            product = emulate_bf16_matmul(x, self._emulated)
            product = product if self._bias is None else product + self._bias
            return product if add is None else product + add
        if self._packed is None or (self._wide and x.shape[0] == 1):
            assert self._transposed is not None
            start = self._bias if add is None or self._bias is None else add + self._bias
            start = add if start is None else start
            return torch.mm(x, self._transposed) if start is None else torch.addmm(start, x, self._transposed)
        if add is None:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, add, self._packed, self._bias, "add")


def emulate_bf16_matmul(x: Float[Tensor, "T i"], weight: Float[Tensor, "o i"]) -> Float[Tensor, "T o"]:
    """Return x Wᵀ in bfloat16 on a CPU without bfloat16 products.

    torch has a fast loop for two rows or more on such CPUs, so a single row is duplicated; for many rows that loop is
    far slower than converting the weight to float32 each time. Measured (AMD EPYC with AVX2, 2 cores, torch 2.13;
    1536×576, µs, plain / widened): 1 row 5031 / 567, 2 rows 189 / 623, 8 rows 885 / 881, 32 rows 3570 / 1306, 200 rows
    21309 / 3415.
    """
    n = x.shape[0]
    if n >= WIDENED:
        return torch.mm(x.float(), weight.float().t()).to(x.dtype)
    return nn.functional.linear(x.expand(2, -1) if n == 1 else x, weight)[:n]


class PackedLinear(nn.Linear):
    """`nn.Linear` with rearranged copies of its weight, which make products of few rows fast.

    The copies are created at first use, and again when the weight changes.
    """

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        """Return the output of the linear layer, equal to that of `nn.Linear` up to rounding."""
        state = (self.weight._version, self.weight.data_ptr())
        if self.__dict__.get("_seen") != state:
            self._matrix, self._seen = Matrix(self.weight, self.bias), state
        return self._matrix(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of the linear layer for copying and pickling, without the rearranged copies of its weight.

        A deep copy or an unpickled layer creates new ones.
        """
        return {name: value for name, value in self.__dict__.items() if name not in ("_matrix", "_seen")}


def is_small_on_cpu(model: nn.Module) -> bool:
    """Return whether a model is on a CPU whose torch has oneDNN, and small enough for copies of its weights."""
    weights = list(model.parameters())
    fits = all(w.device.type == "cpu" for w in weights) and sum(w.numel() for w in weights) <= LARGEST_MODEL
    return fits and torch.backends.mkldnn.is_available()


def may_pack(model: nn.Module) -> bool:
    """Return whether rearranged weights speed up a model: it is small, on a CPU, and in float32 or bfloat16."""
    return is_small_on_cpu(model) and {w.dtype for w in model.parameters()} <= {torch.float32, torch.bfloat16}


@contextmanager
def unpack_temporarily(model: nn.Module) -> Iterator[None]:
    """Temporarily turn `PackedLinear` layers into `nn.Linear`, so that they create no copies of their weights."""
    packed = [module for module in model.modules() if type(module) is PackedLinear]
    for module in packed:
        module.__class__ = nn.Linear  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for module in packed:
            module.__class__ = PackedLinear


def pack(model: _M) -> _M:
    """Turn a model's linear layers into `PackedLinear` layers, in place, if `may_pack`."""
    if not may_pack(model):
        return model
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = PackedLinear
    return model

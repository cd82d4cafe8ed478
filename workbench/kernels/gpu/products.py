"""Matrix products for few tokens: norm, product, bias, activation and residual in one kernel.

One program multiplies `ROWS` rows of the weights with all tokens. The weights are the left operand, so that tokens,
padded to at least 16, are the short side of the tile. With `SPLIT` > 1 several programs share a row block, each with a
part of the inputs; the last one to finish adds the partial sums in a fixed order, so that a result does not depend on
timing. The order of the sums does not depend on the number of tokens either.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from workbench.kernels.gpu.arithmetic import EMULATED, kernel, multiply_add, padded, round_to

ROWS = 64
"""Number of rows of the weights in a tile: of a gated product 32 of the gate and 32 of the values."""
STEP = 128
"""Number of inputs that a Triton program reads at once."""
MOST_TOKENS = 64


@kernel
def _product(
    x, norm_weight, weight, bias, residual, out, partial, squares, arrived, n_tokens, n_rows, n_inputs, eps,
    NORM: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, STEP: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    block, part = tl.program_id(0), tl.program_id(1)
    tokens = tl.arange(0, TOKENS)
    is_token = tokens < n_tokens
    tile_rows = tl.arange(0, ROWS)
    outputs: tl.constexpr = ROWS // 2 if GATED else ROWS
    output = block * outputs + tile_rows % outputs  # in a gated product the tile's second half reads the other weights
    weight_rows = output.to(tl.int64) + (tile_rows // outputs) * n_rows
    is_row = output < n_rows
    total = tl.zeros((ROWS, TOKENS), tl.float32)
    square = tl.zeros((TOKENS,), tl.float32)
    n_steps = tl.cdiv(n_inputs, STEP)
    steps_per_part = tl.cdiv(n_steps, SPLIT)
    for step in range(part * steps_per_part, tl.minimum((part + 1) * steps_per_part, n_steps)):
        columns = step * STEP + tl.arange(0, STEP)
        is_column = columns < n_inputs
        at = weight_rows[:, None] * n_inputs + columns[None, :]
        w = tl.load(weight + at, mask=is_row[:, None] & is_column[None, :], other=0.0)
        read = tokens.to(tl.int64)[None, :] * n_inputs + columns[:, None]
        part_x = tl.load(x + read, mask=is_token[None, :] & is_column[:, None], other=0.0)
        if NORM:
            wide = part_x.to(tl.float32)
            square += tl.sum(wide * wide, 0)
            scale = tl.load(norm_weight + columns, mask=is_column, other=0.0).to(tl.float32)
            part_x = round_to(wide * scale[:, None], weight.dtype.element_ty, EMULATE)
        total = multiply_add(w, part_x, total, EMULATE)
    if SPLIT > 1:
        tile = tile_rows[:, None] * TOKENS + tokens[None, :]
        mine = block * SPLIT + part
        tl.store(partial + mine.to(tl.int64) * ROWS * TOKENS + tile, total)
        if NORM:
            tl.store(squares + mine * TOKENS + tokens, square)
        tl.debug_barrier()  # all stores of this program come before its arrival
        if tl.atomic_add(arrived + block, 1, sem="acq_rel") != SPLIT - 1:
            return
        tl.store(arrived + block, 0)  # for the next launch
        tl.debug_barrier()
        total = tl.zeros((ROWS, TOKENS), tl.float32)
        square = tl.zeros((TOKENS,), tl.float32)
        for other in range(SPLIT):
            theirs = block * SPLIT + other
            total += tl.load(partial + theirs.to(tl.int64) * ROWS * TOKENS + tile, cache_modifier=".cg")
            if NORM:
                square += tl.load(squares + theirs * TOKENS + tokens, cache_modifier=".cg")
    if NORM:
        total *= tl.rsqrt(square / n_inputs + eps)[None, :]
    rows, is_output = output, is_row
    if GATED:
        gate, up = tl.split(tl.permute(tl.reshape(total, (2, outputs, TOKENS)), (1, 2, 0)))
        total = gate * tl.sigmoid(gate) * up
        rows = block * outputs + tl.arange(0, outputs)
        is_output = rows < n_rows
    if BIAS:
        total += tl.load(bias + rows, mask=is_output, other=0.0).to(tl.float32)[:, None]
    write = tokens.to(tl.int64)[None, :] * n_rows + rows[:, None]
    is_written = is_output[:, None] & is_token[None, :]
    if RESIDUAL:
        added = round_to(total, out.dtype.element_ty, EMULATE).to(tl.float32)  # as the model's own layers round
        total = tl.load(residual + write, mask=is_written, other=0.0).to(tl.float32) + added
    tl.store(out + write, round_to(total, out.dtype.element_ty, EMULATE), mask=is_written)


@dataclass
class Product:
    """Matrix product W x, where W has the stacked weights of linear layers that read the same input x.

    Args:
        weight: [o, i]; for a gated product the gate's rows, then as many rows for the values.
        bias: [o] or None.
        norm_weight: weight of the RMS norm that is applied to the input, [i]; None: no norm.
        eps: the norm's epsilon.
        is_gated: return silu(gate) · up, [o / 2] values, instead of the product.
        n_splits: number of Triton programs that share a block of rows.
        rows: number of rows of the weights in a tile.
        step: number of inputs that a Triton program reads at once.
        n_warps: number of warps of a program.
        n_stages: number of loads that are in flight at once; None: 4, or 3 for more than 32 tokens.
    """

    weight: Float[Tensor, "o i"]
    bias: Float[Tensor, " o"] | None = None
    norm_weight: Float[Tensor, " i"] | None = None
    eps: float = 0.0
    is_gated: bool = False
    n_splits: int = 1
    rows: int = ROWS
    step: int = STEP
    n_warps: int = 4
    n_stages: int | None = None
    arrived: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.n_rows = self.weight.shape[0] // (2 if self.is_gated else 1)
        self.n_blocks = -(-self.n_rows // (self.rows // 2 if self.is_gated else self.rows))
        self.arrived = torch.zeros(self.n_blocks, dtype=torch.int32, device=self.weight.device)

    def __call__(self, x: Float[Tensor, "T i"], add: Float[Tensor, "T o"] | None = None) -> Float[Tensor, "T o"]:
        """Return the layers' outputs for the inputs `x` of T ≤ 64 tokens, plus `add`."""
        n_tokens, n_inputs = x.shape
        tile = padded(n_tokens)
        out = torch.empty(n_tokens, self.n_rows, dtype=x.dtype, device=x.device)
        partial = squares = x
        if self.n_splits > 1:
            n_parts = self.n_blocks * self.n_splits
            partial = torch.empty(n_parts * self.rows * tile, dtype=torch.float32, device=x.device)
            squares = torch.empty(n_parts * tile, dtype=torch.float32, device=x.device)
        _product[(self.n_blocks, self.n_splits)](
            x, x if self.norm_weight is None else self.norm_weight, self.weight, x if self.bias is None else self.bias,
            x if add is None else add, out, partial, squares, self.arrived, n_tokens, self.n_rows, n_inputs, self.eps,
            NORM=self.norm_weight is not None, BIAS=self.bias is not None, RESIDUAL=add is not None,
            GATED=self.is_gated, SPLIT=self.n_splits, ROWS=self.rows, TOKENS=tile, STEP=self.step, EMULATE=EMULATED,
            num_warps=self.n_warps, num_stages=self.n_stages or (4 if tile < MOST_TOKENS else 3),
        )  # fmt: skip
        return out


def n_splits(n_weight_rows: int, n_inputs: int, n_programs: int, rows: int = ROWS, step: int = STEP) -> int:
    """Return into how many parts the inputs of a product are split, a power of two. A part has at least two steps.

    Row blocks alone are often fewer than a GPU has multiprocessors.

    Args:
        n_weight_rows: number of rows of the weights.
        n_inputs: number of inputs.
        n_programs: number of Triton programs to reach, such as the number of multiprocessors.
        rows: number of rows of the weights in a tile.
        step: number of inputs that a Triton program reads at once.
    """
    n_blocks, n_steps, parts = -(-n_weight_rows // rows), -(-n_inputs // step), 1
    while n_blocks * parts < n_programs and 4 * parts <= n_steps:
        parts *= 2
    return parts


def programs_aimed_at(device: torch.device) -> int:
    """Return the number of Triton programs that keep a GPU busy: its multiprocessors. In the interpreter, return 8."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8

"""Philox 4×64 on a GPU: the numbers of NumPy's generator, bit for bit."""

from __future__ import annotations

import torch
import triton.language as tl
from jaxtyping import Float64, Int64
from torch import Tensor

from workbench.core.random_stream import BLOCK, STREAM
from workbench.kernels.device_random import KEY_STEPS, MULTIPLIERS, ROUNDS
from workbench.kernels.gpu.arithmetic import kernel, padded


@kernel
def _draw(
    seed, attempt, position, out, level, purpose, n, STREAM: tl.constexpr, STEP: tl.constexpr, BLOCKS: tl.constexpr,
    M0: tl.constexpr, M1: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    block = tl.arange(0, BLOCKS)
    zeros = tl.zeros((BLOCKS,), tl.uint64)
    c0 = (tl.load(attempt).to(tl.uint64) << 32) + (block + 1).to(tl.uint64)  # NumPy increments before it draws
    c1, c2 = zeros + level.to(tl.uint64), zeros + purpose.to(tl.uint64)
    c3 = zeros + tl.load(position).to(tl.uint64)
    k0, k1 = zeros + tl.load(seed).to(tl.uint64), tl.full((BLOCKS,), STREAM, tl.uint64)
    m0, m1 = tl.full((BLOCKS,), M0, tl.uint64), tl.full((BLOCKS,), M1, tl.uint64)
    for _ in tl.static_range(ROUNDS):
        high_0, low_0, high_1, low_1 = tl.umulhi(c0, m0), c0 * m0, tl.umulhi(c2, m1), c2 * m1
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0 += tl.full((BLOCKS,), K0, tl.uint64)
        k1 += tl.full((BLOCKS,), K1, tl.uint64)
    at = block * 4
    tl.store(out + at, (c0 >> 11).to(tl.float64) * STEP, mask=at < n)
    tl.store(out + at + 1, (c1 >> 11).to(tl.float64) * STEP, mask=at + 1 < n)
    tl.store(out + at + 2, (c2 >> 11).to(tl.float64) * STEP, mask=at + 2 < n)
    tl.store(out + at + 3, (c3 >> 11).to(tl.float64) * STEP, mask=at + 3 < n)


def uniforms(
    seed: Int64[Tensor, " one"], attempt: Int64[Tensor, " one"], position: Int64[Tensor, " one"], purpose: int, n: int,
    level: int = 0,
) -> Float64[Tensor, " n"]:  # fmt: skip
    """Return n numbers in [0, 1); see `workbench.kernels.device_random.device_uniforms` for the arguments."""
    out = torch.empty(n, dtype=torch.float64, device=position.device)
    _draw[(1,)](
        seed, attempt, position, out, level, purpose, n, STREAM=STREAM, STEP=2.0**-53,
        BLOCKS=padded(-(-n // BLOCK)), M0=MULTIPLIERS[0], M1=MULTIPLIERS[1], K0=KEY_STEPS[0], K1=KEY_STEPS[1],
        ROUNDS=ROUNDS, num_warps=1,
    )  # fmt: skip
    return out

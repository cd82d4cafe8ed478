"""Draw the numbers of a `RandomStream` on a device, at a position that only the device knows.

The host draws a round's numbers at the position where the round starts. If the next round is queued before the host
has read the results of the current one, this position exists only on the device. The functions here compute the same
numbers there, bit for bit, without a synchronisation.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from workbench.core.random_stream import BLOCK, STREAM, Purpose
from workbench.core.transfer import on_host

ROUNDS = 10
"""Number of rounds (mixing steps) of the random number generator Philox 4×64, as in NumPy."""
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
"""Multipliers of the random number generator Philox 4×64 (Salmon et al. 2011, table 2)."""
KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
"""Constants that Philox adds to the two words of its key after each of its rounds (Salmon et al. 2011, §3.2)."""
_LOW = 0xFFFFFFFF


def device_uniforms(
    seed: Int64[Tensor, " one"],
    attempt: Int64[Tensor, " one"],
    position: Int64[Tensor, " one"],
    purpose: Purpose,
    n: int,
    level: int = 0,
) -> Float64[Tensor, " n"]:
    """Return the numbers of `RandomStream.uniform` for tensors on a device, in [0, 1). Does not synchronise.

    Args:
        seed: seed of the stream; a negative number stands for the seed modulo 2⁶⁴.
        attempt: number of times that committed tokens were revoked.
        position: number of tokens before the round.
        purpose: use of the numbers.
        n: how many numbers to return.
        level: index that separates several calls for one position and purpose.
    """
    if not on_host(position.device):
        from workbench.kernels.gpu.random_numbers import uniforms  # Triton is not installed everywhere

        return uniforms(seed, attempt, position, int(purpose), n, level)
    n_blocks = -(-n // BLOCK)
    block = torch.arange(1, n_blocks + 1, device=position.device)  # the generator increments its counter before a call
    zeros = torch.zeros_like(block)
    counter = [(attempt << 32) + block, zeros + level, zeros + int(purpose), zeros + position]
    words = torch.stack(_philox(counter, [seed.clone(), torch.full_like(seed, STREAM)]), 1).reshape(-1)[:n]
    return _shift_right(words, 11).double() * 2.0**-53


def _philox(counter: list[Int64[Tensor, " b"]], key: list[Int64[Tensor, " one"]]) -> list[Int64[Tensor, " b"]]:
    """Return four 64-bit words for each of b counters of four words.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", §3.3. Signed integers of torch wrap
    around as unsigned ones do, so that only shifts and high halves of products need care.
    """
    c0, c1, c2, c3 = counter
    first, second = (as_signed(m) for m in MULTIPLIERS)
    for i in range(ROUNDS):
        if i:
            key = [k + as_signed(step) for k, step in zip(key, KEY_STEPS, strict=True)]
        high_0, low_0 = _high_half(c0, first), c0 * first
        high_1, low_1 = _high_half(c2, second), c2 * second
        c0, c1, c2, c3 = high_1 ^ c1 ^ key[0], low_1, high_0 ^ c3 ^ key[1], low_0
    return [c0, c1, c2, c3]


def _high_half(x: Int64[Tensor, " b"], factor: int) -> Int64[Tensor, " b"]:
    """Return the upper 64 bits of the unsigned 128-bit product of x and a constant."""
    x_low, x_high = x & _LOW, _shift_right(x, 32)
    f_low, f_high = factor & _LOW, (factor >> 32) & _LOW
    low_high, high_low = x_low * f_high, x_high * f_low
    carry = _shift_right(x_low * f_low, 32) + (low_high & _LOW) + (high_low & _LOW)
    return x_high * f_high + _shift_right(low_high, 32) + _shift_right(high_low, 32) + _shift_right(carry, 32)


def _shift_right(x: Int64[Tensor, " b"], bits: int) -> Int64[Tensor, " b"]:
    """Shift right as for unsigned numbers, filling with zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def as_signed(word: int) -> int:
    """Return the signed 64-bit integer with the bits of an integer modulo 2⁶⁴."""
    return int(np.uint64(word % 2**64).astype(np.int64))

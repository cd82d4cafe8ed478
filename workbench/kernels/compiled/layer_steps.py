"""Compute the steps of a decoder layer for a few tokens: product, norm, rotary embedding, attention, gate.

Division by zero gives infinity, as in numpy. An exception in one thread would make the other threads wait forever for
its piece of work.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.kernels.compiled.amx_tiles import TILE, pack, tiled, tokens_of
from workbench.kernels.compiled.instructions import (
    GROUP,
    HEADS,
    LANES,
    OUTS,
    ROWS,
    SIZE,
    STEP,
    block,
    float_of,
    mix,
    scores,
)
from workbench.kernels.compiled.llvm import TILES

_BYTES = np.array(SIZE)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def product(kind, w, n, lo, hi, x, rows, out, per_row, scale, add):
    """Compute outputs lo ≤ o < hi of a matrix product for all rows (tokens) of the input.

    lo and hi are multiples of `OUTS`, and with AMX tiles multiples of 16. `kind` is the kind of the weights
    (`llvm.BF16`, …), and `w` their address. x is the input as `ready` returns it, and `out` the address of output 0 of
    row 0. Up to eight rows share one read of each weight; more rows are split as evenly as possible into groups of at
    most six rows, the fastest size.
    """
    if kind == TILES:
        tiled(w, n, lo, hi, x, rows, out, per_row, add)
        return
    parts = 1 if rows <= ROWS else (rows + 5) // 6
    for o in range(lo, hi, OUTS):
        row = 0
        for part in range(parts, 0, -1):
            n_rows = (rows - row + part - 1) // part
            inputs, outputs = x + 4 * row * n, out + 4 * (row * per_row + o)
            block(
                kind, n_rows, w + o * n * _BYTES[kind], inputs, n, outputs, per_row, scale + 4 * o * (n // GROUP), add
            )
            row += n_rows


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def to_even_odd_order(rows, out):
    """Copy the array `rows`, [T, n], to `out` in even-odd order: of each 32 numbers, first those at even indices."""
    for t in range(rows.shape[0]):
        for lo in range(0, rows.shape[1], STEP):
            for i in range(LANES):
                out[t, lo + i] = rows[t, lo + 2 * i]
                out[t, lo + LANES + i] = rows[t, lo + 2 * i + 1]


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def widen(bits, words):
    """Convert bfloat16 numbers, given as their bits (int16), to the bits of float32 numbers (int32) in `words`."""
    for i in range(bits.shape[0]):
        words[i] = np.int32(bits[i]) << np.int32(16)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def ready(kind, rows, dealt, packed):
    """Convert the input of a matrix product, float32 [T, n], to the order that `product` reads; return its address.

    The converted input is written to `dealt` in even-odd order, or to `packed` for AMX tiles; both are scratch memory.
    If `rows` and `dealt` are the same array, the input is in even-odd order already.
    """
    is_dealt = rows.ctypes.data == dealt.ctypes.data
    if kind == TILES:
        pack(is_dealt, rows, packed)
        return packed.ctypes.data
    if not is_dealt:
        to_even_odd_order(rows, dealt)
    return dealt.ctypes.data


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def room(kind, rows, width):
    """Allocate the argument `packed` of `ready` for `rows` inputs of up to `width` numbers; empty without AMX tiles."""
    if kind != TILES:
        return np.empty(0, np.int32)
    groups = (rows + TILE - 1) // TILE
    return aligned(groups * tokens_of(rows) + 1, width).reshape(-1).view(np.int32)  # `pack` writes past its end


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def norm(x, weight, eps, out):
    """Write the RMS norm of each row of x, float32 [T, D], to `out`."""
    for t in range(x.shape[0]):
        square = np.float32(0)
        for i in range(x.shape[1]):
            square += x[t, i] * x[t, i]
        scale = np.float32(1) / np.sqrt(square / np.float32(x.shape[1]) + eps)
        for i in range(x.shape[1]):
            out[t, i] = x[t, i] * scale * weight[i]


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def apply_rope(head, cos, sin):
    """Apply rotary embedding (Su et al. 2021) in place to a query or key, float32 [d]; i and i + d/2 form a pair."""
    half = head.shape[0] // 2
    for i in range(half):
        a, b = head[i], head[i + half]
        head[i] = a * cos[i] - b * sin[i]
        head[i + half] = b * cos[i + half] + a * sin[i + half]


@njit(nogil=True, cache=True, inline="always", error_model="numpy")
@no_type_check
def exp(x):
    """Return eˣ with a relative error of 1e-7: a power of two times a polynomial of the remainder (from Cephes)."""
    x = np.minimum(np.maximum(x, np.float32(-87)), np.float32(88))
    whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1)
    return p * float_of((np.int32(whole) + np.int32(127)) << np.int32(23))


@njit(nogil=True, cache=True)
@no_type_check
def _to_ordered_int(bits):
    """Map the bits of a float32, as int32, to an int32 that compares as the float does; the map is its own inverse."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(nogil=True, cache=True)
@no_type_check
def largest_of(bits):
    """Return the bits of the largest of some non-negative float32 numbers, given their bits as int32.

    Non-negative floats and their bits have the same order. LLVM vectorises the maximum of integers, but not of floats,
    which would take ten times as long.
    """
    top = bits[0]
    for j in range(1, bits.shape[0]):
        top = bits[j] if bits[j] > top else top
    return top


@njit(nogil=True, cache=True)
@no_type_check
def largest(numbers):
    """Return the largest number of a contiguous float32 array without NaN, by comparing integers like `largest_of`."""
    bits = numbers.view(np.int32)
    top = _to_ordered_int(bits[0])
    for j in range(1, bits.shape[0]):
        key = _to_ordered_int(bits[j])
        top = key if key > top else top
    return float_of(_to_ordered_int(top))


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def _exponentiate_scores(scored):
    """Replace attention scores, float32 [m], by exp(score − largest score), and return the sum of the results."""
    top = largest(scored)
    for j in range(scored.shape[0]):
        scored[j] = exp(scored[j] - top)
    total = np.float32(0)
    for j in range(scored.shape[0]):
        total += scored[j]
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def gate(rows, up):
    """Compute SiLU(gate) · up of a gated MLP for each entry, in place in `rows`, which holds the gate's values."""
    for i in range(rows.shape[0]):
        rows[i] = rows[i] / (np.float32(1) + exp(-rows[i])) * up[i]


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def aligned(rows, width):
    """Allocate a float32 scratch array [rows, width] that starts at a cache line of the processor.

    A vector that spans two cache lines would cost two reads.
    """
    buffer = np.empty(rows * width + 16, np.float32)
    skip = (64 - buffer.ctypes.data % 64) % 64 // 4
    return buffer[skip : skip + rows * width].reshape((rows, width))


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def attend(query, keys, values, seen, m, scale, weights, out):
    """Compute attention over the first m KV-cache positions in `seen`, for a token's query heads that share keys.

    `query` and the result `out` are [heads, d] in the order of `to_even_odd_order`. `weights` is scratch memory for
    `HEADS` rows of m + 15 numbers.
    """
    size, per_head = query.shape[1], weights.shape[1]
    for first in range(0, query.shape[0], HEADS):
        heads = min(HEADS, query.shape[0] - first)
        queries, positions = query[first:].ctypes.data, seen.ctypes.data
        scores(size // LANES, heads, queries, keys, positions, m, scale, weights.ctypes.data, per_head)
        for h in range(heads):
            inverse = np.float32(1) / _exponentiate_scores(weights[h, :m])
            for j in range(m):
                weights[h, j] *= inverse
        mix(size // LANES, heads, weights.ctypes.data, per_head, values, positions, m, out[first:].ctypes.data)

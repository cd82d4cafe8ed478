"""The steps of a layer for a handful of tokens: product, norm, rotation, attention, gate.

A division by nothing gives an infinity, as in numpy: an error in the middle of a piece would leave others waiting.
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
    """Outputs lo to below hi, multiples of `OUTS`, of all rows of x (dealt); `out` is where output 0 of row 0 would be.

    Up to eight rows share each weight that is read; more go in parts as even as can be, of which six rows are the best.
    By tiles, lo and hi are multiples of 16, and x is what `ready` made of it.
    """
    if kind == TILES:
        tiled(w, n, lo, hi, x, rows, out, per_row, add)
        return
    parts = 1 if rows <= ROWS else (rows + 5) // 6
    for o in range(lo, hi, OUTS):
        row = 0
        for part in range(parts, 0, -1):
            now = (rows - row + part - 1) // part
            come, to = x + 4 * row * n, out + 4 * (row * per_row + o)
            block(kind, now, w + o * n * _BYTES[kind], come, n, to, per_row, scale + 4 * o * (n // GROUP), add)
            row += now


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def deal(rows, out):
    """Rows, [T, n], in the order in which `product` reads them: of 32 numbers those at even places, then the others."""
    for t in range(rows.shape[0]):
        for lo in range(0, rows.shape[1], STEP):
            for i in range(LANES):
                out[t, lo + i] = rows[t, lo + 2 * i]
                out[t, lo + LANES + i] = rows[t, lo + 2 * i + 1]


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def widen(bits, words):
    """Float32 of the bits of bfloat16, int16, as bits."""
    for i in range(bits.shape[0]):
        words[i] = np.int32(bits[i]) << np.int32(16)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def ready(kind, rows, dealt, packed):
    """The address of rows, float32 [T, n], as `product` takes them: `dealt`, or, for tiles, `packed`; both are scratch.

    Rows that are dealt already come as both.
    """
    is_dealt = rows.ctypes.data == dealt.ctypes.data
    if kind == TILES:
        pack(is_dealt, rows, packed)
        return packed.ctypes.data
    if not is_dealt:
        deal(rows, dealt)
    return dealt.ctypes.data


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def room(kind, rows, width):
    """Where `ready` packs rows of up to so many numbers; nothing where it does not."""
    if kind != TILES:
        return np.empty(0, np.int32)
    groups = (rows + TILE - 1) // TILE
    return aligned(groups * tokens_of(rows) + 1, width).reshape(-1).view(np.int32)  # `pack` writes past its end


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def norm(x, weight, eps, out):
    """RMS norm of each row of x, float32 [T, D], into `out`."""
    for t in range(x.shape[0]):
        square = np.float32(0)
        for i in range(x.shape[1]):
            square += x[t, i] * x[t, i]
        by = np.float32(1) / np.sqrt(square / np.float32(x.shape[1]) + eps)
        for i in range(x.shape[1]):
            out[t, i] = x[t, i] * by * weight[i]


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def turn(head, cos, sin):
    """Rotate a query or key, float32 [d], to its place, in place: first half against second (Su et al. 2021)."""
    half = head.shape[0] // 2
    for i in range(half):
        a, b = head[i], head[i + half]
        head[i] = a * cos[i] - b * sin[i]
        head[i + half] = b * cos[i + half] + a * sin[i + half]


@njit(nogil=True, cache=True, inline="always", error_model="numpy")
@no_type_check
def exp(x):
    """The exponential, to 1e-7 of it: a power of two times a polynomial of what is left (Cephes' coefficients)."""
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
def _ordered(bits):
    """Of a float's bits the integer whose order is the float's, and back."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(nogil=True, cache=True)
@no_type_check
def largest_of(bits):
    """The bits of the largest of numbers that are not negative, from theirs: int32, in the same order.

    LLVM makes no loop that takes several at once of the largest of floats; of integers it does, ten times as fast.
    """
    top = bits[0]
    for j in range(1, bits.shape[0]):
        top = bits[j] if bits[j] > top else top
    return top


@njit(nogil=True, cache=True)
@no_type_check
def largest(numbers):
    """Of float32 that are none of them NaN, one behind the other in memory: see `largest_of`."""
    bits = numbers.view(np.int32)
    top = _ordered(bits[0])
    for j in range(1, bits.shape[0]):
        mine = _ordered(bits[j])
        top = mine if mine > top else top
    return float_of(_ordered(top))


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def _odds(scored):
    """Scores become weights that sum to what is returned."""
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
    """SiLU of a row times another, in its place."""
    for i in range(rows.shape[0]):
        rows[i] = rows[i] / (np.float32(1) + exp(-rows[i])) * up[i]


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def aligned(rows, width):
    """Scratch that begins where a line of the processor's caches does: a vector across two of them costs two reads."""
    whole = np.empty(rows * width + 16, np.float32)
    skip = (64 - whole.ctypes.data % 64) % 64 // 4
    return whole[skip : skip + rows * width].reshape((rows, width))


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def attend(query, keys, values, seen, m, scale, weights, out):
    """What the queries of a token that share keys and values, [heads, d] and dealt, read of the m places it sees.

    `out` [heads, d] comes dealt, too. `weights` is scratch for `HEADS` rows of m + 15.
    """
    size, per_head = query.shape[1], weights.shape[1]
    for first in range(0, query.shape[0], HEADS):
        heads = min(HEADS, query.shape[0] - first)
        some, where = query[first:].ctypes.data, seen.ctypes.data
        scores(size // LANES, heads, some, keys, where, m, scale, weights.ctypes.data, per_head)
        for h in range(heads):
            by = np.float32(1) / _odds(weights[h, :m])
            for j in range(m):
                weights[h, j] *= by
        mix(size // LANES, heads, weights.ctypes.data, per_head, values, where, m, out[first:].ctypes.data)

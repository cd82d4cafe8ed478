"""The steps of a layer for a handful of tokens: product, norm, rotation, attention, gate.

A division by nothing gives an infinity, as in numpy: an error in the middle of a piece would leave others waiting.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.engine.compiled.instructions import BF16, INT8, SIZE, block, float_of, mix, scores

VECTORS = (1, 2, 4, 6, 8)
"""Head sizes that `attend` knows, in sixteenths."""
_BYTES = np.array(SIZE)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _some(kind, rows, w, x, n, out, per_row, scale, add):
    if kind == BF16:
        if rows == 8:
            block(BF16, 8, 2, w, x, n, out, per_row, scale, add)
        elif rows == 4:
            block(BF16, 4, 2, w, x, n, out, per_row, scale, add)
        elif rows == 2:
            block(BF16, 2, 2, w, x, n, out, per_row, scale, add)
        else:
            block(BF16, 1, 2, w, x, n, out, per_row, scale, add)
    elif rows == 8:
        block(INT8, 8, 2, w, x, n, out, per_row, scale, add)
    elif rows == 4:
        block(INT8, 4, 2, w, x, n, out, per_row, scale, add)
    elif rows == 2:
        block(INT8, 2, 2, w, x, n, out, per_row, scale, add)
    else:
        block(INT8, 1, 2, w, x, n, out, per_row, scale, add)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def product(kind, w, n, lo, hi, x, rows, out, per_row, scale, add):
    """Outputs lo to below hi (both even) of all rows; `out` is where output 0 of row 0 would be."""
    for o in range(lo, hi, 2):
        row = 0
        while row < rows:
            left = rows - row
            now = 8 if left >= 8 else 4 if left >= 4 else 2 if left >= 2 else 1
            _some(
                kind,
                now,
                w + o * n * _BYTES[kind],
                x + 4 * row * n,
                n,
                out + 4 * (row * per_row + o),
                per_row,
                scale + 4 * o,
                add,
            )
            row += now


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
def _exp(x):
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


@njit(nogil=True, cache=True, fastmath={"nnan", "nsz"})
@no_type_check
def _largest(numbers):
    top = numbers[0]
    for j in range(1, numbers.shape[0]):
        top = max(top, numbers[j])
    return top


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def _odds(scored):
    """Scores become weights that sum to what is returned."""
    top = _largest(scored)
    for j in range(scored.shape[0]):
        scored[j] = _exp(scored[j] - top)
    total = np.float32(0)
    for j in range(scored.shape[0]):
        total += scored[j]
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def gate(rows, up):
    """SiLU of a row times another, in its place."""
    for i in range(rows.shape[0]):
        rows[i] = rows[i] / (np.float32(1) + _exp(-rows[i])) * up[i]


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def aligned(rows, width):
    """Scratch that begins where a line of the processor's caches does: a vector across two of them costs two reads."""
    whole = np.empty(rows * width + 16, np.float32)
    skip = (64 - whole.ctypes.data % 64) % 64 // 4
    return whole[skip : skip + rows * width].reshape((rows, width))


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def attend(size, query, keys, values, seen, m, scale, weights, out):
    """What one query of one head reads of the m places it sees."""
    vectors, w, where, to = size // 16, weights.ctypes.data, seen.ctypes.data, out.ctypes.data
    if vectors == 1:
        scores(1, query, keys, where, m, scale, w)
    elif vectors == 2:
        scores(2, query, keys, where, m, scale, w)
    elif vectors == 4:
        scores(4, query, keys, where, m, scale, w)
    elif vectors == 6:
        scores(6, query, keys, where, m, scale, w)
    else:
        scores(8, query, keys, where, m, scale, w)
    by = np.float32(1) / _odds(weights[:m])
    if vectors == 1:
        mix(1, w, values, where, m, to)
    elif vectors == 2:
        mix(2, w, values, where, m, to)
    elif vectors == 4:
        mix(4, w, values, where, m, to)
    elif vectors == 6:
        mix(6, w, values, where, m, to)
    else:
        mix(8, w, values, where, m, to)
    for i in range(size):
        out[i] *= by

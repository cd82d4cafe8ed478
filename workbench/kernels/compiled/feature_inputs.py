"""Compute the inputs of a feature drafter (EAGLE): embeddings and features, normed, concatenated and projected.

This small matrix product is computed without torch. After a product, torch's threads keep their cores busy while they
wait for more work, and the compiled decoder layer that follows needs those cores.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.kernels.compiled.instructions import float_of, put
from workbench.kernels.compiled.layer_steps import widen
from workbench.kernels.compiled.work_sharing import done, take, wait

OUTS = 64
"""Number of outputs of the input product that a thread computes at a time."""


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def _product(one, other):
    total = np.float32(0)
    for i in range(one.shape[0]):
        total += one[i] * other[i]
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _norm(x, weight, eps):
    """Apply RMS norm in place to x, float32 [D], with the norm's `weight` [D]; do nothing if `weight` is empty."""
    if weight.shape[0] > 0:
        scale = np.float32(1) / np.sqrt(_product(x, x) / np.float32(x.shape[0]) + eps)
        for i in range(x.shape[0]):
            x[i] = x[i] * scale * weight[i]


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def join(table, tokens, features, norms, eps, fuse, out, taken):
    """Multiply each token's normed embedding and normed feature, concatenated, by a matrix.

    Any number of threads may call this with the same arrays. Embedding or feature may have width 0. If the matrix has
    no rows (E = 0), nothing happens.

    Inputs:
        table: int16 [V, D], embeddings; int16 arrays hold the bits of bfloat16.
        tokens: int64 [n], token ids.
        features: int16 [n, F], features, one row per token.
        norms: float32 [D] and [F], norm weights of embeddings and features; [0]: not normed.
        eps: float32, epsilon of the norms.
        fuse: int16 [E, D + F], the matrix.
        out: float32 [n, E], written: the products, rounded to bfloat16.
        taken: int64 [2], zeros: number of pieces taken, number of pieces done.
    """
    n, size = tokens.shape[0], table.shape[1]
    width, in_width = fuse.shape
    pieces = (width + OUTS - 1) // OUTS
    x, row = np.empty((n, in_width), np.float32), np.empty(in_width, np.float32)
    half, is_first, piece = np.empty(1, np.int16), True, take(taken, pieces)
    while piece >= 0:
        if is_first:
            for t in range(n):
                widen(table[tokens[t]], x[t, :size].view(np.int32))
                widen(features[t], x[t, size:].view(np.int32))
                _norm(x[t, :size], norms[0], eps)
                _norm(x[t, size:], norms[1], eps)
            is_first = False
        for o in range(piece * OUTS, min(width, piece * OUTS + OUTS)):
            widen(fuse[o], row.view(np.int32))
            for t in range(n):
                put(half.ctypes.data, _product(row, x[t]))
                out[t, o] = float_of(np.int32(half[0]) << np.int32(16))
        done(taken)
        piece = take(taken, pieces)
    wait(taken, pieces)

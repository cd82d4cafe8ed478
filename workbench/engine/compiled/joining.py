"""What enters a feature drafter, of token ids and features: each normed, side by side, in one pass."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.engine.compiled.instructions import float_of, put


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def _normed(bits, weight, eps, wide, out):
    """RMS norm of bfloat16, int16 [D], into `out`, int16 [D]; without a weight a copy. `wide` is scratch."""
    size = bits.shape[0]
    if weight.shape[0] == 0:
        out[:] = bits
        return
    square = np.float32(0)
    for i in range(size):
        wide[i] = float_of(np.int32(bits[i]) << np.int32(16))
        square += wide[i] * wide[i]
    by = np.float32(1) / np.sqrt(square / np.float32(size) + eps)
    for i in range(size):
        put(out[i:].ctypes.data, wide[i] * by * weight[i])


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def join(table, tokens, features, norms, eps, out):
    """Write each token's embedding and its feature side by side.

    What it takes:
        table: int16 [V, D], bits of bfloat16, as all that is not said to be float32.
        tokens: int64 [n].
        features: int16 [n, D].
        norms: float32 [2, D], weights of the norms of embeddings and features, or [2, 0] where there are none.
        eps: float32, of the norms.
        out: int16 [n, 2 D], written.
    """
    size = table.shape[1]
    wide = np.empty(size, np.float32)
    for i in range(tokens.shape[0]):
        _normed(table[tokens[i]], norms[0], eps, wide, out[i, :size])
        _normed(features[i], norms[1], eps, wide, out[i, size:])

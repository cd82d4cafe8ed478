"""What the trace wants of wide laws, in one pass over each: their likeliest tokens and their entropy."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.engine.compiled.pieces import largest_of
from workbench.engine.compiled.sharing import done, take, wait

BLOCK = 128
"""Columns that are looked into only if their largest is among the likeliest so far."""


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def _product(p, x):
    """Σ p·x; where x is −∞, p is 0, and so is their product."""
    total = np.float32(0)
    for i in range(p.shape[0]):
        total += p[i] * (x[i] if x[i] > np.float32(-1e30) else np.float32(-1e30))
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def look(x, p, heat, top, p_top, entropy, taken):
    """Likeliest tokens of each row, falling, of equal ones the first, and the row's entropy in nats.

    Any number of threads run it on the same arrays, as in `forward`: each takes the next row that nobody has.

    What it takes:
        x: float32 [n, V], logits before temperature.
        p: float32 [n, V], laws; V is as large as k at least.
        heat: the temperature, 1 where there is none.
        top: int64 [n, k], written.
        p_top: float32 [n, k], written; what numbers there are of a law that is not one.
        entropy: float32 [n], written: log Z − Σ p·score, log Z by the likeliest token.
        taken: int64 [2], zeros: rows that were taken, rows that are done.
    """
    n, size = p.shape
    k = top.shape[1]
    row = take(taken, n)
    while row >= 0:
        p_top[row, :] = np.float32(-1)
        top[row, :] = 0
        mean, bits, most = 0.0, p[row].view(np.int32), p_top[row].view(np.int32)
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            mean += _product(p[row, lo:hi], x[row, lo:hi])
            if largest_of(bits[lo:hi]) > most[k - 1]:  # of −1, too, the bits are less
                for i in range(lo, hi):
                    if p[row, i] > p_top[row, k - 1]:
                        at = k - 1
                        while at > 0 and p[row, i] > p_top[row, at - 1]:
                            p_top[row, at], top[row, at] = p_top[row, at - 1], top[row, at - 1]
                            at -= 1
                        p_top[row, at], top[row, at] = p[row, i], i
        found = (np.float64(x[row, top[row, 0]]) - mean) / heat - np.log(np.float64(p_top[row, 0]))
        entropy[row] = 0.0 if found < 0 else found
        done(taken)
        row = take(taken, n)
    wait(taken, n)

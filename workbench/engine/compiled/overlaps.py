"""What two wide laws have in common, and by how much one exceeds the other: one pass over both, and nothing kept."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.engine.compiled.sharing import done, take, wait

BLOCK = 1024
"""Columns that are added up in float32; their sums are in float64."""


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _common(p, q, by):
    total = np.float32(0)
    for i in range(p.shape[0]):
        scaled = by * q[i]
        total += p[i] if p[i] < scaled else scaled
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _excess(p, q, by):
    total = np.float32(0)
    for i in range(p.shape[0]):
        more = by * p[i] - q[i]
        total += more if more > np.float32(0) else np.float32(0)
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def add_up(p, q, by, exceeds, out, taken):
    """Σ (by·p − q)₊ of each row, or Σ min(p, by·q).

    Any number of threads run it on the same arrays, as in `forward`: each takes the next row that nobody has.

    What it takes:
        p: float32 [R, V].
        q: float32 [R, V].
        by: float32 [R].
        exceeds: whether the first sum is wanted, and not the second.
        out: float64 [R], written.
        taken: int64 [2], zeros: rows that were taken, rows that are done.
    """
    n, size = p.shape
    row = take(taken, n)
    while row >= 0:
        total = 0.0
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            if exceeds:
                total += _excess(p[row, lo:hi], q[row, lo:hi], by[row])
            else:
                total += _common(p[row, lo:hi], q[row, lo:hi], by[row])
        out[row] = total
        done(taken)
        row = take(taken, n)
    wait(taken, n)

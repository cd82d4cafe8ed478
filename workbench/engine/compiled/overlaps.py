"""What two wide laws have in common, by how much one exceeds the other, and what lenience pays: nothing is kept."""

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


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _over(p, q, lift, share):
    total = np.float32(0)
    for i in range(p.shape[0]):
        lifted = lift * p[i]
        rest = lifted - q[i]
        law = q[i] + share * rest if rest > np.float32(0) else lifted
        more = law - p[i]
        total += more if more > np.float32(0) else np.float32(0)
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def lifted_apart(p, q, lift, out, taken):
    """What `workbench.methods.verifiers.sums.lifted_apart` says, of each row; threads share it as in `add_up`.

    What it takes:
        p: float32 [R, V].
        q: float32 [R, V].
        lift: float32.
        out: float64 [R], written.
        taken: int64 [2], zeros: rows that were taken, rows that are done.
    """
    n, size = p.shape
    row = take(taken, n)
    while row >= 0:
        kept, rest, total = 0.0, 0.0, 0.0
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            kept += _common(q[row, lo:hi], p[row, lo:hi], lift)
            rest += _excess(p[row, lo:hi], q[row, lo:hi], lift)
        share = np.float32(max(0.0, 1 - kept) / rest) if rest > 0 else np.float32(0)
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            total += _over(p[row, lo:hi], q[row, lo:hi], lift, share)
        out[row] = total
        done(taken)
        row = take(taken, n)
    wait(taken, n)

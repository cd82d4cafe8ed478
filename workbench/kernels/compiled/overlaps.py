"""What two wide laws have in common, by how much one exceeds the other, and what rules pay: nothing wide is kept."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.kernels.compiled.work_sharing import done, take, wait

BLOCK = 1024
"""Columns that are added up in float32; their sums are in float64."""
LEAST = np.float32(2.0**-100)
"""What `add_up` divides by at least: below it all that there is of by·p is less than a sum of q can tell."""


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
    """Σ (p − by·q)₊."""
    total = np.float32(0)
    for i in range(p.shape[0]):
        more = p[i] - by * q[i]
        total += more if more > np.float32(0) else np.float32(0)
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def add_common(p, q, by):
    """Σ min(p, by·q) of float32 [V] and [V], in float64."""
    total = 0.0
    for lo in range(0, p.shape[0], BLOCK):
        hi = min(p.shape[0], lo + BLOCK)
        total += _common(p[lo:hi], q[lo:hi], by)
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def add_up(p, q, by, out, taken):
    """Σ (by·p − q)₊ of each row, as by · Σ (p − q / by)₊.

    A block that hardly anything is left of has so small a `by` that by·p would be no normal number, and a processor
    takes a hundred times as long over those.

    Any number of threads run it on the same arrays, as in `forward`: each takes the next row that nobody has.

    What it takes:
        p: float32 [R, V].
        q: float32 [R, V].
        by: float32 [R].
        out: float64 [R], written.
        taken: int64 [2], zeros: rows that were taken, rows that are done.
    """
    n, size = p.shape
    row = take(taken, n)
    while row >= 0:
        total, less = 0.0, np.float32(1) / max(by[row], LEAST)
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            total += _excess(p[row, lo:hi], q[row, lo:hi], less)
        out[row] = by[row] * total
        done(taken)
        row = take(taken, n)
    wait(taken, n)


@njit(nogil=True, cache=True)
@no_type_check
def _all_there(p):
    """Whether none of a law's numbers is 0: of what is not negative the bits are in the order of the numbers."""
    bits = p.view(np.int32)
    least = bits[0]
    for i in range(bits.shape[0]):
        least = bits[i] if bits[i] < least else least
    return least > 0


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _unseen(p, q, sure):
    total = np.float32(0)
    for i in range(p.shape[0]):
        more = q[i] - p[i]
        total += more if more > np.float32(0) and q[i] > sure else np.float32(0)
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _allowed(p, q, x, sure):
    total = np.float32(0)
    for i in range(p.shape[0]):
        more = q[i] - p[i]
        total += more if more > np.float32(0) and q[i] > sure and x[i] > np.float32(-3.4e38) else np.float32(0)
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def unseen(p, q, x, sure, out, taken):
    """What `workbench.methods.verifiers.sums.unseen` says of each row; threads share it as in `add_up`.

    What it takes:
        p: float32 [R, V].
        q: float32 [R, V].
        x: float32 [R, V], logits; read only where something of p is 0: elsewhere nothing is forbidden.
        sure: float32.
        out: float64 [R], written.
        taken: int64 [2], zeros: rows that were taken, rows that are done.
    """
    n, size = p.shape
    row = take(taken, n)
    while row >= 0:
        total = 0.0
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            if _all_there(p[row, lo:hi]):
                total += _unseen(p[row, lo:hi], q[row, lo:hi], sure)
            else:
                total += _allowed(p[row, lo:hi], q[row, lo:hi], x[row, lo:hi], sure)
        out[row] = total
        done(taken)
        row = take(taken, n)
    wait(taken, n)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _kept(p, q, least):
    total = np.float32(0)
    for i in range(p.shape[0]):
        total += q[i] if p[i] > least else np.float32(0)
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _between(p, q, least, kept):
    total = np.float32(0)
    for i in range(p.shape[0]):
        total += abs((q[i] if p[i] > least else np.float32(0)) - kept * p[i])
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def keeping(p, q, row_of, least, out, taken):
    """What `workbench.core.relaxed.price_of_keeping` says of drawn drafts; threads share it as in `add_up`.

    What it takes:
        p: float32 [R, V].
        q: float32 [M, V].
        row_of: int64 [R], row of q for each of p.
        least: float32 [R].
        out: float64 [R], written.
        taken: int64 [2], zeros: rows that were taken, rows that are done.
    """
    n, size = p.shape
    row = take(taken, n)
    while row >= 0:
        probs, ahead, kept, total = p[row], q[row_of[row]], 0.0, 0.0
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            kept += _kept(probs[lo:hi], ahead[lo:hi], least[row])
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            total += _between(probs[lo:hi], ahead[lo:hi], least[row], np.float32(kept))
        out[row] = total / 2
        done(taken)
        row = take(taken, n)
    wait(taken, n)

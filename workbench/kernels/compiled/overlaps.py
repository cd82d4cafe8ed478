"""Compute sums over two distributions, such as Σ min(p, q) and Σ (p − q)₊, without arrays of the vocabulary's size."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.kernels.compiled.work_sharing import done, take, wait

BLOCK = 1024
"""Number of tokens per block of a sum over the vocabulary. A block is summed in float32, and the sums of blocks are
added in float64."""
LEAST = np.float32(2.0**-100)
"""Lower bound of the factor `by` in `add_up`, which divides by it. For smaller factors, the products by·p are below the
rounding error of Σ q."""


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_overlap(p, q, by):
    """Return the overlap Σ min(p, by·q) of two distributions over one block of tokens, in float32."""
    total = np.float32(0)
    for i in range(p.shape[0]):
        scaled = by * q[i]
        total += p[i] if p[i] < scaled else scaled
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_excess(p, q, by):
    """Return the excess Σ (p − by·q)₊ of one distribution over another, over one block of tokens, in float32."""
    total = np.float32(0)
    for i in range(p.shape[0]):
        excess = p[i] - by * q[i]
        total += excess if excess > np.float32(0) else np.float32(0)
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def add_common(p, q, by):
    """Return the overlap Σ min(p, by·q) of two distributions over all tokens, in float64; p and q are float32 [V]."""
    total = 0.0
    for lo in range(0, p.shape[0], BLOCK):
        hi = min(p.shape[0], lo + BLOCK)
        total += _block_overlap(p[lo:hi], q[lo:hi], by)
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def add_up(p, q, by, out, taken):
    """Compute the sum Σ (by·p − q)₊ over the vocabulary for each row of p and q, as by · Σ (p − q / by)₊.

    The second form avoids products by·p that are so small that they would be subnormal: the processor takes a hundred
    times as long for subnormal numbers.

    Any number of threads may call this with the same arrays; each takes the next free row (see `work_sharing`).

    Inputs:
        p: float32 [R, V], distributions that are scaled.
        q: float32 [R, V], distributions that are subtracted.
        by: float32 [R], factor of p in each row.
        out: float64 [R], written: the sums.
        taken: int64 [2], zeros: number of rows taken, number of rows done.
    """
    n, size = p.shape
    row = take(taken, n)
    while row >= 0:
        total, inverse = 0.0, np.float32(1) / max(by[row], LEAST)
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            total += _block_excess(p[row, lo:hi], q[row, lo:hi], inverse)
        out[row] = by[row] * total
        done(taken)
        row = take(taken, n)
    wait(taken, n)


@njit(nogil=True, cache=True)
@no_type_check
def _has_no_zero(p):
    """Return whether none of the probabilities p, float32, is 0, by comparing their bits, which have the same order."""
    bits = p.view(np.int32)
    least = bits[0]
    for i in range(bits.shape[0]):
        least = bits[i] if bits[i] < least else least
    return least > 0


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_excess_above(p, q, sure):
    """Return the excess Σ (q − p)₊ of the draft distribution over one block, counting only tokens with q > `sure`."""
    total = np.float32(0)
    for i in range(p.shape[0]):
        excess = q[i] - p[i]
        total += excess if excess > np.float32(0) and q[i] > sure else np.float32(0)
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_unmasked_excess_above(p, q, x, sure):
    """Return the excess Σ (q − p)₊ of the draft distribution over one block, for tokens that the target allows.

    Only tokens with q > `sure` and a logit x above −∞ count.
    """
    total = np.float32(0)
    for i in range(p.shape[0]):
        excess = q[i] - p[i]
        total += excess if excess > np.float32(0) and q[i] > sure and x[i] > np.float32(-3.4e38) else np.float32(0)
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def unseen(p, q, x, sure, out, taken):
    """Compute for each row the excess Σ (q − p)₊ of the draft distribution over the target's.

    Only tokens with q > `sure` and a logit above −∞ count, as in `methods.verifiers.sums.unverified_excess`. Any number
    of threads may call this with the same arrays; each takes the next free row (see `work_sharing`).

    Inputs:
        p: float32 [R, V], the target's distributions.
        q: float32 [R, V], the drafter's distributions.
        x: float32 [R, V], the target's logits; read only in blocks where some p is 0, since elsewhere no logit is −∞.
        sure: float32, threshold: only tokens with a larger q count.
        out: float64 [R], written: the sums.
        taken: int64 [2], zeros: number of rows taken, number of rows done.
    """
    n, size = p.shape
    row = take(taken, n)
    while row >= 0:
        total = 0.0
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            if _has_no_zero(p[row, lo:hi]):
                total += _block_excess_above(p[row, lo:hi], q[row, lo:hi], sure)
            else:
                total += _block_unmasked_excess_above(p[row, lo:hi], q[row, lo:hi], x[row, lo:hi], sure)
        out[row] = total
        done(taken)
        row = take(taken, n)
    wait(taken, n)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_accepted_q(p, q, least):
    """Return the draft probability of the tokens in one block that a threshold rule accepts: Σ q where p > `least`."""
    total = np.float32(0)
    for i in range(p.shape[0]):
        total += q[i] if p[i] > least else np.float32(0)
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_distance(p, q, least, kept):
    """Return the L1 distance Σ |q′ − kept · p| over one block of tokens, for the error of a threshold rule.

    q′ is the draft probability of tokens that the rule accepts: q if p > `least`, else 0.
    """
    total = np.float32(0)
    for i in range(p.shape[0]):
        total += abs((q[i] if p[i] > least else np.float32(0)) - kept * p[i])
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def threshold_rule_errors(p, q, row_of, least, out, taken):
    """Compute the distribution error of a threshold rule for sampled drafts (`core.relaxed.threshold_rule_error`).

    Any number of threads may call this with the same arrays; each takes the next free row (see `work_sharing`).

    Inputs:
        p: float32 [R, V], the target's distributions.
        q: float32 [M, V], the drafter's distributions.
        row_of: int64 [R], row of q for each row of p.
        least: float32 [R], threshold of the rule: tokens with a larger p are accepted.
        out: float64 [R], written: the errors.
        taken: int64 [2], zeros: number of rows taken, number of rows done.
    """
    n, size = p.shape
    row = take(taken, n)
    while row >= 0:
        target_probs, draft_probs, kept_mass, total = p[row], q[row_of[row]], 0.0, 0.0
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            kept_mass += _block_accepted_q(target_probs[lo:hi], draft_probs[lo:hi], least[row])
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            total += _block_distance(target_probs[lo:hi], draft_probs[lo:hi], least[row], np.float32(kept_mass))
        out[row] = total / 2
        done(taken)
        row = take(taken, n)
    wait(taken, n)

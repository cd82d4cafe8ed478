"""Compute the discount ρ of SpecTr's rule K-SEQ at tree positions, one at a time to use the processor's caches."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.kernels.compiled.overlaps import add_common
from workbench.kernels.compiled.siblings import put
from workbench.kernels.compiled.work_sharing import done, take, wait

BLOCK = 1024
"""Number of tokens per block of a sum over the vocabulary. A block is summed in float32, and the sums of blocks are
added in float64."""
_NONE, _TINY = np.float32(0), np.finfo(np.float32).tiny


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_residual(p, q, by, share):
    total = _NONE
    for i in range(p.shape[0]):
        shared = by * p[i]
        excess = p[i] - share * (q[i] if q[i] < shared else shared)
        total += excess if excess > _NONE else _NONE
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _residual_outside(p, q, special, by, share):
    """Return the residual mass of SpecTr's rule K-SEQ over tokens outside `special`: Σ (p − share · min(q, by · p))₊.

    p and q are float32 [V]; `special`, int64 [m], is a sorted array of token ids without duplicates.
    """
    total, lo = 0.0, 0
    for s in range(special.shape[0] + 1):
        end = special[s] if s < special.shape[0] else p.shape[0]
        while lo < end:
            hi = min(end, lo + BLOCK)
            total += _block_residual(p[lo:hi], q[lo:hi], by, share)
            lo = hi
        lo = end + 1
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _prob_of_any(beta, k):
    """Return the probability that at least one of k independent tests passes, each with probability `beta`."""
    return -np.expm1(k * np.log1p(-min(beta, 1.0)))


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _overlap_excess(p, q, rho, k):
    overlap = add_common(p, q, np.float32(rho))
    return overlap - _prob_of_any(overlap / rho, k)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _find_discount(p, q, k, halvings, least):
    """Search for the discount ρ of SpecTr's rule K-SEQ at a tree position, as `methods.verifiers.k_seq.discount` does.

    p and q are the target and draft distribution, float32 [V]; k is the number of drafts. The search takes at most
    `halvings` + 1 steps, and ends earlier if ρ is known to within least · (k − 1).
    """
    low, high = 1.0, k
    f_low, f_high = _overlap_excess(p, q, low, k), _overlap_excess(p, q, high, k)
    tolerance = (k - 1) * least
    for step in range(halvings + 1):
        width, middle = high - low, (low + high) / 2
        if width <= 2 * tolerance:
            break
        chord = (f_high * low - f_low * high) / max(f_high - f_low, _TINY)
        chord = min(max(chord, low), high)
        side = np.sign(middle - chord)
        push = max(0.2 * width * width / (k - 1), tolerance)
        pushed = chord + side * min(push, abs(middle - chord))
        free = max((k - 1) * 2.0**-step - width / 2, 0.0)
        rho = pushed if abs(pushed - middle) <= free else middle - side * free
        f = _overlap_excess(p, q, rho, k)
        if f >= 0:
            high, f_high = rho, f
        else:
            low, f_low = rho, f
    return high


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def find(p, p_at, q, q_at, token, there, halvings, least, found, taken):
    """Compute the discount ρ of SpecTr's rule K-SEQ at each tree position, and sums over the vocabulary that need ρ.

    Any number of threads may call this with the same arrays; each takes the next free position (see `work_sharing`).

    Inputs:
        p: float32 [m, V], the target's distributions.
        p_at: int64 [R], row of p for each position.
        q: float32 [M, V], the drafter's distributions.
        q_at: int64 [R], row of q for each position.
        token: int64 [R, F], tokens drafted at each position.
        there: bool [R, F], whether the child exists.
        halvings: largest number of bisection steps.
        least: precision of ρ, as a fraction of k − 1.
        found: float32 [R, 4], written, four numbers per position. 0: ρ. 1: c, the probability that any test passes,
            divided by β = Σ min(q, p / ρ), the probability that one test passes. 2: Σ (p − c · min(q, p / ρ))₊ over all
            tokens but the children's. 3: the same sum over all tokens.
        taken: int64 [2], zeros: number of positions taken, number of positions done.
    """
    n, f = token.shape
    special = np.empty(f, np.int64)
    row = take(taken, n)
    while row >= 0:
        target_probs, draft_probs = p[p_at[row]], q[q_at[row]]
        m, k = 0, 0
        for i in range(f):
            if there[row, i]:
                m, k = put(special, m, token[row, i]), k + 1
        rho = np.float32(_find_discount(target_probs, draft_probs, max(1.0, float(k)), halvings, least))
        by = np.float32(1) / rho
        beta = add_common(target_probs, draft_probs, rho) / rho
        share = np.float32(_prob_of_any(beta, max(1.0, float(k))) / max(beta, _TINY))
        other_mass = _residual_outside(target_probs, draft_probs, special[:m], by, share)
        residual_mass = other_mass
        for s in range(m):
            p_x, q_x = target_probs[special[s]], draft_probs[special[s]]
            residual_mass += max(p_x - share * min(q_x, by * p_x), _NONE)
        found[row, 0], found[row, 1], found[row, 2], found[row, 3] = rho, share, other_mass, residual_mass
        done(taken)
        row = take(taken, n)
    wait(taken, n)

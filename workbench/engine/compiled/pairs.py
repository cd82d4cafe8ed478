"""The search of `workbench.methods.verifiers.optimal_two` for weights by which one of two drafts is chosen."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.engine.compiled.sharing import done, take, wait

_NONE, _ONE, _TINY = np.float32(0), np.float32(1), np.finfo(np.float32).tiny
_NEARLY, _HALF = np.float32(1e-12), np.float32(0.5)
BLOCK = 128
"""Tokens that are looked into only if the largest chance of them is among the largest so far."""


@njit(nogil=True, cache=True, fastmath={"nnan", "nsz"})
@no_type_check
def _largest_of(p, q):
    top = p[0]
    for x in range(p.shape[0]):
        top = max(top, max(p[x], q[x]))
    return top


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _stand_out(p, q, at, top):
    """The tokens of the largest max(p, q), falling, of equal ones the first; as many as `at` has places, V at least."""
    last = at.shape[0] - 1
    top[:] = -_ONE
    at[:] = 0
    for lo in range(0, p.shape[0], BLOCK):
        hi = min(p.shape[0], lo + BLOCK)
        if _largest_of(p[lo:hi], q[lo:hi]) > top[last]:
            for x in range(lo, hi):
                chance = max(p[x], q[x])
                if chance > top[last]:
                    i = last
                    while i > 0 and chance > top[i - 1]:
                        top[i], at[i] = top[i - 1], at[i - 1]
                        i -= 1
                    top[i], at[i] = chance, x


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp"})
@no_type_check
def _beaten(own, w, q, g):
    """Σ q / (own + w) and Σ g / (own + w)."""
    from_q, from_g = _NONE, _NONE
    for j in range(w.shape[0]):
        by = _ONE / (own + w[j])
        from_q += q[j] * by
        from_g += g[j] * by
    return from_q, from_g


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp"})
@no_type_check
def _sums(w, q, g, from_q, from_g):
    """Σ q′ / (w + w′) and Σ g′ / (w + w′) over all others, times w, of each."""
    for i in range(w.shape[0]):
        own_q, own_g = q[i], g[i]
        q[i] = g[i] = _NONE
        by_q, by_g = _beaten(w[i], w, q, g)
        q[i], g[i] = own_q, own_g
        from_q[i], from_g[i] = w[i] * by_q, w[i] * by_g


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _choose(p, q, g, inside, steps, most, best, from_q, from_g):
    """Weights of the largest acceptance that were met, and their sums as `_sums` has them."""
    size = p.shape[0]
    w, r = np.ones(size, np.float32), np.empty(size, np.float32)
    most_kept = -_ONE
    for _ in range(steps + 1):
        _sums(w, q, g, from_q, from_g)
        kept = _NONE
        for i in range(size):
            r[i] = g[i] * from_q[i] + q[i] * from_g[i] + inside[i]
            kept += min(p[i], r[i])
        if kept > most_kept:
            most_kept = kept
            best[:] = w
        for i in range(size):
            if q[i] > 0:
                w[i] = min(max(w[i] * (max(p[i], _TINY) / max(r[i], _TINY)), _ONE / most), most)
    _sums(best, q, g, from_q, from_g)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _group_of(p_bits, q_bits, groups, of):
    """As `workbench.methods.verifiers.optimal_two.group` has it."""
    for x in range(p_bits.shape[0]):
        octaves = ((p_bits[x] - q_bits[x]) >> 22) + (groups - 3)
        of[x] = min(max(octaves, 0), groups - 1)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _add(one, two, of, into):
    """Two laws at once, and two banks: neighbours are often of one group, and each sum would wait for that before."""
    odd, even = np.zeros_like(into), one.shape[0] - one.shape[0] % 2
    for x in range(0, even, 2):
        into[0, of[x]] += one[x]
        odd[0, of[x + 1]] += one[x + 1]
        into[1, of[x]] += two[x]
        odd[1, of[x + 1]] += two[x + 1]
    for x in range(even, one.shape[0]):
        into[0, of[x]] += one[x]
        into[1, of[x]] += two[x]
    into += odd


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _add_one(law, of, into):
    odd, even = np.zeros_like(into), law.shape[0] - law.shape[0] % 2
    for x in range(0, even, 2):
        into[of[x]] += law[x]
        odd[of[x + 1]] += law[x + 1]
    for x in range(even, law.shape[0]):
        into[of[x]] += law[x]
    into += odd


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def _with_itself(q, found):
    for x in range(q.shape[0]):
        found[x] = q[x] * q[x] / max(_ONE - q[x], _NEARLY)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def _law_without(q, of, q_all, g_all, from_q, from_g, r):
    half_q, half_g = from_q + _HALF * q_all, from_g + _HALF * g_all
    for x in range(q.shape[0]):
        r[x] = q[x] * ((half_q[of[x]] - q[x]) / max(_ONE - q[x], _NEARLY) + half_g[of[x]])


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def _law(q, of, q_all, from_q, from_g, r):
    chance = from_q + from_g + q_all
    for x in range(q.shape[0]):
        r[x] = q[x] * chance[of[x]]


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def improve(p, q, p_bits, q_bits, at, without, steps, most, best, r, taken):
    """Weights of the largest acceptance that were met, and the law of the draft that they choose.

    Any number of threads run it on the same arrays, as in `forward`: each takes the next row that nobody has.

    What it takes:
        p: float32 [R, V], the target's law.
        q: the same of the drafter's.
        p_bits: int32 [R, V], the bits of p.
        q_bits: the same of q.
        at: int64 [R, m], written: tokens with weights of their own, those of the largest max(p, q).
        without: whether the two drafts differ.
        steps: improvements.
        most: largest weight, float32; the least is its inverse.
        best: float32 [R, m + G], written: weights of those tokens, and of the groups of all others.
        r: float32 [R, V], written.
        taken: int64 [2], zeros: rows that were taken, rows that are done.
    """
    n, size = p.shape
    m, groups = at.shape[1], best.shape[1] - at.shape[1]
    of, sums = np.empty(size, np.int32), np.empty((6, groups + m), np.float32)
    weight, top = np.empty(groups + m, np.float32), np.empty(m, np.float32)
    row = take(taken, n)
    while row >= 0:
        _group_of(p_bits[row], q_bits[row], groups, of)
        _stand_out(p[row], q[row], at[row], top)
        for i in range(m):
            of[at[row, i]] = groups + i
        sums[:] = _NONE
        _add(p[row], q[row], of, sums[:2])
        if without:  # q / (1 − q) is q and q² / (1 − q), and q² / (1 − q) is what q meets of itself
            _with_itself(q[row], r[row])
            _add_one(r[row], of, sums[3])
        sums[2] = sums[1] + sums[3]
        _choose(sums[0], sums[1], sums[2], sums[1] * sums[2] - sums[3], steps, most, weight, sums[4], sums[5])
        best[row, :m], best[row, m:] = weight[groups:], weight[:groups]
        if without:
            _law_without(q[row], of, sums[1], sums[2], sums[4], sums[5], r[row])
        else:
            _law(q[row], of, sums[1], sums[4], sums[5], r[row])
        done(taken)
        row = take(taken, n)
    wait(taken, n)

"""The search of `workbench.methods.verifiers.optimal_two` for weights by which one of two drafts is chosen."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.engine.compiled.sharing import done, take, wait

_NONE, _ONE, _TINY = np.float32(0), np.float32(1), np.finfo(np.float32).tiny
_NEARLY = np.float32(1e-12)


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


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def improve(p, q, g, without, steps, most, best, taken):
    """Weights of the largest acceptance that were met.

    Any number of threads run it on the same arrays, as in `forward`: each takes the next row that nobody has.

    What it takes:
        p: float32 [R, m + 1], the target's law of m tokens, and of all others together.
        q: the same of the drafter's.
        g: the same of q / (1 − q), or of q where the two drafts may be one.
        without: whether they may not.
        steps: improvements.
        most: largest weight, float32; the least is its inverse.
        best: float32 [R, m + 1], written.
        taken: int64 [2], zeros: rows that were taken, rows that are done.
    """
    n, size = p.shape
    m = size - 1
    w, r, other_q, other_g = (np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32),
                              np.empty(size, np.float32))  # fmt: skip
    row = take(taken, n)
    while row >= 0:
        w[:] = _ONE
        other_q[:], other_g[:] = q[row], g[row]
        most_kept = -_ONE
        for _ in range(steps + 1):
            total = _NONE
            for i in range(m):
                own = q[row, i]
                other_q[i] = other_g[i] = _NONE
                from_q, from_g = _beaten(w[i], w, other_q, other_g)
                other_q[i], other_g[i] = own, g[row, i]
                if without:
                    r[i] = own * w[i] * (from_q / max(_ONE - own, _NEARLY) + from_g)
                else:
                    r[i] = own * (own + w[i] * (from_q + from_q))
                total += r[i]
            r[m] = max(_ONE - total, _NONE)
            kept = _NONE
            for i in range(size):
                kept += min(p[row, i], r[i])
            if kept > most_kept:
                most_kept = kept
                best[row] = w
            for i in range(size if q[row, m] > 0 else m):
                w[i] = min(max(w[i] * (max(p[row, i], _TINY) / max(r[i], _TINY)), _ONE / most), most)
        done(taken)
        row = take(taken, n)
    wait(taken, n)

"""What the trace wants of wide laws, in one pass over each: their likeliest tokens and their entropy.

`look` reads laws that were made. Of greedy decoding nobody reads the law itself: `weigh` finds the same from logits in
the type in which the model gave them, and writes nothing as wide as they are.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.kernels.compiled.layer_steps import exp, largest, largest_of, widen
from workbench.kernels.compiled.work_sharing import done, take, wait

BLOCK = 128
"""Columns that are looked into only if their largest is among the likeliest so far."""
WIDER = 512
"""The same where they are made into powers, too: of fewer at a time a loop over vectors is mostly its beginning."""


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


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def _powers(x, most):
    """Σ exp(x − most), and Σ exp(x − most) · (x − most); of what is 87 less, or −∞, no more than 1e-38 each."""
    total, product = np.float32(0), np.float32(0)
    for i in range(x.shape[0]):
        less = x[i] - most
        less = np.float32(-87) if less < np.float32(-87) else less  # NaN stays
        power = exp(less)
        total += power
        product += power * less
    return total, product


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _weigh(x, top, p_top, logs):
    """One row: float32 [V]. Writes its likeliest tokens; returns its largest logit, Σ exp(x − that) and its entropy."""
    size, k = x.shape[0], top.shape[0]
    p_top[:] = -np.inf
    top[:] = 0
    for lo in range(0, size, WIDER):
        hi = min(size, lo + WIDER)
        if largest(x[lo:hi]) > p_top[k - 1]:
            for i in range(lo, hi):
                if x[i] > p_top[k - 1]:
                    at = k - 1
                    while at > 0 and x[i] > p_top[at - 1]:
                        p_top[at], top[at] = p_top[at - 1], top[at - 1]
                        at -= 1
                    p_top[at], top[at] = x[i], i
    found = k
    while found > 0 and p_top[found - 1] == -np.inf:
        found -= 1
    for i in range(size if found < k else 0):  # no token comes twice, though there are no more that can be said
        if found < k and x[i] == -np.inf:
            top[found] = i
            found += 1
    most, total, product = p_top[0], 0.0, 0.0
    for lo in range(0, size, WIDER):
        hi = min(size, lo + WIDER)
        some, weighed = _powers(x[lo:hi], most)
        total += some
        product += weighed
    for i in range(k):
        log = np.float64(p_top[i] - most) - np.log(total)
        p_top[i], logs[i] = np.exp(log), 0.0 if log > 0 else log
    entropy = np.log(total) - product / total
    return most, total, 0.0 if entropy < 0 else entropy


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def weigh(x, top, p_top, logs, entropy, scale, taken):
    """Of logits without a temperature: likeliest tokens of each row's softmax, of equal logits the first; and the rest.

    Any number of threads run it on the same arrays, as `look`.

    What it takes:
        x: float32 [n, V]; V is as large as k at least.
        top: int64 [n, k], written.
        p_top: float32 [n, k], written: their probabilities. logs: the same, their logarithms.
        entropy: float32 [n], written, in nats.
        scale: float64 [n, 2], written: a token's probability is exp(its logit less the first) over the second.
        taken: int64 [2], zeros: rows that were taken, rows that are done.
    """
    n = x.shape[0]
    row = take(taken, n)
    while row >= 0:
        scale[row, 0], scale[row, 1], entropy[row] = _weigh(x[row], top[row], p_top[row], logs[row])
        done(taken)
        row = take(taken, n)
    wait(taken, n)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def weigh_halves(bits, top, p_top, logs, entropy, scale, taken):
    """The same of bfloat16, whose bits are int16 [n, V]."""
    n, size = bits.shape
    wide = np.empty(size, np.float32)
    row = take(taken, n)
    while row >= 0:
        widen(bits[row], wide.view(np.int32))
        scale[row, 0], scale[row, 1], entropy[row] = _weigh(wide, top[row], p_top[row], logs[row])
        done(taken)
        row = take(taken, n)
    wait(taken, n)

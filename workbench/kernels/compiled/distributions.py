"""Compute top tokens and entropy of distributions over the vocabulary, reading each distribution once.

`top_and_entropy` reads distributions that were computed before. Greedy decoding needs no distribution:
`summarise_softmax` computes top tokens and entropy from logits in the model's own dtype, and writes no array of the
vocabulary's size.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.kernels.compiled.layer_steps import exp, largest, largest_of, widen
from workbench.kernels.compiled.work_sharing import done, take, wait

BLOCK = 128
"""Number of tokens per block in which `top_and_entropy` searches for the k most likely tokens. A block is searched only
if its maximum exceeds the k-th largest probability found so far."""
WIDER = 512
"""Number of tokens per block of `summarise_softmax`. Blocks are longer than those of `top_and_entropy`, because this
function also computes exponentials, and short vector loops would be slow."""


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def _product(p, x):
    """Return the mean logit Σ p·x of a block, for probabilities p and logits x; terms with x = −∞, p = 0 are 0."""
    total = np.float32(0)
    for i in range(p.shape[0]):
        total += p[i] * (x[i] if x[i] > np.float32(-1e30) else np.float32(-1e30))
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def top_and_entropy(x, p, heat, top, p_top, entropy, taken):
    """Compute the k most likely tokens of each distribution (ties: lower token first) and its entropy in nats.

    Any number of threads may call this with the same arrays; each takes the next free row (see `work_sharing`).

    Inputs:
        x: float32 [n, V], logits before temperature.
        p: float32 [n, V], distributions; V ≥ k.
        heat: temperature; 1 if there is none.
        top: int64 [n, k], written: the tokens, in descending order of probability.
        p_top: float32 [n, k], written: the probabilities of these tokens. NaN entries of p are skipped; −1 if fewer
            than k numbers remain.
        entropy: float32 [n], written: log Z − Σ p·score, with log Z computed from the most likely token.
        taken: int64 [2], zeros: number of rows taken, number of rows done.
    """
    n, size = p.shape
    k = top.shape[1]
    row = take(taken, n)
    while row >= 0:
        p_top[row, :] = np.float32(-1)
        top[row, :] = 0
        mean, bits, top_bits = 0.0, p[row].view(np.int32), p_top[row].view(np.int32)
        for lo in range(0, size, BLOCK):
            hi = min(size, lo + BLOCK)
            mean += _product(p[row, lo:hi], x[row, lo:hi])
            if largest_of(bits[lo:hi]) > top_bits[k - 1]:  # also true for −1, whose bits are a negative integer
                for i in range(lo, hi):
                    if p[row, i] > p_top[row, k - 1]:
                        at = k - 1
                        while at > 0 and p[row, i] > p_top[row, at - 1]:
                            p_top[row, at], top[row, at] = p_top[row, at - 1], top[row, at - 1]
                            at -= 1
                        p_top[row, at], top[row, at] = p[row, i], i
        nats = (np.float64(x[row, top[row, 0]]) - mean) / heat - np.log(np.float64(p_top[row, 0]))
        entropy[row] = 0.0 if nats < 0 else nats
        done(taken)
        row = take(taken, n)
    wait(taken, n)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
@no_type_check
def _exponential_sums(x, most):
    """Return the two sums over logits x from which softmax and entropy follow.

    They are Σ exp(x − most) and Σ exp(x − most) · (x − most), where `most` is the largest logit. Logits below most − 87
    (also −∞) are clamped to most − 87: exp(−87) is about 1e-38.
    """
    total, product = np.float32(0), np.float32(0)
    for i in range(x.shape[0]):
        exponent = x[i] - most
        exponent = np.float32(-87) if exponent < np.float32(-87) else exponent  # NaN stays
        power = exp(exponent)
        total += power
        product += power * exponent
    return total, product


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _summarise_row(x, top, p_top, logs):
    """Summarise the softmax of one row of logits x, float32 [V].

    Writes the k most likely tokens to `top`, their probabilities to `p_top` and the logarithms to `logs`. Returns the
    largest logit m, Σ exp(x − m), and the entropy in nats.
    """
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
    n_top = k
    while n_top > 0 and p_top[n_top - 1] == -np.inf:
        n_top -= 1
    for i in range(size if n_top < k else 0):  # fewer than k finite logits: fill up with tokens of logit −∞
        if n_top < k and x[i] == -np.inf:
            top[n_top] = i
            n_top += 1
    largest_logit, total, product = p_top[0], 0.0, 0.0
    for lo in range(0, size, WIDER):
        hi = min(size, lo + WIDER)
        block_total, block_product = _exponential_sums(x[lo:hi], largest_logit)
        total += block_total
        product += block_product
    for i in range(k):
        log = np.float64(p_top[i] - largest_logit) - np.log(total)
        p_top[i], logs[i] = np.exp(log), 0.0 if log > 0 else log
    entropy = np.log(total) - product / total
    return largest_logit, total, 0.0 if entropy < 0 else entropy


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def summarise_softmax(x, top, p_top, logs, entropy, scale, taken):
    """Compute each row's k most likely tokens, entropy and softmax scale from logits without temperature.

    Any number of threads may call this with the same arrays; each takes the next free row (see `work_sharing`).

    Inputs:
        x: float32 [n, V], logits; V ≥ k.
        top: int64 [n, k], written: the tokens, in descending order; of equal logits the lower token first.
        p_top: float32 [n, k], written: the probabilities of these tokens.
        logs: float32 [n, k], written: logarithms of these probabilities.
        entropy: float32 [n], written: entropy in nats.
        scale: float64 [n, 2], written: largest logit m and Z = Σ exp(x − m); a token's probability is exp(x − m) / Z.
        taken: int64 [2], zeros: number of rows taken, number of rows done.
    """
    n = x.shape[0]
    row = take(taken, n)
    while row >= 0:
        scale[row, 0], scale[row, 1], entropy[row] = _summarise_row(x[row], top[row], p_top[row], logs[row])
        done(taken)
        row = take(taken, n)
    wait(taken, n)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def summarise_softmax_bf16(bits, top, p_top, logs, entropy, scale, taken):
    """Compute the same results as `summarise_softmax` from bfloat16 logits, given as their bits, int16 [n, V]."""
    n, size = bits.shape
    wide = np.empty(size, np.float32)
    row = take(taken, n)
    while row >= 0:
        widen(bits[row], wide.view(np.int32))
        scale[row, 0], scale[row, 1], entropy[row] = _summarise_row(wide, top[row], p_top[row], logs[row])
        done(taken)
        row = take(taken, n)
    wait(taken, n)

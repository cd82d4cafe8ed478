"""Search for the token weights by which the verifier `OptimalTwo` chooses one of two drafts to test."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.kernels.compiled.layer_steps import largest_of
from workbench.kernels.compiled.siblings import test
from workbench.kernels.compiled.work_sharing import done, take, wait

_NONE, _ONE, _TINY = np.float32(0), np.float32(1), np.finfo(np.float32).tiny
_NEARLY, _HALF = np.float32(1e-12), np.float32(0.5)
BLOCK = 128
"""Number of tokens per block in the search for the most likely tokens. A block is searched only if its largest
probability can be among the largest of all tokens."""
ADDED = 1024
"""Number of tokens per block of a sum over the vocabulary. A block is summed in float32, and the sums of blocks are
added in float64."""


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _find_largest(p, q, p_bits, q_bits, at, top):
    """Write the m tokens with the largest max(p, q) to `at`, int64 [m], in descending order (ties: lower token first).

    p and q are float32 [V]; `p_bits` and `q_bits` are their bits as int32; `top` is scratch memory, float32 [m].
    """
    size, last = p.shape[0], at.shape[0] - 1
    blocks, highest = np.empty((size + BLOCK - 1) // BLOCK, np.int32), np.zeros(last + 1, np.int32)
    for b in range(blocks.shape[0]):
        lo, hi = b * BLOCK, min(size, (b + 1) * BLOCK)
        blocks[b] = bits = max(largest_of(p_bits[lo:hi]), largest_of(q_bits[lo:hi]))
        i = last
        while i >= 0 and bits > highest[i]:
            if i < last:
                highest[i + 1] = highest[i]
            highest[i] = bits
            i -= 1
    least = highest[last]  # len(at) blocks have a token of at least this probability; skip all others
    for i in range(last + 1):
        top[i], at[i] = -_ONE, 0
    for b in range(blocks.shape[0]):
        if blocks[b] >= least:
            for x in range(b * BLOCK, min(size, (b + 1) * BLOCK)):
                prob = max(p[x], q[x])
                if prob > top[last]:
                    i = last
                    while i > 0 and prob > top[i - 1]:
                        top[i], at[i] = top[i - 1], at[i - 1]
                        i -= 1
                    top[i], at[i] = prob, x


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp"})
@no_type_check
def _token_sums(own, w, q, g):
    """Return two sums over all tokens j from which the probability that a token is chosen follows.

    They are Σⱼ qⱼ / (own + wⱼ) and Σⱼ gⱼ / (own + wⱼ), where w are the weights of all tokens and `own` is the token's
    weight. g is q / (1 − q) for drafts without replacement, else q.
    """
    from_q, from_g = _NONE, _NONE
    for j in range(w.shape[0]):
        inverse = _ONE / (own + w[j])
        from_q += q[j] * inverse
        from_g += g[j] * inverse
    return from_q, from_g


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp"})
@no_type_check
def _all_token_sums(w, q, g, from_q, from_g):
    """Compute for each token i the two sums from which the probability that it is chosen follows.

    They are wᵢ · Σⱼ qⱼ / (wᵢ + wⱼ) and wᵢ · Σⱼ gⱼ / (wᵢ + wⱼ) over all j ≠ i, where w are the tokens' weights, and g is
    q / (1 − q) for drafts without replacement, else q. The sums are written to `from_q` and `from_g`.
    """
    for i in range(w.shape[0]):
        own_q, own_g = q[i], g[i]
        q[i] = g[i] = _NONE
        by_q, by_g = _token_sums(w[i], w, q, g)
        q[i], g[i] = own_q, own_g
        from_q[i], from_g[i] = w[i] * by_q, w[i] * by_g


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _search_weights(p, q, g, inside, steps, most, best, from_q, from_g):
    """Search for the token weights w with the largest acceptance probability Σ min(p, r).

    r is the distribution of the chosen draft for the weights w. The search iterates w ← w · p / r for `steps` steps. It
    writes the best weights to `best`, and the results of `_all_token_sums` for these weights to `from_q` and `from_g`.
    """
    size = p.shape[0]
    w, r = np.ones(size, np.float32), np.empty(size, np.float32)
    best_acceptance = -_ONE
    for _ in range(steps + 1):
        _all_token_sums(w, q, g, from_q, from_g)
        acceptance = _NONE
        for i in range(size):
            r[i] = g[i] * from_q[i] + q[i] * from_g[i] + inside[i]
            acceptance += min(p[i], r[i])
        if acceptance > best_acceptance:
            best_acceptance = acceptance
            for i in range(size):
                best[i] = w[i]
        for i in range(size):
            if q[i] > 0:
                w[i] = min(max(w[i] * (max(p[i], _TINY) / max(r[i], _TINY)), _ONE / most), most)
    _all_token_sums(best, q, g, from_q, from_g)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _assign_groups(p_bits, q_bits, groups, of):
    """Group tokens by the ratio p / q, two groups per factor of 2; write each token's group, 0 … `groups` − 1, to `of`.

    The groups are those of `workbench.methods.verifiers.optimal_two.group`, computed from the bits of p and q, int32
    [V].
    """
    for x in range(p_bits.shape[0]):
        octaves = ((p_bits[x] - q_bits[x]) >> 22) + (groups - 3)
        of[x] = min(max(octaves, 0), groups - 1)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def _equal_pair_probs(q, found):
    """Compute q² / (1 − q) for each token's draft probability q, and write it to `found`, float32 [V].

    1 − q is clamped to at least 1e-12.
    """
    for x in range(q.shape[0]):
        complement = _ONE - q[x]
        found[x] = q[x] * q[x] / (complement if complement > _NEARLY else _NEARLY)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _sum_two_by_group(one, two, of, into):
    """Sum the probabilities of two distributions by group of tokens, and add the sums to the two rows of `into`.

    `of` is the group of each token. Each sum has eight partial sums, over every eighth token: neighbouring tokens are
    often in the same group, and with a single sum each addition would wait for the previous one.
    """
    banks, n_full = np.zeros((8, into.shape[1], 2), np.float32), one.shape[0] - one.shape[0] % 8
    for x in range(0, n_full, 8):
        for i in range(8):
            g, p, q = of[x + i], one[x + i], two[x + i]
            p, q = p + banks[i, g, 0], q + banks[i, g, 1]
            banks[i, g, 0], banks[i, g, 1] = p, q
    for x in range(n_full, one.shape[0]):
        banks[0, of[x], 0] += one[x]
        banks[0, of[x], 1] += two[x]
    for i in range(8):
        for g in range(into.shape[1]):
            into[0, g] += banks[i, g, 0]
            into[1, g] += banks[i, g, 1]


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _sum_one_by_group(probs, of, into):
    """Sum the probabilities of a distribution by group of tokens, and add the sums to `into`.

    `of` is the group of each token.
    """
    banks, n_full = np.zeros((8, into.shape[0]), np.float32), probs.shape[0] - probs.shape[0] % 8
    for x in range(0, n_full, 8):
        for i in range(8):
            banks[i, of[x + i]] += probs[x + i]
    for x in range(n_full, probs.shape[0]):
        banks[0, of[x]] += probs[x]
    for i in range(8):
        for g in range(into.shape[0]):
            into[g] += banks[i, g]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def _chosen_distribution_without(q, of, q_all, g_all, from_q, from_g, r):
    """Compute the distribution r of the draft that the verifier `OptimalTwo` chooses from two without replacement.

    r is written in place. On entry it contains q² / (1 − q), so that q / (1 − q) = q + r.
    """
    half_q, half_g = from_q + _HALF * q_all, from_g + _HALF * g_all
    for x in range(q.shape[0]):
        r[x] = (q[x] + r[x]) * (half_q[of[x]] - q[x]) + q[x] * half_g[of[x]]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def _chosen_distribution(q, of, q_all, from_q, from_g, r):
    """Compute the distribution r of the draft that the verifier `OptimalTwo` chooses from two independent drafts."""
    factor = from_q + from_g + q_all
    for x in range(q.shape[0]):
        r[x] = q[x] * factor[of[x]]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _residual_weights(p, r, rest):
    """Compute the residual weights (p − r)₊, write them to `rest`, and return their sum; all arrays are float32 [V]."""
    total = _NONE
    for x in range(p.shape[0]):
        excess = p[x] - r[x]
        rest[x] = excess if excess > _NONE else _NONE
        total += rest[x]
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _improve_position(p, q, p_bits, q_bits, at, without, steps, most, of, weight, r):
    """Search for the token weights by which the verifier `OptimalTwo` chooses one of two drafts, at one tree position.

    The m tokens in `at` have individual weights; all other tokens form G groups, and the tokens of a group share one
    weight. Writes to `weight` the weights of the groups, then those of the tokens in `at`; to `of`, for each token, the
    index of its weight; to `r`, the distribution of the chosen draft. `improve` describes the other arguments.
    """
    m, groups = at.shape[0], weight.shape[0] - at.shape[0]
    sums = np.zeros((7, groups + m), np.float32)
    _assign_groups(p_bits, q_bits, groups, of)
    _find_largest(p, q, p_bits, q_bits, at, np.empty(m, np.float32))
    for i in range(m):
        of[at[i]] = groups + i
    _sum_two_by_group(p, q, of, sums[:2])
    if without:  # q / (1 − q) = q + q² / (1 − q); q² / (1 − q) stands for pairs of equal tokens, which cannot occur
        _equal_pair_probs(q, r)
        _sum_one_by_group(r, of, sums[3])
    for i in range(groups + m):
        sums[2, i] = sums[1, i] + sums[3, i]
        sums[6, i] = sums[1, i] * sums[2, i] - sums[3, i]
    _search_weights(sums[0], sums[1], sums[2], sums[6], steps, most, weight, sums[4], sums[5])
    if without:
        _chosen_distribution_without(q, of, sums[1], sums[2], sums[4], sums[5], r)
    else:
        _chosen_distribution(q, of, sums[1], sums[4], sums[5], r)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def improve(p, q, p_bits, q_bits, at, without, steps, most, best, r, taken):
    """Find the token weights by which the verifier `OptimalTwo` chooses one of two drafts, and its distribution.

    The weights are those with the largest acceptance probability that the search finds. Any number of threads may call
    this with the same arrays; each takes the next free row (see `work_sharing`).

    Inputs:
        p: float32 [R, V], the target's distributions.
        q: float32 [R, V], the drafter's distributions.
        p_bits: int32 [R, V], bits of p.
        q_bits: int32 [R, V], bits of q.
        at: int64 [R, m], written: tokens with individual weights, those with the largest max(p, q).
        without: whether the two drafts were drawn without replacement, so that they differ.
        steps: number of iterations.
        most: largest weight, float32; the smallest weight is 1 / most.
        best: float32 [R, m + G], written: weights of the tokens in `at`, then of the G groups of all other tokens.
        r: float32 [R, V], written: distribution of the chosen draft.
        taken: int64 [2], zeros: number of rows taken, number of rows done.
    """
    n, size = p.shape
    m, groups = at.shape[1], best.shape[1] - at.shape[1]
    group_ids, weight = np.empty(size, np.uint16), np.empty(groups + m, np.float32)
    row = take(taken, n)
    while row >= 0:
        _improve_position(
            p[row], q[row], p_bits[row], q_bits[row], at[row], without, steps, most, group_ids, weight, r[row]
        )
        for i in range(groups + m):
            best[row, i] = weight[(i + groups) % (groups + m)]
        done(taken)
        row = take(taken, n)
    wait(taken, n)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def verify_pairs(
    p,
    p_at,
    q,
    q_at,
    p_bits,
    q_bits,
    token,
    there,
    free,
    groups,
    without,
    steps,
    most,
    kept,
    ends,
    beside,
    left,
    taken,
):
    """Compute the acceptance probabilities of up to two drafts at each tree position under the verifier `OptimalTwo`.

    Inputs that `siblings.verify_siblings` and `improve` do not describe:
        free: number of tokens with individual weights.
        groups: number of groups of the tokens without individual weights.
        kept: float32 [R, F], written: probability that each child is the accepted one.
        ends: float32 [R, F], written: probabilities of the children's tokens in the residual distribution.
        beside: float32 [R], written: total probability of all other tokens in the residual distribution.
        left: float32 [R, V], written: the residual distribution; or [0, V].
        taken: int64 [2], zeros: number of positions taken, number of positions done.
    """
    (n, f), size = token.shape, p.shape[1]
    group_ids, weight, at = np.empty(size, np.uint16), np.empty(groups + free, np.float32), np.empty(free, np.int64)
    chosen_probs, residual, figures = (
        np.empty(size, np.float32),
        np.empty(size, np.float32),
        np.empty((f, 4), np.float32),
    )
    near, empty, is_later = np.empty((f, 0), np.int64), np.empty(0, np.float32), np.empty(f, np.bool_)
    row = take(taken, n)
    while row >= 0:
        target_probs, draft_probs, x, first = p[p_at[row]], q[q_at[row]], token[row], 1.0
        if f > 1 and there[row, 1]:
            bits = p_bits[p_at[row]], q_bits[q_at[row]]
            _improve_position(
                target_probs, draft_probs, bits[0], bits[1], at, without, steps, most, group_ids, weight, chosen_probs
            )
            w, w_other = np.float64(weight[group_ids[x[0]]]), np.float64(weight[group_ids[x[1]]])
            first = w / (w + w_other)
        else:
            for i in range(size):
                chosen_probs[i] = draft_probs[i]
        for i in range(f):
            kept[row, i] = _NONE
        if there[row, 0]:
            kept[row, 0] = first * min(1.0, target_probs[x[0]] / max(chosen_probs[x[0]], _TINY))
        if f > 1 and there[row, 1]:
            kept[row, 1] = (1 - first) * min(1.0, target_probs[x[1]] / max(chosen_probs[x[1]], _TINY))
        total = 0.0
        for lo in range(0, size, ADDED):
            total += _residual_weights(
                target_probs[lo : lo + ADDED], chosen_probs[lo : lo + ADDED], residual[lo : lo + ADDED]
            )
        if total <= 0:  # occurs with probability 0
            total = 1.0
            for i in range(size):
                residual[i] = target_probs[i]
        for i in range(f):
            is_later[i] = i > 1 and there[row, i]
        sums = test(
            residual, total, draft_probs, x, there[row], is_later, near, _NONE, _NONE, 1.0, without, figures, ends[row],
            left[row] if left.shape[0] > 0 else empty, False,
        )  # fmt: skip
        beside[row] = sums[0]
        reject_prob = 1.0 - (kept[row, 0] + (kept[row, 1] if f > 1 else _NONE))
        for i in range(2, f):
            kept[row, i] = reject_prob * figures[i, 0]
            reject_prob *= 1 - figures[i, 0]
        done(taken)
        row = take(taken, n)
    wait(taken, n)

"""Test siblings one after the other at each tree position; each test reads the distributions p and q once.

A rejection subtracts c · q from the residual, and ((p − C · q)₊ − c · q)₊ = (p − (C + c) · q)₊. So after any number of
rejections the residual is (p − C · q)₊ at all tokens except the drafted tokens and their neighbours. The scalar C
replaces an array of the vocabulary's size. Drafted tokens and their neighbours are tracked one by one; the code calls
them `special`.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.kernels.compiled.work_sharing import done, take, wait

BLOCK = 1024
"""Number of tokens per block of a sum over the vocabulary. A block is summed in float32, and the sums of blocks are
added in float64."""
_NONE, _TINY = np.float32(0), np.finfo(np.float32).tiny


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_residual_mass(p, q, by):
    """Return the residual mass Σ (p − by · q)₊ of one block of tokens; p and q are float32 arrays."""
    total = _NONE
    for i in range(p.shape[0]):
        excess = p[i] - by * q[i]
        total += excess if excess > _NONE else _NONE
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_sum(q):
    total = _NONE
    for i in range(q.shape[0]):
        total += q[i]
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def _write_residual(p, q, by, over, left):
    """Compute over · (p − by · q)₊ for each token of a block, and write this residual to `left`, a float32 array."""
    for i in range(p.shape[0]):
        excess = p[i] - by * q[i]
        left[i] = (excess if excess > _NONE else _NONE) * over


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def _add_residual(p, q, by, weight, out):
    """Compute the weighted residual weight · (p − by · q)₊ of each token of a block, and add it to `out`.

    p, q and `out` are float32 arrays.
    """
    for i in range(p.shape[0]):
        excess = p[i] - by * q[i]
        out[i] += weight * (excess if excess > _NONE else _NONE)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_distance_of_one(p, q, own, by, weight):
    """Return the contribution of one block of tokens to the result of `_residual_distance`, for one residual (n = 2).

    It is Σ |own · p + weight · (p − by · q)₊|; p and q are float32 arrays.
    """
    total = _NONE
    for i in range(p.shape[0]):
        excess = p[i] - by * q[i]
        total += abs(own * p[i] + weight * (excess if excess > _NONE else _NONE))
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_distance_of_four(p, q, own, by, weight):
    """Return the contribution of one block of tokens to the result of `_residual_distance`, for up to four residuals.

    It is Σ |own · p + Σᵢ weightᵢ · (p − byᵢ · q)₊|; `by` and `weight` are float32 [4].
    """
    total, a, b, c, d = _NONE, by[0], by[1], by[2], by[3]
    for i in range(p.shape[0]):
        one, two, three, four = p[i] - a * q[i], p[i] - b * q[i], p[i] - c * q[i], p[i] - d * q[i]
        far = own * p[i] + weight[0] * (one if one > _NONE else _NONE) + weight[1] * (two if two > _NONE else _NONE)
        far += weight[2] * (three if three > _NONE else _NONE) + weight[3] * (four if four > _NONE else _NONE)
        total += abs(far)
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _block_l1_norm(x):
    """Return the L1 norm Σ |x| of a float32 array x."""
    total = _NONE
    for i in range(x.shape[0]):
        total += abs(x[i])
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def residual_mass(p, q, by, special):
    """Return the residual mass Σ (p − by · q)₊ over all tokens outside `special`.

    p and q are float32 [V], `by` is a float32; `special` is a sorted array of token ids without duplicates.
    """
    total, lo = 0.0, 0
    for s in range(special.shape[0] + 1):
        end = special[s] if s < special.shape[0] else p.shape[0]
        while lo < end:
            hi = min(end, lo + BLOCK)
            total += _block_residual_mass(p[lo:hi], q[lo:hi], by)
            lo = hi
        lo = end + 1
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def others(q, special):
    """Return the draft probability Σ q of all tokens outside `special`, a sorted array of distinct token ids.

    q is float32 [V].
    """
    total, lo = 0.0, 0
    for s in range(special.shape[0] + 1):
        end = special[s] if s < special.shape[0] else q.shape[0]
        while lo < end:
            hi = min(end, lo + BLOCK)
            total += _block_sum(q[lo:hi])
            lo = hi
        lo = end + 1
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _residual_distance(p, q, special, by, weight, n):
    """Return the L1 distance between p and the distribution of the emitted token, over the tokens outside `special`.

    The distribution of the emitted token is a weighted sum of n residuals, so the distance is Σ |Σᵢ weightᵢ · (p − byᵢ
    · q)₊ − p|, with the outer sum over tokens and the inner sum over i < n. p and q are float32 [V]; by₀ is 0.
    """
    total, lo, own_weight, scratch = 0.0, 0, np.float32(weight[0] - 1), np.empty(BLOCK, np.float32)
    terms = np.zeros((2, 4), np.float32)
    for i in range(1, min(n, 5)):
        terms[0, i - 1], terms[1, i - 1] = by[i], weight[i]
    for s in range(special.shape[0] + 1):
        end = special[s] if s < special.shape[0] else p.shape[0]
        while lo < end:
            hi = min(end, lo + BLOCK)
            if n == 2:
                total += _block_distance_of_one(p[lo:hi], q[lo:hi], own_weight, terms[0, 0], terms[1, 0])
            elif n <= 5:
                total += _block_distance_of_four(p[lo:hi], q[lo:hi], own_weight, terms[0], terms[1])
            else:
                out = scratch[: hi - lo]
                for i in range(hi - lo):
                    out[i] = own_weight * p[lo + i]
                for i in range(1, n):
                    _add_residual(p[lo:hi], q[lo:hi], np.float32(by[i]), np.float32(weight[i]), out)
                total += _block_l1_norm(out)
            lo = hi
        lo = end + 1
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def put(special, n, token):
    """Insert a token into an array with n sorted token ids, unless the array contains it already; return the new n."""
    at = n
    while at > 0 and special[at - 1] >= token:
        at -= 1
    if at < n and special[at] == token:
        return n
    for i in range(n, at, -1):
        special[i] = special[i - 1]
    special[at] = token
    return n + 1


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def place_of(special, token):
    """Return the index of a token in an array of token ids that contains it."""
    at = 0
    while special[at] != token:
        at += 1
    return at


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def test(probs, total, ahead, token, there, tested, near, mass, ratio, share, without, figures, ends, left, priced):
    """Test the siblings at one tree position by relaxed recursive rejection.

    `probs`, float32 [V], are the target's unnormalised probabilities with the sum `total`; `ahead`, float32 [V], is the
    draft distribution; `priced` says whether to compute the total variation distance. `verify_siblings` describes all
    other arguments; here they are the entries of one position. Returns the residual probability of all tokens but the
    children's, and the total variation distance; each is 0 if not requested.
    """
    f, k = near.shape
    to_end = priced or ends.shape[0] > 0 or left.shape[0] > 0
    buffer, m, last = np.empty(f * (k + 1), np.int64), 0, -1
    for i in range(f):
        figures[i, 0] = figures[i, 1] = figures[i, 2] = figures[i, 3] = _NONE
        if there[i]:
            m = put(buffer, m, token[i])
            if tested[i]:
                last = i
                for j in range(k):
                    m = put(buffer, m, near[i, j])
    special = buffer[:m]
    value, new_value, out, draft_probs, is_removed = (
        np.empty(m),
        np.empty(m),
        np.empty(m),
        np.empty(m),
        np.zeros(m, np.bool_),
    )
    for s in range(m):
        value[s], draft_probs[s], out[s] = probs[special[s]], ahead[special[s]], -probs[special[s]]
    by, weight = np.zeros(f + 2), np.zeros(f + 2)
    q_factor, q_total, reach_prob, terms = 0.0, 1.0, 1.0, 1
    other_q = -1.0  # Σ q over the other tokens, computed at first use
    for i in range(last + 1):
        if not there[i]:
            continue
        at = place_of(special, token[i])
        if tested[i]:
            q_x = 0.0 if is_removed[at] or q_total <= 0 else draft_probs[at] / q_total
            for s in range(m):
                new_value[s] = value[s]
            neighbour_mass, bound = 0.0, np.float32(mass + ratio * value[at] / total)
            for j in range(k):
                neighbour = place_of(special, near[i, j])
                if np.float32((neighbour_mass + value[neighbour]) / total) > bound:
                    break
                neighbour_mass += value[neighbour]
                new_value[neighbour] = 0.0
            new_value[at] = value[at] + neighbour_mass
            raised_prob = new_value[at] / (total * share)
            figures[i, 0], figures[i, 1] = min(1.0, raised_prob / max(q_x, _TINY)), value[at] / total
            figures[i, 2], figures[i, 3] = q_x, raised_prob
            if i == last and not to_end:
                break
            step = share * total / q_total if q_total > 0 else 0.0
            residual_total = residual_mass(probs, ahead, np.float32(q_factor + step), special)
            scale = reach_prob / (total * share)
            for s in range(m):
                residual = max(0.0, new_value[s] - (0.0 if is_removed[s] else step * draft_probs[s]))
                out[s] += scale * (new_value[s] - residual)  # accepted mass: min(q, a) = a − (a − q)₊
                new_value[s] = residual
                residual_total += residual
            weight[terms - 1] += scale
            reach_prob *= min(1.0, max(0.0, 1 - (total - residual_total) / (total * share)))
            if residual_total > 0:
                q_factor, total = q_factor + step, residual_total
                by[terms], weight[terms] = q_factor, -scale
                terms += 1
                for s in range(m):
                    value[s] = new_value[s]
        if without and i < last:
            if other_q < 0:
                other_q = others(ahead, special)
            remaining_q = other_q
            for s in range(m):
                remaining_q += 0.0 if s == at or is_removed[s] else draft_probs[s]
            if remaining_q > 0 or not tested[i]:
                is_removed[at], q_total = True, remaining_q
    other_mass, distance = 0.0, 0.0
    if ends.shape[0] > 0:
        for i in range(f):
            ends[i] = value[place_of(special, token[i])] / total if there[i] else 0.0
        other_mass = residual_mass(probs, ahead, np.float32(q_factor), special) / total
    if left.shape[0] > 0:
        _write_residual(probs, ahead, np.float32(q_factor), np.float32(1 / total), left)
        for s in range(m):
            left[special[s]] = value[s] / total
    if priced:
        weight[terms - 1] += reach_prob / total
        distance = _residual_distance(probs, ahead, special, by, weight, terms)
        for s in range(m):
            distance += abs(out[s] + reach_prob * value[s] / total)
    return other_mass, distance / 2


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def verify_siblings(
    p,
    p_at,
    q,
    q_at,
    token,
    there,
    tested,
    near,
    mass,
    ratio,
    share,
    without,
    figures,
    ends,
    beside,
    left,
    apart,
    taken,
):
    """Verify siblings drawn from one distribution by relaxed recursive rejection (`core.relaxed.relaxed_rejection`).

    The rule is exact if `share` is 1 and `near` is empty. Any number of threads may call this with the same arrays;
    each takes the next free position (see `work_sharing`).

    Inputs:
        p: float32 [m, V], the target's distributions.
        p_at: int64 [R], row of p for each position.
        q: float32 [M, V], the drafter's distributions.
        q_at: int64 [R], row of q for each position.
        token: int64 [R, F], tokens drafted at each position, in the order of testing.
        there: bool [R, F], whether the child exists.
        tested: bool [R, F], whether the child is tested. Untested children before the last tested child are skipped; if
            `without` is true, their tokens are removed from q, as those of tested children are.
        near: int64 [R, F, K], neighbour tokens whose probability is added to the child's, nearest first.
        mass: float32, bound δ of the added probability; with `ratio`, see `workbench.core.relaxed.Lift`.
        ratio: float32, λ′ of `Lift`.
        share: λ of `Lift`, which divides the residual distribution.
        without: whether siblings were drawn without replacement.
        figures: float32 [R, F, 4], written for tested children, 0 for other children: acceptance probability; the
            token's probability in the residual distribution after its earlier siblings; its probability in q after
            removing earlier siblings; the raised probability against which it was tested.
        ends: float32 [R, F], written: probabilities of the children's tokens in the residual distribution after all
            rejections; [0, F] if not requested.
        beside: float32 [R], written: total probability of all other tokens in the residual distribution; [0] if not
            requested.
        left: float32 [R, V], written: the residual distribution; [0, V] if not requested.
        apart: float32 [R], written: `total_variation` of `workbench.core.relaxed.RelaxedResult`; [0] if not requested.
        taken: int64 [2], zeros: number of positions taken, number of positions done.
    """
    n, empty = token.shape[0], np.empty(0, np.float32)
    row = take(taken, n)
    while row >= 0:
        sums = test(
            p[p_at[row]], 1.0, q[q_at[row]], token[row], there[row], tested[row], near[row], mass, ratio, share,
            without, figures[row], ends[row] if ends.shape[0] > 0 else empty,
            left[row] if left.shape[0] > 0 else empty, apart.shape[0] > 0,
        )  # fmt: skip
        if beside.shape[0] > 0:
            beside[row] = sums[0]
        if apart.shape[0] > 0:
            apart[row] = sums[1]
        done(taken)
        row = take(taken, n)
    wait(taken, n)

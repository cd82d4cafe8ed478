"""Siblings tested one after the other, place by place, in one pass over the vocabulary a test; nothing wide is kept.

What tests leave of a law is (p − C · q)₊ at all tokens that no test looks at, whatever their number: a rejection takes
c · q off, and ((p − C · q)₊ − c · q)₊ is (p − (C + c) · q)₊. So C is all that is kept of them, and what tests look at,
drafted tokens and their neighbours, is followed token by token.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from workbench.engine.compiled.sharing import done, take, wait

BLOCK = 1024
"""Columns that are added up in float32; their sums are in float64."""
_NONE, _TINY = np.float32(0), np.finfo(np.float32).tiny


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _beyond(p, q, by):
    total = _NONE
    for i in range(p.shape[0]):
        more = p[i] - by * q[i]
        total += more if more > _NONE else _NONE
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _added(q):
    total = _NONE
    for i in range(q.shape[0]):
        total += q[i]
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def _leave(p, q, by, over, left):
    for i in range(p.shape[0]):
        more = p[i] - by * q[i]
        left[i] = (more if more > _NONE else _NONE) * over


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
@no_type_check
def _weigh(p, q, by, weight, out):
    for i in range(p.shape[0]):
        more = p[i] - by * q[i]
        out[i] += weight * (more if more > _NONE else _NONE)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _far(p, q, own, by, weight):
    """Σ |own · p + weight · (p − by · q)₊|."""
    total = _NONE
    for i in range(p.shape[0]):
        more = p[i] - by * q[i]
        total += abs(own * p[i] + weight * (more if more > _NONE else _NONE))
    return total


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
@no_type_check
def _length(x):
    total = _NONE
    for i in range(x.shape[0]):
        total += abs(x[i])
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def left_over(p, q, by, special):
    """Σ (p − by · q)₊ over the tokens that are not `special`, which rise and differ; p, q float32 [V], by float32."""
    total, lo = 0.0, 0
    for s in range(special.shape[0] + 1):
        end = special[s] if s < special.shape[0] else p.shape[0]
        while lo < end:
            hi = min(end, lo + BLOCK)
            total += _beyond(p[lo:hi], q[lo:hi], by)
            lo = hi
        lo = end + 1
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def others(q, special):
    """Σ q over the tokens that are not `special`."""
    total, lo = 0.0, 0
    for s in range(special.shape[0] + 1):
        end = special[s] if s < special.shape[0] else q.shape[0]
        while lo < end:
            hi = min(end, lo + BLOCK)
            total += _added(q[lo:hi])
            lo = hi
        lo = end + 1
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def _apart(p, q, special, by, weight, n, space):
    """Σ |Σᵢ weightᵢ · (p − byᵢ · q)₊ − p| over the tokens that are not `special`, of the first n of both; by₀ is 0."""
    total, lo, own = 0.0, 0, np.float32(weight[0] - 1)
    for s in range(special.shape[0] + 1):
        end = special[s] if s < special.shape[0] else p.shape[0]
        while lo < end:
            hi = min(end, lo + BLOCK)
            if n == 2:
                total += _far(p[lo:hi], q[lo:hi], own, np.float32(by[1]), np.float32(weight[1]))
            else:
                out = space[: hi - lo]
                out[:] = own * p[lo:hi]
                for i in range(1, n):
                    _weigh(p[lo:hi], q[lo:hi], np.float32(by[i]), np.float32(weight[i]), out)
                total += _length(out)
            lo = hi
        lo = end + 1
    return total


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def put(special, n, token):
    """Put a token into its place among the first n, which rise, unless it is there; how many there are now."""
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
    """Where a token stands that is among them."""
    at = 0
    while special[at] != token:
        at += 1
    return at


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def judge(
    p, p_at, q, q_at, token, there, tested, near, mass, share, without, figures, ends, beside, left, apart, taken
):
    """What `workbench.core.relaxed` says of siblings that one law was drawn from; with share 1, and none near, exact.

    Any number of threads run it on the same arrays, as in `forward`: each takes the next place that nobody has.

    What it takes:
        p: float32 [m, V], laws of the target.
        p_at: int64 [R], row of p of each place.
        q: float32 [M, V], laws of the drafter.
        q_at: int64 [R], row of q of each place.
        token: int64 [R, F], drafted for each place, in the order of testing.
        there: bool [R, F], whether there is such a child.
        tested: bool [R, F], whether it is tested. What is not, and comes before all that is, is passed over; of q it is
            taken out with the others.
        near: int64 [R, F, K], tokens that lend what they have to it, nearest first.
        mass: most that they lend.
        share: by which q counts.
        without: whether children were drawn without their elders.
        figures: float32 [R, F, 4], written for tested children, 0 of others: the chance of being kept; what elders
            left at the token, of 1; its chance in q without them; what it was tested with.
        ends: float32 [R, F], written: the law at the children's tokens if none was kept; or [0, F].
        beside: float32 [R], written: what that law has beside them; or [0].
        left: float32 [R, V], written: that law; or [0, V].
        apart: float32 [R], written: see `workbench.core.relaxed.Relaxed.apart`; or [0].
        taken: int64 [2], zeros: places that were taken, places that are done.
    """
    n, f = token.shape
    k = near.shape[2]
    to_end, priced = ends.shape[0] > 0 or left.shape[0] > 0 or apart.shape[0] > 0, apart.shape[0] > 0
    space = np.empty(f * (k + 1), np.int64)
    value, asked, out = np.empty(f * (k + 1)), np.empty(f * (k + 1)), np.empty(f * (k + 1))
    chance, gone = np.empty(f * (k + 1)), np.empty(f * (k + 1), np.bool_)
    by, weight, block = np.empty(f + 2), np.empty(f + 2), np.empty(BLOCK, np.float32)
    row = take(taken, n)
    while row >= 0:
        law, ahead = p[p_at[row]], q[q_at[row]]
        m, last = 0, -1
        for i in range(f):
            if there[row, i]:
                m = put(space, m, token[row, i])
                if tested[row, i]:
                    last = i
                    for j in range(k):
                        m = put(space, m, near[row, i, j])
        special = space[:m]
        for s in range(m):
            value[s], chance[s] = law[special[s]], ahead[special[s]]
            gone[s], out[s] = False, -value[s]
        total, off, of_q, reach, terms = 1.0, 0.0, 1.0, 1.0, 1
        by[0] = weight[0] = 0.0
        rest_q = -1.0  # what q gives to all others, once somebody asks
        for i in range(f):
            figures[row, i, :] = _NONE
            if not there[row, i] or i > last:
                continue
            at = place_of(special, token[row, i])
            if tested[row, i]:
                ahead_x = 0.0 if gone[at] or of_q <= 0 else chance[at] / of_q
                asked[:m] = value[:m]
                lent = 0.0
                for j in range(k):
                    other = place_of(special, near[row, i, j])
                    if np.float32((lent + value[other]) / total) > mass:
                        break
                    lent += value[other]
                    asked[other] = 0.0
                asked[at] = value[at] + lent
                with_ = asked[at] / (total * share)
                figures[row, i, 0] = min(1.0, with_ / max(ahead_x, _TINY))
                figures[row, i, 1] = value[at] / total
                figures[row, i, 2] = ahead_x
                figures[row, i, 3] = with_
                if i == last and not to_end:
                    continue
                step = share * total / of_q if of_q > 0 else 0.0
                over = left_over(law, ahead, np.float32(off + step), special)
                for s in range(m):
                    rest = asked[s] - (0.0 if gone[s] else step * chance[s])
                    rest = rest if rest > 0 else 0.0
                    if priced:
                        out[s] += reach * (asked[s] - rest) / (total * share)
                    asked[s] = rest
                    over += rest
                if priced:
                    scale = reach / (total * share)  # what was kept is min(q, what it was tested with), a difference
                    weight[terms - 1] += scale
                    if over > 0:
                        by[terms], weight[terms] = off + step, -scale
                        terms += 1
                    reach *= min(1.0, max(0.0, 1 - (total - over) / (total * share)))
                if over > 0:
                    off, total = off + step, over
                    value[:m] = asked[:m]
            if without and i < last:
                if rest_q < 0:
                    rest_q = others(ahead, special)
                among = rest_q
                for s in range(m):
                    if s != at and not gone[s]:
                        among += chance[s]
                if among > 0 or not tested[row, i]:
                    gone[at], of_q = True, among
        if ends.shape[0] > 0:
            for i in range(f):
                ends[row, i] = value[place_of(special, token[row, i])] / total if there[row, i] else 0.0
            beside[row] = left_over(law, ahead, np.float32(off), special) / total
        if left.shape[0] > 0:
            _leave(law, ahead, np.float32(off), np.float32(1 / total), left[row])
            for s in range(m):
                left[row, special[s]] = value[s] / total
        if priced:
            weight[terms - 1] += reach / total
            found = _apart(law, ahead, special, by, weight, terms, block)
            for s in range(m):
                found += abs(out[s] + reach * value[s] / total)
            apart[row] = found / 2
        done(taken)
        row = take(taken, n)
    wait(taken, n)

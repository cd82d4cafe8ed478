"""What theory says a run should give: tokens a round, the best draft length, the most that several drafts can achieve.

Everything here is arithmetic on plain numbers and small arrays, so that pages, reports and notebooks can draw it over
what was measured.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import bisect, linprog

from workbench.core.errors import ParameterError

Law = Sequence[float] | np.ndarray
"""Probabilities of all tokens, in one order; they sum to 1."""

MOST_TUPLES = 50_000
"""Tuples of drafts that the linear program and the recursion are willing to enumerate."""

# -- Tokens a round, and the draft length ------------------------------------------------------------------------------


def expected_tau(rate: float, depth: float) -> float:
    """Tokens a round if every draft of a chain is accepted with the same probability, whatever came before.

    Args:
        rate: that probability, 0 to 1.
        depth: drafts a round; a fraction stands for a mean of several lengths.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1.

    Example:
        >>> round(expected_tau(0.7, 5), 4)
        2.9412
    """
    return depth + 1.0 if rate >= 1.0 else (1.0 - rate ** (depth + 1)) / (1.0 - rate)


def tau_by_position(rates: Sequence[float]) -> float:
    """Tokens a round if the draft at position i is accepted with probability `rates[i]` given all before it.

    Example:
        >>> tau_by_position([0.5, 0.5])
        1.75
    """
    return 1.0 + sum(itertools.accumulate(rates, lambda a, b: a * b))


def accepted_law(rates: Sequence[float]) -> list[float]:
    """Probability of a round that accepts 0, 1, … len(rates) drafts, by the conditional acceptance at each position.

    Example:
        >>> accepted_law([0.5, 0.5])
        [0.5, 0.25, 0.25]
    """
    reached = [1.0, *itertools.accumulate(rates, lambda a, b: a * b)]
    return [a - b for a, b in itertools.pairwise([*reached, 0.0])]


def speedup(tau: float, draft_s: float, verify_s: float, overhead_s: float, plain_s: float) -> float:
    """Speed against plain decoding: tokens a round / cost of the round in plain steps. All times in seconds a round."""
    return tau * plain_s / (draft_s + verify_s + overhead_s)


@dataclass(frozen=True, slots=True)
class Best:
    """The draft length that a cost model prefers; 0 is plain decoding.

    Attributes:
        depth: drafts a round.
        tau: tokens a round there.
        speedup: against plain decoding.
    """

    depth: int
    tau: float
    speedup: float


def best_depth(
    rates: float | Sequence[float],
    draft_cost: float,
    verify_cost: Callable[[int], float] = lambda n: 1.0,
    overhead_cost: float = 0.0,
    beyond: float | None = None,
    most: int = 64,
) -> Best:
    """Draft length with the largest tokens a round / cost of the round.

    Args:
        rates: acceptance of every draft alike, or by position given all before.
        draft_cost: of one more draft, in plain steps.
        verify_cost: of a target pass over n tokens, in plain steps.
        overhead_cost: of everything else that a drafting round has and a plain step has not, in plain steps.
        beyond: acceptance at positions behind the last of `rates`; None: as at the last.
        most: longest draft considered.

    Source: Leviathan et al. 2023, arXiv:2211.17192, theorem 3.8, which has `verify_cost` 1 and `overhead_cost` 0.

    Example:
        >>> best = best_depth(0.8, 0.05)
        >>> best.depth, round(best.speedup, 4)
        (8, 3.0921)
    """
    given = [rates] if isinstance(rates, (int, float)) else list(rates)
    if not given:
        return Best(0, 1.0, 1.0)
    best = Best(0, 1.0, 1.0)
    for depth in range(1, most + 1):
        tau = tau_by_position([*given, *[given[-1] if beyond is None else beyond] * depth][:depth])
        gain = tau / (depth * draft_cost + verify_cost(depth + 1) + overhead_cost)
        if gain > best.speedup:
            best = Best(depth, tau, gain)
    return best


# -- Several drafts for one place --------------------------------------------------------------------------------------
# p is the target's law and q the drafter's, both [V]; n drafts are drawn from q.


def optimal_acceptance(p: Law, q: Law, n: int, replacement: bool = True) -> float:
    """The largest probability with which any exact rule can emit one of n drafts: the optimal-transport bound.

    By duality it is 1 + min over sets H of tokens of P(H) − Pr(all n drafts lie in H), and the best H is a prefix of
    the tokens in falling order of q/p. O(V log V) with replacement; without, an integral for each prefix.

    Args:
        p: target's law.
        q: drafter's law.
        n: drafts for the place.
        replacement: whether drafts are independent, or no two of them are equal.

    Source: Hu et al. 2025, arXiv:2502.18779; SpecTr, arXiv:2310.15141, for the transport problem.

    Example:
        >>> round(optimal_acceptance([0.5, 0.3, 0.15, 0.05], [0.1, 0.4, 0.3, 0.2], 2), 6)
        0.69
    """
    p_, q_ = _laws(p, q, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p_ > 0, q_ / p_, np.where(q_ > 0, np.inf, -np.inf)), kind="stable")
    inside = np.cumsum(p_[order])
    all_in = np.cumsum(q_[order]) ** n if replacement else _all_inside(q_[order], n)
    return float(min(1.0, 1.0 + min(0.0, float((inside - all_in).min()))))


_LOG_T = np.arange(-24.0, 36.0, 0.08)


def _all_inside(q: np.ndarray, n: int) -> np.ndarray:
    """Probability that n draws without replacement all lie among the first k tokens, for k = 1 … V.

    Draws without replacement are the first arrivals of an exponential race with rates q. All n lie in H when at least
    n tokens of H arrive before the first of the others, whose time is exponential with rate 1 − q(H). Substituting
    t = eʸ makes the trapezoid rule exact to rounding: the integrand is analytic and falls off at both ends.
    """
    t = np.exp(_LOG_T)
    step = _LOG_T[1] - _LOG_T[0]
    fewer = np.zeros((n, t.size))  # Pr[exactly j of the tokens so far arrived before t], j < n
    fewer[0] = 1.0
    found = np.zeros(q.size)
    outside = np.clip(1.0 - np.cumsum(q), 0.0, None)
    for k, rate in enumerate(q):
        arrived = -np.expm1(-rate * t)
        shifted = np.vstack([np.zeros_like(t), fewer[:-1]])
        fewer = fewer * (1.0 - arrived) + shifted * arrived
        if k + 1 < n:
            continue
        left = float(outside[k])
        if left < 1e-13 or not q[k + 1 :].any():
            found[k] = 1.0
        else:
            found[k] = float(np.sum((1.0 - fewer.sum(0)) * left * t * np.exp(-left * t)) * step)
    return np.clip(found, 0.0, 1.0)


def optimal_acceptance_lp(p: Law, q: Law, n: int, replacement: bool = True) -> float:
    """`optimal_acceptance` by the linear program itself, over the sets that n drafts can form: for small vocabularies.

    Raises:
        ParameterError: the vocabulary is too large to enumerate.
    """
    p_, q_ = _laws(p, q, n)
    sets = sorted(_sets(q_, n, replacement).items())
    pairs = [(s, token) for s, (members, _) in enumerate(sets) for token in members if p_[token] > 0]
    if not pairs:
        return 0.0
    rows = np.zeros((len(sets) + p_.size, len(pairs)))
    for column, (s, token) in enumerate(pairs):
        rows[s, column] = rows[len(sets) + token, column] = 1.0
    limits = np.concatenate([[mass for _, mass in sets], p_])
    solved = linprog(-np.ones(len(pairs)), A_ub=rows, b_ub=limits, bounds=(0, None), method="highs")
    return float(-solved.fun)


def _sets(q: np.ndarray, n: int, replacement: bool) -> dict[tuple[int, ...], float]:
    """Probability of each set of tokens that n draws can leave."""
    if q.size**n > MOST_TUPLES:
        raise ParameterError(
            f"{q.size} tokens and {n} drafts are too many to enumerate.", "Use optimal_acceptance, which needs no list."
        )
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for drawn in itertools.product(range(q.size), repeat=n):
        if not replacement and len(set(drawn)) < n:
            continue
        mass, left = 1.0, 1.0
        for token in drawn:
            mass *= q[token] / left if left > 0 else 0.0
            left = left if replacement else left - q[token]
        if mass > 0:
            found[tuple(sorted(set(drawn)))] += mass
    return found


def recursive_acceptance(p: Law, q: Law, n: int, replacement: bool = True) -> float:
    """Acceptance of n siblings tested one after the other against what the elder ones left of p.

    Source: with replacement SpecInfer, arXiv:2305.09781; without, recursive rejection sampling, arXiv:2402.14160.

    Raises:
        ParameterError: without replacement the vocabulary is too large to enumerate.
    """
    p_, q_ = _laws(p, q, n)
    if not replacement and q_.size ** (n - 1) > MOST_TUPLES:
        raise ParameterError(f"{q_.size} tokens and {n} drafts are too many to enumerate.", "Give a shorter law.")
    return _recursive(p_, q_, n, replacement)


def _recursive(p: np.ndarray, q: np.ndarray, n: int, replacement: bool) -> float:
    kept = float(np.minimum(p, q).sum())
    rest = np.clip(p - q, 0.0, None)
    if n == 1 or rest.sum() <= 0:
        return kept
    rest = rest / rest.sum()
    if replacement:
        return kept + (1.0 - kept) * _recursive(rest, q, n - 1, True)
    for token in np.flatnonzero(q > p):
        others = q.copy()
        others[token] = 0.0
        if others.sum() > 0:
            kept += float(q[token] - p[token]) * _recursive(rest, others / others.sum(), n - 1, False)
    return kept


def kseq_acceptance(p: Law, q: Law, n: int) -> tuple[float, float]:
    """Acceptance of SpecTr's K-SEQ with n independent drafts, and the divisor ρ that makes it exact.

    Source: Sun et al. 2023, SpecTr, arXiv:2310.15141, §4.
    """
    p_, q_ = _laws(p, q, n)

    def share(rho: float) -> float:
        return float(np.minimum(q_, p_ / rho).sum())

    def excess(rho: float) -> float:
        return rho * share(rho) - (1.0 - (1.0 - share(rho)) ** n)

    rho = 1.0 if excess(1.0) >= -1e-12 else float(bisect(excess, 1.0, float(n), xtol=1e-13))  # pyright: ignore[reportArgumentType]
    return 1.0 - (1.0 - share(rho)) ** n, rho


def greedy_scheme_acceptance(p: Law, q: Law, n: int) -> float:
    """Acceptance of the n − 1 likeliest tokens of q and one draw from the rest of q.

    Source: Hu et al. 2025, arXiv:2502.18779, the greedy construction.
    """
    p_, q_ = _laws(p, q, n)
    fixed = np.argsort(-q_, kind="stable")[: n - 1]
    free = np.ones(q_.size, bool)
    free[fixed] = False
    rest = np.where(free, q_, 0.0)
    drawn = np.minimum(p_, rest / rest.sum())[free].sum() if rest.sum() > 0 else 0.0
    return float(p_[fixed].sum() + drawn)


def top_acceptance(p: Law, q: Law, n: int) -> float:
    """Acceptance of the n likeliest tokens of q under the rule "draw from p and follow the draw"."""
    p_, q_ = _laws(p, q, n)
    return float(p_[np.argsort(-q_, kind="stable")[:n]].sum())


def acceptance_table(p: Law, q: Law, n: int) -> dict[str, float]:
    """What each rule, and the best possible one, makes of n drafts; small vocabularies only."""
    return {
        "plain": top_one(p, q),
        "recursive, with replacement": recursive_acceptance(p, q, n),
        "K-SEQ": kseq_acceptance(p, q, n)[0],
        "recursive, without replacement": recursive_acceptance(p, q, n, replacement=False),
        "greedy scheme": greedy_scheme_acceptance(p, q, n),
        "optimum, with replacement": optimal_acceptance(p, q, n),
        "optimum, without replacement": optimal_acceptance(p, q, n, replacement=False),
        "likeliest tokens": top_acceptance(p, q, n),
    }


def top_one(p: Law, q: Law) -> float:
    """Acceptance of one draft by speculative sampling: Σ min(p, q)."""
    p_, q_ = _laws(p, q, 1)
    return float(np.minimum(p_, q_).sum())


def bound_from_tops(p_top: dict[int, float], q_top: dict[int, float], n: int, replacement: bool) -> float:
    """An upper bound of `optimal_acceptance` when only the likeliest tokens of both laws are known.

    Only sets of tokens that are known in both laws enter the minimum, so that the bound can only be too high. It is
    exact when the known tokens hold all of q.
    """
    known = sorted(set(p_top) & set(q_top)) if sum(p_top.values()) < 1 - 1e-6 else sorted(q_top)
    p = np.array([p_top.get(token, 0.0) for token in known])
    q = np.array([q_top[token] for token in known])
    if not known or not n:
        return 1.0 if n else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p > 0, q / p, np.inf), kind="stable")
    tail = max(0.0, 1.0 - float(q.sum()))
    ordered = np.append(q[order], tail)
    all_in = np.cumsum(q[order]) ** n if replacement else _all_inside(ordered, n)[:-1]
    if tail < 1e-6:
        all_in[-1] = 1.0
    return float(min(1.0, 1.0 + min(0.0, float((np.cumsum(p[order]) - all_in).min()))))


def _laws(p: Any, q: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    p_, q_ = np.asarray(p, float), np.asarray(q, float)
    if p_.ndim != 1 or p_.shape != q_.shape or not p_.size:
        raise ParameterError("p and q are not two laws over the same tokens.", "Give two lists of the same length.")
    if n < 1:
        raise ParameterError(f"{n} drafts cannot be accepted.", "Give at least 1.")
    for name, law in (("p", p_), ("q", q_)):
        if (law < 0).any() or not math.isclose(float(law.sum()), 1.0, abs_tol=1e-6):
            raise ParameterError(f"{name} sums to {law.sum():.6g} and is no law.", "Give probabilities that sum to 1.")
    return p_, q_

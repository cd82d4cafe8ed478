"""Predict speculative decoding by theory: tokens per round, best draft length, optimal acceptance of several drafts.

All functions take plain numbers and small arrays, so that pages, reports and notebooks can plot predictions together
with measurements.
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

Distribution = Sequence[float] | np.ndarray
"""Type of a distribution over the vocabulary: the probability of each token; the probabilities sum to 1."""

MOST_TUPLES = 50_000
"""Maximum number of tuples of drafted tokens that the exact acceptance computations enumerate (linear program and
recursion)."""

# -- Tokens per round, and the draft length ----------------------------------------------------------------------------


def expected_tau(rate: float, depth: float) -> float:
    """Return the expected tokens per round if all tokens of a chain are accepted with one independent probability.

    Args:
        rate: acceptance probability, 0 to 1.
        depth: drafted tokens per round; a fraction is a mean over several lengths.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1.

    Example:
        >>> round(expected_tau(0.7, 5), 4)
        2.9412
    """
    return depth + 1.0 if rate >= 1.0 else (1.0 - rate ** (depth + 1)) / (1.0 - rate)


def tau_by_position(rates: Sequence[float]) -> float:
    """Return the expected tokens per round of a chain, from the acceptance probability of each position.

    `rates[i]` is the acceptance probability at position i, given that all earlier positions are accepted.

    Example:
        >>> tau_by_position([0.5, 0.5])
        1.75
    """
    return 1.0 + sum(itertools.accumulate(rates, lambda a, b: a * b))


def accepted_length_distribution(rates: Sequence[float]) -> list[float]:
    """Return the probability of each number of accepted tokens of a chain: of 0, 1, … len(rates).

    `rates[i]` is the acceptance probability at position i, given that all earlier positions are accepted.

    Example:
        >>> accepted_length_distribution([0.5, 0.5])
        [0.5, 0.25, 0.25]
    """
    reached = [1.0, *itertools.accumulate(rates, lambda a, b: a * b)]
    return [a - b for a, b in itertools.pairwise([*reached, 0.0])]


def speedup(tau: float, draft_s: float, verify_s: float, overhead_s: float, plain_s: float) -> float:
    """Return the speed-up over plain decoding: tokens per round / (round time / plain step time).

    Args:
        tau: tokens per round.
        draft_s: drafting time in seconds per round.
        verify_s: verification time in seconds per round.
        overhead_s: host overhead in seconds per round.
        plain_s: time of a plain decoding step in seconds.
    """
    return tau * plain_s / (draft_s + verify_s + overhead_s)


@dataclass(frozen=True, slots=True)
class BestDepth:
    """Best draft length under a cost model.

    Attributes:
        depth: drafted tokens per round; 0 is plain decoding.
        tau: tokens per round.
        speedup: speed-up over plain decoding.
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
) -> BestDepth:
    """Return the draft length that maximises the speed-up, tokens per round / cost of the round.

    Args:
        rates: acceptance probability of every drafted token; or one probability per position, given that all earlier
            positions are accepted.
        draft_cost: cost of one more drafted token, in plain steps.
        verify_cost: cost of a target pass over n tokens, in plain steps.
        overhead_cost: cost of everything else in a drafting round, minus the same cost in a plain step, in plain steps.
        beyond: acceptance probability at positions after the last one in `rates`; None: as at the last position.
        most: longest draft considered.

    Source: Leviathan et al. 2023, arXiv:2211.17192, theorem 3.8, which has `verify_cost` 1 and `overhead_cost` 0.

    Example:
        >>> best = best_depth(0.8, 0.05)
        >>> best.depth, round(best.speedup, 4)
        (8, 3.0921)
    """
    by_position = [rates] if isinstance(rates, (int, float)) else list(rates)
    if not by_position:
        return BestDepth(0, 1.0, 1.0)
    best = BestDepth(0, 1.0, 1.0)
    for depth in range(1, most + 1):
        tau = tau_by_position([*by_position, *[by_position[-1] if beyond is None else beyond] * depth][:depth])
        gain = tau / (depth * draft_cost + verify_cost(depth + 1) + overhead_cost)
        if gain > best.speedup:
            best = BestDepth(depth, tau, gain)
    return best


# -- Several drafts for one position -----------------------------------------------------------------------------------
# p is the target's distribution and q the drafter's, both [V]; n drafts are sampled from q.


def optimal_acceptance(p: Distribution, q: Distribution, n: int, replacement: bool = True) -> float:
    """Return the maximum probability with which an exact rule can emit one of n drafts (optimal-transport bound).

    By duality this maximum is 1 + min over token sets H of P(H) − Pr(all n drafts lie in H). The best H is a prefix of
    the tokens in descending order of q/p. With replacement the computation takes O(V log V) time; without replacement,
    one integral per prefix.

    Args:
        p: target distribution.
        q: draft distribution.
        n: number of drafts for the position.
        replacement: whether drafts are sampled independently; else without replacement.

    Source: Hu et al. 2025, arXiv:2502.18779; SpecTr, arXiv:2310.15141, for the transport problem.

    Example:
        >>> round(optimal_acceptance([0.5, 0.3, 0.15, 0.05], [0.1, 0.4, 0.3, 0.2], 2), 6)
        0.69
    """
    p_, q_ = _checked_pair(p, q, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p_ > 0, q_ / p_, np.where(q_ > 0, np.inf, -np.inf)), kind="stable")
    p_inside = np.cumsum(p_[order])
    all_in = np.cumsum(q_[order]) ** n if replacement else _all_inside(q_[order], n)
    return float(min(1.0, 1.0 + min(0.0, float((p_inside - all_in).min()))))


_LOG_T = np.arange(-24.0, 36.0, 0.08)


def _all_inside(q: np.ndarray, n: int) -> np.ndarray:
    """Return the probability that n tokens drawn without replacement from q are all among the first k, for k = 1 … V.

    Draws without replacement are the first arrivals of an exponential race with rates q. Let H be the first k tokens.
    All n draws lie in H if at least n tokens of H arrive before the first other token, whose time is exponential with
    rate 1 − q(H). With the substitution t = eʸ the trapezoid rule is exact up to rounding: the integrand is analytic
    and falls off at both ends.
    """
    t = np.exp(_LOG_T)
    step = _LOG_T[1] - _LOG_T[0]
    fewer = np.zeros((n, t.size))  # Pr[exactly j of the tokens so far arrived before t], j < n
    fewer[0] = 1.0
    result = np.zeros(q.size)
    outside = np.clip(1.0 - np.cumsum(q), 0.0, None)
    for k, rate in enumerate(q):
        has_arrived = -np.expm1(-rate * t)
        shifted = np.vstack([np.zeros_like(t), fewer[:-1]])
        fewer = fewer * (1.0 - has_arrived) + shifted * has_arrived
        if k + 1 < n:
            continue
        rest_mass = float(outside[k])
        if rest_mass < 1e-13 or not q[k + 1 :].any():
            result[k] = 1.0
        else:
            result[k] = float(np.sum((1.0 - fewer.sum(0)) * rest_mass * t * np.exp(-rest_mass * t)) * step)
    return np.clip(result, 0.0, 1.0)


def optimal_acceptance_lp(p: Distribution, q: Distribution, n: int, replacement: bool = True) -> float:
    """Return the maximum probability with which an exact rule can emit one of n drafts, by a linear program.

    The linear program enumerates all sets of n drafts, so the vocabulary must be small; `optimal_acceptance` computes
    the same number for large vocabularies.

    Args:
        p: target distribution.
        q: draft distribution.
        n: number of drafts for the position.
        replacement: whether drafts are sampled independently; else without replacement.

    Raises:
        ParameterError: the vocabulary is too large to enumerate.
    """
    p_, q_ = _checked_pair(p, q, n)
    sets = sorted(_sets(q_, n, replacement).items())
    pairs = [(s, token) for s, (members, _) in enumerate(sets) for token in members if p_[token] > 0]
    if not pairs:
        return 0.0
    rows = np.zeros((len(sets) + p_.size, len(pairs)))
    for column, (s, token) in enumerate(pairs):
        rows[s, column] = rows[len(sets) + token, column] = 1.0
    limits = np.concatenate([[mass for _, mass in sets], p_])
    solution = linprog(-np.ones(len(pairs)), A_ub=rows, b_ub=limits, bounds=(0, None), method="highs")
    return float(-solution.fun)


def _sets(q: np.ndarray, n: int, replacement: bool) -> dict[tuple[int, ...], float]:
    """Return the probability of each set of tokens that n drafts from q can form."""
    if q.size**n > MOST_TUPLES:
        raise ParameterError(
            f"All sets of {n} drafts from {q.size} tokens are too many to enumerate.", "Use optimal_acceptance instead."
        )
    sets: dict[tuple[int, ...], float] = defaultdict(float)
    for drafts in itertools.product(range(q.size), repeat=n):
        if not replacement and len(set(drafts)) < n:
            continue
        mass, rest_mass = 1.0, 1.0
        for token in drafts:
            mass *= q[token] / rest_mass if rest_mass > 0 else 0.0
            rest_mass = rest_mass if replacement else rest_mass - q[token]
        if mass > 0:
            sets[tuple(sorted(set(drafts)))] += mass
    return sets


def recursive_acceptance(p: Distribution, q: Distribution, n: int, replacement: bool = True) -> float:
    """Return the probability that one of n siblings is accepted by recursive rejection.

    Each sibling is tested against the residual distribution after the earlier ones.

    Args:
        p: target distribution.
        q: draft distribution.
        n: number of siblings.
        replacement: whether siblings are sampled independently; else without replacement.

    Source: with replacement SpecInfer, arXiv:2305.09781; without, recursive rejection sampling, arXiv:2402.14160.

    Raises:
        ParameterError: without replacement the vocabulary is too large to enumerate.
    """
    p_, q_ = _checked_pair(p, q, n)
    if not replacement and q_.size ** (n - 1) > MOST_TUPLES:
        raise ParameterError(
            f"All sequences of {n} drafts from {q_.size} tokens are too many to enumerate.", "Use fewer tokens."
        )
    return _recursive(p_, q_, n, replacement)


def _recursive(p: np.ndarray, q: np.ndarray, n: int, replacement: bool) -> float:
    acceptance = float(np.minimum(p, q).sum())
    rest = np.clip(p - q, 0.0, None)
    if n == 1 or rest.sum() <= 0:
        return acceptance
    rest = rest / rest.sum()
    if replacement:
        return acceptance + (1.0 - acceptance) * _recursive(rest, q, n - 1, True)
    for token in np.flatnonzero(q > p):
        others = q.copy()
        others[token] = 0.0
        if others.sum() > 0:
            acceptance += float(q[token] - p[token]) * _recursive(rest, others / others.sum(), n - 1, False)
    return acceptance


def kseq_acceptance(p: Distribution, q: Distribution, n: int) -> tuple[float, float]:
    """Return the acceptance probability of SpecTr's rule K-SEQ with n independent drafts, and the rule's discount ρ.

    Each draft x is accepted with probability min(1, p(x) / (ρ q(x))).

    Args:
        p: target distribution.
        q: draft distribution.
        n: number of drafts.

    Returns:
        Acceptance probability, and ρ.

    Source: Sun et al. 2023, SpecTr, arXiv:2310.15141, §4.
    """
    p_, q_ = _checked_pair(p, q, n)

    def share(rho: float) -> float:
        return float(np.minimum(q_, p_ / rho).sum())

    def excess(rho: float) -> float:
        return rho * share(rho) - (1.0 - (1.0 - share(rho)) ** n)

    rho = 1.0 if excess(1.0) >= -1e-12 else float(bisect(excess, 1.0, float(n), xtol=1e-13))  # pyright: ignore[reportArgumentType]
    return 1.0 - (1.0 - share(rho)) ** n, rho


def greedy_scheme_acceptance(p: Distribution, q: Distribution, n: int) -> float:
    """Return the probability that one of n drafts is accepted under the greedy construction of Hu et al. 2025.

    The drafts are the n − 1 most likely tokens of q, and a sample from the rest of q.

    Args:
        p: target distribution.
        q: draft distribution.
        n: number of drafts.

    Source: Hu et al. 2025, arXiv:2502.18779, the greedy construction.
    """
    p_, q_ = _checked_pair(p, q, n)
    fixed = np.argsort(-q_, kind="stable")[: n - 1]
    free = np.ones(q_.size, bool)
    free[fixed] = False
    rest = np.where(free, q_, 0.0)
    sampled_mass = np.minimum(p_, rest / rest.sum())[free].sum() if rest.sum() > 0 else 0.0
    return float(p_[fixed].sum() + sampled_mass)


def top_acceptance(p: Distribution, q: Distribution, n: int) -> float:
    """Return the probability that one of n drafts is accepted if the drafts are the n most likely tokens of q.

    It is the probability that a sample from p is one of these tokens.

    Args:
        p: target distribution.
        q: draft distribution.
        n: number of drafts.
    """
    p_, q_ = _checked_pair(p, q, n)
    return float(p_[np.argsort(-q_, kind="stable")[:n]].sum())


def acceptance_table(p: Distribution, q: Distribution, n: int) -> dict[str, float]:
    """Return the probability that one of n drafts is accepted, for each acceptance rule and for the optimum.

    The computation enumerates drafts, so the vocabulary must be small.

    Args:
        p: target distribution.
        q: draft distribution.
        n: number of drafts.

    Returns:
        Acceptance probability by name of the rule.
    """
    return {
        "plain": single_draft_acceptance(p, q),
        "recursive, with replacement": recursive_acceptance(p, q, n),
        "K-SEQ": kseq_acceptance(p, q, n)[0],
        "recursive, without replacement": recursive_acceptance(p, q, n, replacement=False),
        "greedy scheme": greedy_scheme_acceptance(p, q, n),
        "optimum, with replacement": optimal_acceptance(p, q, n),
        "optimum, without replacement": optimal_acceptance(p, q, n, replacement=False),
        "likeliest tokens": top_acceptance(p, q, n),
    }


def single_draft_acceptance(p: Distribution, q: Distribution) -> float:
    """Return the acceptance probability of one draft under speculative sampling, Σ min(p, q)."""
    p_, q_ = _checked_pair(p, q, 1)
    return float(np.minimum(p_, q_).sum())


def bound_from_top_tokens(p_top: dict[int, float], q_top: dict[int, float], n: int, replacement: bool) -> float:
    """Return an upper bound of `optimal_acceptance` from the most likely tokens of both distributions.

    The optimal acceptance is a minimum over sets of tokens. Here the minimum is taken only over sets of tokens that are
    known in both distributions, so the bound can only be too high. It is exact if the known tokens have all of q's
    mass.

    Args:
        p_top: target probability by token id, for the target's most likely tokens.
        q_top: draft probability by token id, for the drafter's most likely tokens.
        n: number of drafts for the position.
        replacement: whether drafts are sampled independently; else without replacement.
    """
    tokens = sorted(set(p_top) & set(q_top)) if sum(p_top.values()) < 1 - 1e-6 else sorted(q_top)
    p = np.array([p_top.get(token, 0.0) for token in tokens])
    q = np.array([q_top[token] for token in tokens])
    if not tokens or not n:
        return 1.0 if n else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p > 0, q / p, np.inf), kind="stable")
    tail = max(0.0, 1.0 - float(q.sum()))
    ordered = np.append(q[order], tail)
    all_in = np.cumsum(q[order]) ** n if replacement else _all_inside(ordered, n)[:-1]
    if tail < 1e-6:
        all_in[-1] = 1.0
    return float(min(1.0, 1.0 + min(0.0, float((np.cumsum(p[order]) - all_in).min()))))


def _checked_pair(p: Any, q: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    p_, q_ = np.asarray(p, float), np.asarray(q, float)
    if p_.ndim != 1 or p_.shape != q_.shape or not p_.size:
        raise ParameterError(
            "p and q differ in length, so they are not distributions over the same tokens.",
            "Give lists of the same length.",
        )
    if n < 1:
        raise ParameterError(f"The number of drafts, {n}, is out of range.", "Give at least 1.")
    for name, probs in (("p", p_), ("q", q_)):
        if (probs < 0).any() or not math.isclose(float(probs.sum()), 1.0, abs_tol=1e-6):
            raise ParameterError(
                f"{name} is not a distribution: it has a negative value or sums to {probs.sum():.6g}.",
                "Give probabilities that sum to 1.",
            )
    return p_, q_

"""The best exact rule for two drafts: choose one of them by weights, then test the choice by the law that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.places import Fans
from workbench.core.params import param
from workbench.core.rejection import WITHOUT, residual
from workbench.core.rules import Rule
from workbench.core.sampling import largest
from workbench.core.tree import DraftTree, Sampling
from workbench.methods.verifiers.exact import ByEmission, rule_of

PAPER = "after Hu et al. 2025, arXiv:2502.18779 (the optimum), and Khisti et al. 2024, arXiv:2410.18234 (the two steps)"
MOST = 40.0
"""Largest logarithm of a weight: e⁸⁰ between two of them is certainty."""


@dataclass(frozen=True)
class OptimalTwo(ByEmission):
    """Of two drafts x, y choose s = x with chance w(x) / (w(x) + w(y)); accept s with min(1, p(s) / r(s)).

    r is the law of s, known in closed form for every w, so that the rule keeps the target's law whatever w is; if s
    fails, the token comes from (p − r)₊, and may be the other draft. log w ← log w + log p − log r leads to the w of
    the largest acceptance, which reaches the optimal-transport bound. Weights are free for the `free` tokens of the
    largest max(p, q), and one for all others.

    Further siblings are tested one after the other against (p − r)₊. How many there are was settled before the first
    was drawn: r is the law of the pair.

    Source: canonical decomposition, Khisti et al. 2024, arXiv:2410.18234; optimum, Hu et al. 2025, arXiv:2502.18779.
    The iteration is this project's.
    """

    name: ClassVar[str] = "optimal-two"
    exact_for: ClassVar[frozenset[Sampling]] = frozenset(
        {Sampling.DETERMINISTIC, Sampling.CHAIN, Sampling.SAMPLED, Sampling.FIXED_NUMBER}
    )
    made_for: ClassVar[frozenset[Sampling]] = frozenset({Sampling.SAMPLED, Sampling.FIXED_NUMBER})
    says: ClassVar[Rule] = rule_of(
        "optimal-two", "The best of two", "One of the first two drafts would be chosen by weights, and tested.", PAPER
    )
    free: int = param(64, ge=1, le=256, doc="tokens with a weight of their own; more come nearer to the optimum")
    steps: int = param(40, ge=0, le=200, doc="improvements of the weights")

    def tests(self, tree: DraftTree, fans: Fans) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R V"]]:
        """The pair, then the others."""
        p, q, x, there = fans.p, fans.q, fans.token, fans.there
        tiny, without = torch.finfo(p.dtype).tiny, tree.sampling in WITHOUT
        if x.shape[1] == 1:
            return torch.where(there, (p / q.clamp_min(tiny)).clamp(max=1).gather(1, x), 0.0), residual(p, q)
        log_w, r = weights(p, q, without, self.free, self.steps)
        two = there[:, 1:2]
        r = torch.where(two, r, q)
        own = log_w.gather(1, x[:, :2])
        first = torch.where(two, torch.sigmoid(own[:, :1] - own[:, 1:]), 1.0)
        passes = (p / r.clamp_min(tiny)).clamp(max=1).gather(1, x[:, :2])
        kept = torch.where(there[:, :2], torch.cat([first, 1 - first], 1) * passes, 0.0)
        missed, left = 1 - kept.sum(1, keepdim=True), residual(p, r)
        for k in range(2, x.shape[1]):
            if without:
                q = q.scatter(1, x[:, k - 2 : k], 0.0)
                q = q / q.sum(1, keepdim=True).clamp_min(tiny)
            has, token = there[:, k : k + 1], x[:, k : k + 1]
            test = torch.where(has, (left.gather(1, token) / q.gather(1, token).clamp_min(tiny)).clamp(max=1), 0.0)
            kept = torch.cat([kept, missed * test], 1)
            missed = missed * (1 - test)
            left = torch.where(has, residual(left, q), left)
        return kept, left


def weights(
    p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], without: bool, free: int, steps: int
) -> tuple[Float[Tensor, "R V"], Float[Tensor, "R V"]]:
    """Logarithms of the weights, and the law of the draft that they choose from two.

    Args:
        p: the target's law.
        q: the drafter's.
        without: whether the two differ.
        free: tokens with weights of their own.
        steps: improvements; of all weights met, those of the largest acceptance are taken.
    """
    tiny = torch.finfo(p.dtype).tiny
    g = (q / (1 - q).clamp_min(1e-12)) if without else q  # what an elder draft of this token makes of another's
    at = largest(torch.maximum(p, q), min(free, p.shape[1]))[1]  # [R, m]
    m = at.shape[1]
    p_all, q_all, g_all = (_with_others(law, at) for law in (p, q, g))  # [R, m + 1], the last for all others
    q_h, q_t, g_t = q_all[:, :m], q_all[:, m:], g_all[:, m:]
    asks = torch.stack([q_all, g_all], 2)  # [R, m + 1, 2]
    log_p, has_weight = p_all.clamp_min(tiny).log(), torch.cat([torch.ones_like(q_h), q_t > 0], 1)
    scale = 1 / (1 - q_h).clamp_min(1e-12) if without else None

    def chosen(log_w: Tensor) -> tuple[Tensor, Tensor]:
        """R of the free tokens, and of all others together; and what the free ones take from the others' weight."""
        w = log_w.exp()
        shares = (w[:, :m].unsqueeze(2) + w.unsqueeze(1)).reciprocal_()  # [R, m, m + 1]
        shares.diagonal(dim1=1, dim2=2).zero_()
        from_q, from_g = (w[:, :m].unsqueeze(2) * (shares @ asks)).unbind(2)
        r_h = q_h * (q_h + 2 * from_q) if scale is None else q_h * (scale * from_q + from_g)
        return torch.cat([r_h, (1 - r_h.sum(1, keepdim=True)).clamp_min_(0)], 1), w[:, :m] * shares[:, :, m]

    log_w = torch.zeros_like(p_all)
    best_w, best = log_w, torch.full_like(q_t, -1.0)
    for _ in range(steps + 1):
        r_all, _ = chosen(log_w)
        kept = torch.minimum(p_all, r_all).sum(1, keepdim=True)
        better = kept > best
        best, best_w = torch.where(better, kept, best), torch.where(better, log_w, best_w)
        log_w = (log_w + (log_p - r_all.clamp_min(tiny).log()) * has_weight).clamp_(-MOST, MOST)
    r_all, over = chosen(best_w)
    a_q, a_g = ((law[:, :m] * (1 - over)).sum(1, keepdim=True) for law in (q_all, g_all))
    if without:
        r = q * ((a_q + (q_t - q) / 2) / (1 - q).clamp_min(1e-12) + a_g + (g_t - g) / 2)
    else:
        r = q * (2 * a_q + q_t)
    return best_w[:, m:].expand_as(p).scatter(1, at, best_w[:, :m]), r.scatter_(1, at, r_all[:, :m])


def _with_others(law: Float[Tensor, "R V"], at: Int[Tensor, "R m"]) -> Float[Tensor, "R m_plus_1"]:
    """What a law gives to some tokens, and to all others together."""
    return torch.cat([law.gather(1, at), law.scatter(1, at, 0.0).sum(1, keepdim=True)], 1)

"""The best exact rule for two drafts: choose one of them by weights, then test the choice by the law that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.following import Fans
from workbench.core.params import param
from workbench.core.rejection import WITHOUT, residual
from workbench.core.rules import Rule
from workbench.core.sampling import largest
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.declared import Claim
from workbench.methods.verifiers.exact import ByEmission, rule_of
from workbench.methods.verifiers.k_seq import KSeq

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
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "acceptance of a place / that by K-SEQ, 2 independent drafts", "any pair of laws: it is the optimum", None,
            None, "Hu et al. 2025, arXiv:2502.18779 (the bound); Khisti et al. 2024, arXiv:2410.18234 (direction)",
            lambda lab: lab.accepted_over((OptimalTwo(), Sampling.SAMPLED), (KSeq(), Sampling.SAMPLED), 2),
            key="optimal-two", method="draft-tree-sampled",
        ),
        Claim(
            "acceptance of a place / the optimal-transport bound, 2 independent drafts", "any pair of laws", 1.0, 1.0,
            "Khisti et al. 2024, arXiv:2410.18234; Hu et al. 2025, arXiv:2502.18779",
            lambda lab: lab.accepted_over((OptimalTwo(), Sampling.SAMPLED), (None, Sampling.SAMPLED), 2),
            key="bound", tolerance=0.005, method="draft-tree-sampled",
        ),
    )  # fmt: skip
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
    q_of_two = (q / (1 - q).clamp_min(1e-12)) if without else q  # what an elder draft of this token makes of another's
    at = largest(torch.maximum(p, q), min(free, p.shape[1]))[1]  # [R, m]
    head = torch.zeros_like(p).scatter_(1, at, 1.0)
    p_h, q_h, g_h = p.gather(1, at), q.gather(1, at), q_of_two.gather(1, at)
    p_t, q_t, g_t = ((law * (1 - head)).sum(1, keepdim=True) for law in (p, q, q_of_two))
    has_tail = q_t > 0
    off = 1 - torch.eye(at.shape[1], dtype=p.dtype, device=p.device)
    scale = 1 / (1 - q_h).clamp_min(1e-12) if without else torch.ones_like(q_h)

    def chosen(log_w: Tensor, tail: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """R of the free tokens; and of the others, what the free ones let through of q and of g."""
        beats = torch.sigmoid(log_w.unsqueeze(2) - log_w.unsqueeze(1)) * off  # [R, m, m]
        over = torch.sigmoid(log_w - tail)  # [R, m]
        from_q = (beats @ q_h.unsqueeze(2)).squeeze(2) + q_t * over
        from_g = (beats @ g_h.unsqueeze(2)).squeeze(2) + g_t * over
        r_h = q_h * (scale * from_q + from_g) if without else q_h * (q_h + 2 * from_q)
        return r_h, (q_h * (1 - over)).sum(1, keepdim=True), (g_h * (1 - over)).sum(1, keepdim=True)

    log_w, tail = torch.zeros_like(p_h), torch.zeros_like(p_t)
    best_w, best_tail, best = log_w, tail, torch.full_like(p_t, -1.0)
    for _ in range(steps + 1):
        r_h, _, _ = chosen(log_w, tail)
        r_t = (1 - r_h.sum(1, keepdim=True)).clamp_min(0)
        kept = torch.minimum(p_h, r_h).sum(1, keepdim=True) + torch.minimum(p_t, r_t)
        better = kept > best
        best, best_w = torch.where(better, kept, best), torch.where(better, log_w, best_w)
        best_tail = torch.where(better, tail, best_tail)
        log_w = (log_w + p_h.clamp_min(tiny).log() - r_h.clamp_min(tiny).log()).clamp(-MOST, MOST)
        tail = (tail + torch.where(has_tail, p_t.clamp_min(tiny).log() - r_t.clamp_min(tiny).log(), 0.0)).clamp(
            -MOST, MOST
        )
    r_h, a_q, a_g = chosen(best_w, best_tail)
    if without:
        r = q * ((a_q + (q_t - q) / 2) / (1 - q).clamp_min(1e-12) + a_g + (g_t - q_of_two) / 2)
    else:
        r = q * (2 * a_q + q_t)
    return best_tail.expand_as(p).scatter(1, at, best_w), r.scatter(1, at, r_h)

"""The best exact rule for two drafts: choose one of them by weights, then test the choice by the law that it has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.places import Fans, by_row
from workbench.core.rejection import WITHOUT, residual
from workbench.core.rules import Rule
from workbench.core.sampling import largest
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.declared import Claim
from workbench.engine.fused import compiled, together
from workbench.engine.models import Models
from workbench.engine.request import Row
from workbench.methods.verifiers.exact import ByEmission, rule_of
from workbench.methods.verifiers.k_seq import KSeq

PAPER = "after Hu et al. 2025, arXiv:2502.18779 (the optimum), and Khisti et al. 2024, arXiv:2410.18234 (the two steps)"
MOST = 40.0
"""Largest logarithm of a weight: e⁸⁰ between two of them is certainty."""
FEW = 16
"""Free tokens from which the search for their weights is compiled."""


@dataclass(frozen=True)
class OptimalTwo(ByEmission):
    """Of two drafts x, y choose s = x with chance w(x) / (w(x) + w(y)); accept s with min(1, p(s) / r(s)).

    r is the law of s, known in closed form for every w, so that the rule keeps the target's law whatever w is; if s
    fails, the token comes from (p − r)₊, and may be the other draft. w ← w · p / r leads to the w of
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

    def prime(self, row: Row, models: Models) -> None:
        """No state; but what improves weights is compiled here, which takes seconds once, and not in a round."""
        if on_host(models.target.device):
            _improved_compiled(*torch.full((3, 1, FEW + 1), 1 / (FEW + 1)), without=False, steps=0)

    def tests(self, tree: DraftTree, fans: Fans) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R V"]]:
        """The pair, then the others."""
        p, q, x, there = fans.p, fans.q, fans.token, fans.there
        tiny, without = torch.finfo(p.dtype).tiny, tree.sampling in WITHOUT

        def test(law: Tensor, drawn_from: Tensor, token: Tensor) -> Tensor:
            return (law.gather(1, token) / drawn_from.gather(1, token).clamp_min(tiny)).clamp(max=1)

        if x.shape[1] == 1:
            return torch.where(there, test(p, q, x), 0.0), residual(p, q)
        at, log_w, r = weights(p, q, without, self.free, self.steps)
        two, pair = there[:, 1:2], x[:, :2]
        r = by_row(two.squeeze(1), r, q)
        is_free = at.unsqueeze(1) == pair.unsqueeze(2)  # [R, 2, m]
        own = torch.where(is_free, log_w[:, None, :-1], 0.0).sum(2)
        own = torch.where(is_free.any(2), own, log_w[:, -1:])
        first = torch.where(two, torch.sigmoid(own[:, :1] - own[:, 1:]), 1.0)
        kept = torch.where(there[:, :2], torch.cat([first, 1 - first], 1) * test(p, r, pair), 0.0)
        missed, left = 1 - kept.sum(1, keepdim=True), residual(p, r)
        for k in range(2, x.shape[1]):
            if without:
                q = q.scatter(1, x[:, k - 2 : k], 0.0)
                q = q.div_(q.sum(1, keepdim=True).clamp_min(tiny))
            has, token = there[:, k : k + 1], x[:, k : k + 1]
            passes = torch.where(has, test(left, q, token), 0.0)
            kept = torch.cat([kept, missed * passes], 1)
            missed = missed * (1 - passes)
            left = by_row(has.squeeze(1), residual(left, q), left)
        return kept, left


def weights(
    p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], without: bool, free: int, steps: int
) -> tuple[Int[Tensor, "R m"], Float[Tensor, "R m_plus_1"], Float[Tensor, "R V"]]:
    """The free tokens; logarithms of the weights, theirs and the others'; and the law of the draft chosen from two.

    Args:
        p: the target's law.
        q: the drafter's.
        without: whether the two differ.
        free: tokens with weights of their own.
        steps: improvements; of all weights met, those of the largest acceptance are taken.
    """
    at = largest(torch.maximum(p, q), min(free, p.shape[1]))[1]  # [R, m]
    m = at.shape[1]
    p_all, q_all = (_with_others(law, at) for law in (p, q))  # [R, m + 1], the last for all others
    others = (1 - q).clamp_min_(1e-12) if without else None
    g_all = q_all if others is None else _with_others(q / others, at)  # an elder draft of this token makes q / others
    q_t, g_t = q_all[:, m:], g_all[:, m:]
    improve = _improved_compiled if p.dtype == torch.float32 and m >= FEW and on_host(p.device) else _improved
    w = improve(p_all, q_all, g_all, without, steps)
    r_h, over = _chosen(w, q_all, g_all, without)
    a_q, a_g = ((law[:, :m] * (1 - over)).sum(1, keepdim=True) for law in (q_all, g_all))
    r = q * (2 * a_q + q_t)
    if others is not None:  # q · ((a_q + (q_t − q) / 2) / (1 − q) + a_g + (g_t − q / (1 − q)) / 2)
        r = (a_q + q_t / 2 - q).div_(others).add_(a_g + g_t / 2).mul_(q)
    return at, w.log(), r.scatter_(1, at, r_h)


def _chosen(w: Tensor, q: Tensor, g: Tensor, without: bool) -> tuple[Float[Tensor, "R m"], Float[Tensor, "R m"]]:
    """The law of the choice at the free tokens; and with what chance each of them is chosen beside one of the others.

    Args:
        w: weights [R, m + 1], the last that of all others; the same of `q` and `g`.
        q: the drafter's law.
        g: what an elder draft of this token makes of another's.
        without: whether the two differ.
    """
    own, q_h = w[:, :-1].unsqueeze(2), q[:, :-1]
    shares = (own + w.unsqueeze(1)).reciprocal_()  # [R, m, m + 1]
    shares.diagonal(dim1=1, dim2=2).zero_()
    from_q, from_g = (own * (shares @ torch.stack([q, g], 2))).unbind(2)
    from_q = from_q / (1 - q_h).clamp_min(1e-12) if without else q_h + from_q
    r_h = q_h * (from_q + from_g)
    return r_h, w[:, :-1] * shares[:, :, -1]


def _improved(p: Tensor, q: Tensor, g: Tensor, without: bool, steps: int) -> Float[Tensor, "R m_plus_1"]:
    """Weights of the largest acceptance that were met; laws [R, m + 1] as in `_chosen`."""
    tiny, has_weight = torch.finfo(p.dtype).tiny, torch.cat([torch.ones_like(q[:, :-1]), q[:, -1:]], 1) > 0
    w = best_w = torch.ones_like(p)
    best = torch.full_like(q[:, :1], -1.0)
    for _ in range(steps + 1):
        r_h, _ = _chosen(w, q, g, without)
        r = torch.cat([r_h, (1 - r_h.sum(1, keepdim=True)).clamp_min_(0)], 1)
        kept = torch.minimum(p, r).sum(1, keepdim=True)
        better = kept > best
        best, best_w = torch.where(better, kept, best), torch.where(better, w, best_w)
        moved = (w * (p.clamp_min(tiny) / r.clamp_min(tiny))).clamp_(math.exp(-MOST), math.exp(MOST))
        w = torch.where(has_weight, moved, w)
    return best_w


def _improved_compiled(p: Tensor, q: Tensor, g: Tensor, without: bool, steps: int) -> Float[Tensor, "R m_plus_1"]:
    """The same as one compiled function, where functions are compiled: a tenth of the time."""
    if (pairs := compiled("pairs")) is None:
        return _improved(p, q, g, without, steps)
    found = torch.empty_like(p)
    laws = [law.contiguous().numpy() for law in (p, q, g)]
    given = (*laws, without, steps, np.float32(math.exp(MOST)), found.numpy(), np.zeros(2, np.int64))
    together(lambda: pairs.improve(*given))
    return found


def _with_others(law: Float[Tensor, "R V"], at: Int[Tensor, "R m"]) -> Float[Tensor, "R m_plus_1"]:
    """What a law gives to some tokens, and to all others together."""
    return torch.cat([law.gather(1, at), law.scatter(1, at, 0.0).sum(1, keepdim=True)], 1)

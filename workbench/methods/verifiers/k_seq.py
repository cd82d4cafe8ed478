"""SpecTr's K-SEQ: independent siblings under one discounted test, whose discount makes up for the many chances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.places import Fans
from workbench.core.rules import Rule
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.declared import Claim
from workbench.engine.models import Models
from workbench.engine.request import Row
from workbench.methods.verifiers.exact import ByEmission, rule_of
from workbench.methods.verifiers.independent import Independent
from workbench.methods.verifiers.sums import common, make_ready

PAPER = "Sun et al. 2023, SpecTr, arXiv:2310.15141, §4"
HALVINGS = 30
"""ρ is found to k / 2³⁰. What is emitted has the target's law for any ρ that is not too small."""


@dataclass(frozen=True)
class KSeq(ByEmission):
    """Accept the first of k siblings that passes min(1, p(x) / (ρ·q(x))); at the end y ~ p less what was accepted.

        β(ρ) = Σ min(q, p / ρ);  ρ* in [1, k] with 1 − (1 − β)ᵏ = ρ·β, by bisection
        if none passes: y ~ p − min(q, p / ρ)·(1 − (1 − β)ᵏ) / β

    The k siblings are alike, and their number was settled before the first was drawn. Source: Sun et al. 2023, SpecTr,
    arXiv:2310.15141, §4, at each place by itself.
    """

    name: ClassVar[str] = "k-seq"
    exact_for: ClassVar[frozenset[Sampling]] = frozenset({Sampling.DETERMINISTIC, Sampling.CHAIN, Sampling.SAMPLED})
    made_for: ClassVar[frozenset[Sampling]] = frozenset({Sampling.SAMPLED})
    says: ClassVar[Rule] = rule_of(
        "k-seq",
        "K-SEQ",
        "The first sibling that passes min(1, p / (ρ·q)) would be kept, ρ making up for their number.",
        PAPER,
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "acceptance of a place / that by SpecInfer's rule, 4 independent drafts", "PaLM-2, drafts of Gecko", None,
            None, "Sun et al. 2023, SpecTr, arXiv:2310.15141, §4 (direction)",
            lambda lab: lab.accepted_over((KSeq(), Sampling.SAMPLED), (Independent(), Sampling.SAMPLED), 4),
            key="k-seq", method="draft-tree-sampled",
        ),
    )  # fmt: skip

    def prime(self, row: Row, models: Models) -> None:
        """No state; but what adds up wide laws is compiled here, and not in a round."""
        make_ready(models.target.device)

    def tests(self, tree: DraftTree, fans: Fans) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R V"]]:
        """One test after the other, all places at once."""
        p, q = fans.p, fans.q
        k = fans.there.sum(1, keepdim=True).clamp_min(1).to(p.dtype)  # [R, 1]
        rho = discount(p, q, k)
        shared = torch.minimum(q, p / rho)  # [R, V]
        beta = shared.sum(1, keepdim=True)
        tiny = torch.finfo(p.dtype).tiny
        passes = torch.where(fans.there, shared.gather(1, fans.token) / q.gather(1, fans.token).clamp_min(tiny), 0.0)
        fails = (1 - passes).cumprod(1)
        kept = passes * torch.cat([torch.ones_like(k), fails[:, :-1]], 1)
        left = (p - shared * (_any(beta, k) / beta.clamp_min(tiny))).clamp_min_(0)
        total = left.sum(1, keepdim=True)
        return kept, torch.where(total > 0, left / total.clamp_min(tiny), p)


def discount(p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], k: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """ρ*, the least divisor for which k tests accept no token more often than p has it.

    ρ·β(ρ) grows with ρ from Σ min(p, q), and 1 − (1 − β)ᵏ falls: the upper end of the bracket is always feasible. Where
    the chord crosses 0 is nearer to the root than the middle is, and a third of the passes over the laws are enough
    (the method is ITP: interpolate, truncate, project; Oliveira and Takahashi 2020, doi:10.1145/3423597).
    """

    def excess(rho: Tensor) -> Tensor:
        claimed = common(p, q, rho)  # ρ·β
        return claimed - _any(claimed / rho, k)

    low, high = torch.ones_like(k), k.clone()
    f_low, f_high = excess(low), excess(high)
    near = (k - 1) * max(2.0 ** (-HALVINGS - 1), 4 * torch.finfo(p.dtype).eps)
    tiny = torch.finfo(p.dtype).tiny
    for step in range(HALVINGS + 1):
        width, middle = high - low, (low + high) / 2
        if on_host(p.device) and bool((width <= 2 * near).all()):
            break
        chord = ((f_high * low - f_low * high) / (f_high - f_low).clamp_min(tiny)).clamp(low, high)
        side = (middle - chord).sign()
        push = torch.maximum(0.2 * width**2 / (k - 1).clamp_min(tiny), near)  # what it misses, and rounding
        pushed = chord + side * torch.minimum(push, (middle - chord).abs())
        free = ((k - 1) * 2.0**-step - width / 2).clamp_min(0)  # so that bisection would not be done sooner
        rho = torch.where((pushed - middle).abs() <= free, pushed, middle - side * free)
        f = excess(rho)
        feasible = f >= 0
        low, f_low = torch.where(feasible, low, rho), torch.where(feasible, f_low, f)
        high, f_high = torch.where(feasible, rho, high), torch.where(feasible, f, f_high)
    return high


def _any(beta: Float[Tensor, "R 1"], k: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """The chance that one of k tests passes, each with chance β."""
    return -torch.expm1(k * torch.log1p(-beta.clamp(max=1)))

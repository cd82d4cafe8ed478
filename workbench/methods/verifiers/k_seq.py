"""SpecTr's K-SEQ: independent siblings under one discounted test, whose discount makes up for the many chances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.following import Fans
from workbench.core.rules import Rule
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.declared import Claim
from workbench.methods.verifiers.exact import ByEmission, rule_of
from workbench.methods.verifiers.independent import Independent

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

    def tests(self, tree: DraftTree, fans: Fans) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R V"]]:
        """One test after the other, all places at once."""
        p, q = fans.p, fans.q
        k = fans.there.sum(1, keepdim=True).clamp_min(1).to(p.dtype)  # [R, 1]
        rho = discount(p, q, k)
        common = torch.minimum(q, p / rho)  # [R, V]
        beta = common.sum(1, keepdim=True)
        tiny = torch.finfo(p.dtype).tiny
        passes = torch.where(fans.there, common.gather(1, fans.token) / q.gather(1, fans.token).clamp_min(tiny), 0.0)
        fails = (1 - passes).cumprod(1)
        kept = passes * torch.cat([torch.ones_like(k), fails[:, :-1]], 1)
        left = (p - common * (_any(beta, k) / beta.clamp_min(tiny))).clamp_min_(0)
        total = left.sum(1, keepdim=True)
        return kept, torch.where(total > 0, left / total.clamp_min(tiny), p)


def discount(p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], k: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """ρ*, the least divisor for which k tests accept no token more often than p has it.

    ρ·β(ρ) grows with ρ from Σ min(p, q), and 1 − (1 − β)ᵏ falls: the upper end of the bracket is always feasible.
    """
    low, high = torch.ones_like(k), k.clone()
    for _ in range(HALVINGS):
        rho = (low + high) / 2
        claimed = torch.minimum(q * rho, p).sum(1, keepdim=True)  # ρ·β
        feasible = claimed >= _any(claimed / rho, k)
        low, high = torch.where(feasible, low, rho), torch.where(feasible, rho, high)
    return high


def _any(beta: Float[Tensor, "R 1"], k: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """The chance that one of k tests passes, each with chance β."""
    return -torch.expm1(k * torch.log1p(-beta.clamp(max=1)))

"""SpecTr's K-SEQ: test independent siblings with p / q, divided by a discount that depends on their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.rules import Rule
from workbench.core.sampling import WIDE
from workbench.core.sibling_groups import SiblingGroups
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.declarations import Claim
from workbench.engine.request import Sequence
from workbench.kernels.compilation import load_kernels, run_in_parallel
from workbench.kernels.rejection import dummy_sibling_groups, supports_distributions
from workbench.methods.verifiers.exact import EmissionVerifier, rule_of
from workbench.methods.verifiers.independent import Independent
from workbench.models.loading import Models

PAPER = "Sun et al. 2023, SpecTr, arXiv:2310.15141, §4"
HALVINGS = 30
"""Maximum number of search steps for K-SEQ's discount ρ; they find ρ to within k / 2³⁰. A larger ρ does not bias the
output."""


@dataclass(frozen=True)
class KSeq(EmissionVerifier):
    """Accept the first of k siblings x that passes min(1, p(x) / (ρ·q(x))); if none passes, draw y from the residual.

        β(ρ) = Σ min(q, p / ρ);  ρ = ρ* in [1, k] with 1 − (1 − β)ᵏ = ρ·β, found numerically
        residual: p − min(q, p / ρ)·(1 − (1 − β)ᵏ) / β, normalised

    p and q are the target's and the drafter's distribution, and ρ is the discount. The k siblings are drawn
    independently from q, and their number is fixed before the first is drawn.

    Source: Sun et al. 2023, SpecTr, arXiv:2310.15141, §4, at each position separately.
    """

    name: ClassVar[str] = "k-seq"
    exact_for: ClassVar[frozenset[Sampling]] = frozenset({Sampling.DETERMINISTIC, Sampling.CHAIN, Sampling.SAMPLED})
    useful_for: ClassVar[frozenset[Sampling]] = frozenset({Sampling.SAMPLED})
    explanation: ClassVar[Rule] = rule_of(
        "k-seq",
        "K-SEQ",
        "The first sibling that passes min(1, p / (ρ·q)) is accepted; the discount ρ compensates for the number "
        "of siblings.",
        PAPER,
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "acceptance probability relative to SpecInfer's rule, 4 independent drafts",
            "PaLM-2 with drafts of the model Gecko",
            None, None, "Sun et al. 2023, SpecTr, arXiv:2310.15141, §4 (only the direction is compared)",
            lambda lab: lab.accepted_over((KSeq(), Sampling.SAMPLED), (Independent(), Sampling.SAMPLED), 4),
            key="k-seq", method="draft-tree-sampled",
        ),
    )  # fmt: skip

    def init_state(self, sequence: Sequence, models: Models) -> None:
        """Compile the search for the discount ρ before the first round. Return None: the verifier has no state."""
        probs = torch.full((1, WIDE), 1 / WIDE, device=models.target.device)
        if supports_distributions(probs, probs):
            _compiled_discounts(dummy_sibling_groups(probs))

    def acceptance(self, tree: DraftTree, fans: SiblingGroups) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R V"]]:
        """Return the acceptance probability of each drafted child, and the residual distribution at each position."""
        p, q = fans.p, fans.q
        k = fans.has_child.sum(1, keepdim=True).clamp_min(1).to(p.dtype)  # [R, 1]
        rho = (
            _compiled_discounts(fans)[0]
            if supports_distributions(fans.target.distributions, fans.drafter.distributions)
            else discount(p, q, k)
        )
        shared = torch.minimum(q, p / rho)  # [R, V]
        beta = shared.sum(1, keepdim=True)
        tiny = torch.finfo(p.dtype).tiny
        test_probs = torch.where(
            fans.has_child, shared.gather(1, fans.token) / q.gather(1, fans.token).clamp_min(tiny), 0.0
        )
        accept_probs = _first(test_probs)
        rest = (p - shared * (_any(beta, k) / beta.clamp_min(tiny))).clamp_min_(0)
        total = rest.sum(1, keepdim=True)
        return accept_probs, torch.where(total > 0, rest / total.clamp_min(tiny), p)

    def compiled_acceptance(
        self, tree: DraftTree, fans: SiblingGroups
    ) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R F"], Float[Tensor, "R 1"]] | None:
        """Return acceptance probabilities and residual probabilities of the drafted tokens, from compiled code.

        The code keeps the distributions of a position in the CPU caches.
        """
        rho, share, other_mass, total = _compiled_discounts(fans)
        p, q, tiny = fans.target.gather(fans.token), fans.drafter.gather(fans.token), torch.finfo(torch.float32).tiny
        shared = torch.minimum(q, p / rho)
        accept_probs = _first(torch.where(fans.has_child, shared / q.clamp_min(tiny), 0.0))
        is_empty = total <= 0  # no residual: return p, as in `acceptance`, although it is never drawn from
        at_tokens = torch.where(is_empty, p, (p - shared * share).clamp_min_(0) / total.clamp_min(tiny))
        return accept_probs, at_tokens, torch.where(is_empty, 1.0, other_mass / total.clamp_min(tiny))


def _compiled_discounts(fans: SiblingGroups) -> tuple[Float[Tensor, "R 1"], ...]:
    """Compute K-SEQ's discount ρ and three numbers that define the residual at each position, with compiled code.

    Returns:
        Four float32 tensors on the host: the discount ρ; the factor (1 − (1 − β)ᵏ) / β on min(q, p / ρ) in the
        residual; the sum of the unnormalised residual over all tokens except the children's; its sum over all tokens.
    """
    discounts = load_kernels("discounts")
    assert discounts is not None
    out = torch.empty(len(fans.token), 4)
    inputs = (
        fans.target.distributions,
        fans.target.at,
        fans.drafter.distributions,
        fans.drafter.at,
        fans.token,
        fans.has_child,
    )
    arguments = (
        *(tensor.contiguous().numpy() for tensor in inputs),
        HALVINGS, _least(torch.float32), out.numpy(), np.zeros(2, np.int64),
    )  # fmt: skip
    run_in_parallel(lambda: discounts.find(*arguments))
    return out.unsqueeze(2).unbind(1)


def _first(alone: Float[Tensor, "R F"]) -> Float[Tensor, "R F"]:
    """Return the probability that each of F sibling drafts is the first that passes its test.

    Args:
        alone: probability that each sibling passes its own test.
    """
    fails = (1 - alone).cumprod(1)
    return alone * torch.cat([torch.ones_like(alone[:, :1]), fails[:, :-1]], 1)


def _least(dtype: torch.dtype) -> float:
    """Return the error of the computed discount ρ* in a dtype, relative to k − 1, the length of the search interval."""
    return max(2.0 ** (-HALVINGS - 1), 4 * torch.finfo(dtype).eps)


def discount(p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], k: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """Return ρ*, the smallest discount for which k tests accept no token with more than its probability p.

    β(ρ) = Σ min(q, p / ρ) is the probability that one test passes, and ρ* is the root of ρ·β(ρ) = 1 − (1 − β(ρ))ᵏ in
    [1, k]. With rising ρ the left side grows and the right side falls. The result is the upper end of the final search
    interval, so no token is accepted too often. The search uses the ITP method (interpolate, truncate, project;
    Oliveira and Takahashi 2020, doi:10.1145/3423597), which reads the distributions a third as often as bisection.

    Args:
        p: the target's distributions at R positions.
        q: the drafter's distributions at the same positions.
        k: number of siblings at each position.
    """

    def excess(rho: Tensor) -> Tensor:
        claimed = torch.minimum(q * rho, p).sum(1, keepdim=True)  # ρ·β
        return claimed - _any(claimed / rho, k)

    low, high = torch.ones_like(k), k.clone()
    f_low, f_high = excess(low), excess(high)
    precision = (k - 1) * _least(p.dtype)
    tiny = torch.finfo(p.dtype).tiny
    for step in range(HALVINGS + 1):
        width, middle = high - low, (low + high) / 2
        if on_host(p.device) and bool((width <= 2 * precision).all()):
            break
        chord = ((f_high * low - f_low * high) / (f_high - f_low).clamp_min(tiny)).clamp(low, high)
        side = (middle - chord).sign()
        push = torch.maximum(0.2 * width**2 / (k - 1).clamp_min(tiny), precision)  # the chord's error, and rounding
        pushed = chord + side * torch.minimum(push, (middle - chord).abs())
        radius = ((k - 1) * 2.0**-step - width / 2).clamp_min(0)  # never slower than bisection
        rho = torch.where((pushed - middle).abs() <= radius, pushed, middle - side * radius)
        f = excess(rho)
        feasible = f >= 0
        low, f_low = torch.where(feasible, low, rho), torch.where(feasible, f_low, f)
        high, f_high = torch.where(feasible, rho, high), torch.where(feasible, f, f_high)
    return high


def _any(beta: Float[Tensor, "R 1"], k: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """Return the probability that at least one of k acceptance tests passes, if each passes with probability β."""
    return -torch.expm1(k * torch.log1p(-beta.clamp(max=1)))

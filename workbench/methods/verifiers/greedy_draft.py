"""Hu et al.'s rule: of the drafts at a position, only the last was sampled, and only it is tested with p / q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.core.rejection import residual
from workbench.core.rules import Rule
from workbench.core.sibling_groups import SiblingGroups
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.declarations import Claim
from workbench.kernels.rejection import run_sibling_tests
from workbench.methods.verifiers.exact import EmissionVerifier, rule_of
from workbench.methods.verifiers.lossless import Lossless

PAPER = "Hu et al. 2025, Towards optimal multi-draft speculative decoding, arXiv:2502.18779, the greedy draft sampling"


@dataclass(frozen=True)
class GreedyDraft(EmissionVerifier):
    """Of the n drafts at a position, test only the last, x, and accept it with probability min(1, p(x) / q̃(x)).

    p and q are the target's and the drafter's distribution. The first n − 1 drafts are the drafter's likeliest tokens,
    chosen deterministically; the last was drawn from q without them, normalised (q̃). If its test fails, a token y is
    drawn from (p − q̃)₊, normalised. q̃ is 0 at the n − 1 chosen tokens, so y is often one of them; that draft is then
    accepted. Some draft is accepted with probability Σ p over the chosen tokens + Σ min(p, q̃) over all other tokens.
    This is the maximum for such drafts. The rule is also exact if the first n − 1 drafts were sampled, because q̃ is
    computed from their actual values.

    Source: Hu et al. 2025, arXiv:2502.18779.
    """

    name: ClassVar[str] = "greedy-draft"
    exact_for: ClassVar[frozenset[Sampling]] = frozenset(
        {Sampling.DETERMINISTIC, Sampling.CHAIN, Sampling.FIXED_NUMBER, Sampling.HEAD_AND_ONE}
    )
    useful_for: ClassVar[frozenset[Sampling]] = frozenset({Sampling.HEAD_AND_ONE})
    explanation: ClassVar[Rule] = rule_of(
        "greedy-draft",
        "Greedy draft",
        "Only the sampled draft is tested, with min(1, p / q̃); q̃ is q without the deterministic drafts.",
        PAPER,
    )
    claims: ClassVar[tuple[Claim, ...]] = tuple(
        Claim(
            f"acceptance probability relative to rejection without replacement, 4 drafts, temperature {warmth}",
            "LLaMA, OPT, several temperatures: greedy drafts are often accepted more", None, None,
            "Hu et al. 2025, arXiv:2502.18779, abstract (only the direction is compared; numbers not read)",
            lambda lab, warmth=warmth: lab.accepted_over(
                (GreedyDraft(), Sampling.HEAD_AND_ONE), (Lossless(), Sampling.FIXED_NUMBER), 4, warmth
            ),
            key=f"greedy-draft-{warmth}", method="draft-tree-sampled",
        )
        for warmth in (0.5, 1.0)
    )  # fmt: skip

    def acceptance(self, tree: DraftTree, fans: SiblingGroups) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R V"]]:
        """Return the acceptance probability of each child, 0 for all but the last, and the residual distribution."""
        tiny, last = torch.finfo(fans.p.dtype).tiny, _last(fans)
        heads = (fans.has_child & ~last).to(fans.q.dtype)
        rest = fans.q * (1 - torch.zeros_like(fans.q).scatter_add(1, fans.token, heads)).clamp_min(0)
        total = rest.sum(1, keepdim=True)
        # q̃ is 0 if the chosen tokens have all of q; the last draft is then deterministic, too.
        q = rest / total.clamp_min(tiny)
        passes = (fans.p.gather(1, fans.token) / q.gather(1, fans.token).clamp_min(tiny)).clamp(max=1)
        return torch.where(last & (total > 0), passes, 0.0), residual(fans.p, q)

    def compiled_acceptance(
        self, tree: DraftTree, fans: SiblingGroups
    ) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R F"], Float[Tensor, "R 1"]] | None:
        """Return acceptance probabilities and residual probabilities of the drafted tokens, from compiled code."""
        test = run_sibling_tests(fans, _last(fans), without_replacement=True, tokens=True)
        accept_probs = torch.where(test.q_left > 0, test.accept, 0.0)
        return accept_probs, test.at_tokens, test.other_mass.unsqueeze(1)


def _last(fans: SiblingGroups) -> Bool[Tensor, "R F"]:
    """Return a mask that is true at the last drafted child of each of R positions."""
    n = fans.has_child.sum(1, keepdim=True)
    return torch.arange(fans.token.shape[1], device=n.device) == n - 1

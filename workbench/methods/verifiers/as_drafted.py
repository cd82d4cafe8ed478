"""Approximate verifier: accept drafts of high draft probability unverified; compute the output's deviation from p."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision
from workbench.core.rules import ALL, Rule
from workbench.core.sibling_groups import compute_node_errors, select_rows
from workbench.decoders.declarations import Claim
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.engine.request import Sequence
from workbench.methods.verifiers.answers import at_matched_accuracy
from workbench.methods.verifiers.sums import make_ready, unverified_excess
from workbench.methods.verifiers.unverified_acceptance import (
    accept_unverified,
    allowed_mask,
    at_draft_tokens,
    exact_decision,
    is_chain_with_probs,
)
from workbench.models.loading import Models

AS_DRAFTED = Rule(
    "as-drafted",
    "Accepted as drafted",
    "d > β",
    {"d": "own_chance", "β": "sure"},
    "The drafter's probability d of this draft is above β, so the draft is accepted whatever the target's "
    "probability. The output does not follow the target's distribution.",
    leaves=ALL,
    source="Liu et al. 2024, arXiv:2404.06954 (β = 0); Sun et al. 2024, Lexical Unit Decoding, arXiv:2405.15208",
)

STILL_READ = (
    "verifier=as-drafted is an approximation. The target still reads every draft: it generates the last token of the "
    "round, the keys and values of the text are its own, and its probabilities for the drafts show the deviation. A "
    "decoder without this target pass would be faster than measured here."
)
"""Declared difference from papers that decode with some of the target's layers alone: here the whole target runs in
every round."""


@dataclass(frozen=True)
class AsDrafted(Verifier):
    """Accept draft token x unverified if its draft probability q(x) > β; otherwise the exact rule decides.

    β = 0 accepts all drafts; β = 1 is exact. Some papers draft with some layers of the target and accept all drafts.
    With such a drafter, this rule reproduces their approximate decoder. The target still processes each round's draft:
    it generates the last token of the round, computes the KV cache, and its distributions p give the deviation. Each
    tested position adds to the deviation of a round

        Σ (q(x) − p(x))₊ over all tokens x with q(x) > β.

    This is the total variation distance between the distribution of the emitted token and the target's distribution. At
    temperature 0 the deviation is the number of accepted drafts that are not the target's likeliest token. The rule
    applies to chains that have their drafter's distributions. Any other draft is verified exactly.

    Source: Liu et al. 2024, Unified Layer Skipping, arXiv:2404.06954, and Alizadeh et al. 2024, Duo-LLM,
    arXiv:2410.10846 (β = 0); Sun et al. 2024, Lexical Unit Decoding, arXiv:2405.15208 (β).
    """

    name: ClassVar[str] = "as-drafted"
    claims: ClassVar[tuple[Claim, ...]] = (
        at_matched_accuracy(
            "as-drafted", ({},), "BLOOMZ-7B and LLaMA-2, fine-tuned with layers skipped: nearly the same answers",
            "Liu et al. 2024, arXiv:2404.06954, abstract "
            "(only the direction is compared)", temperature=0.0, method="unified-skip",
            lacks="a target fine-tuned with layers skipped",
        ),
        at_matched_accuracy(
            "as-drafted", ({},),
            "models fine-tuned with placeholder tokens: answers as good on text, 3 % worse on code",
            "Sun et al. 2024, arXiv:2405.15208, abstract "
            "(only the direction is compared)", temperature=0.0, method="lexical-unit",
            lacks="a target that was trained to predict later tokens at placeholder tokens",
        ),
    )  # fmt: skip
    reads_draft_probs: ClassVar[bool] = True
    keeps_greedy: ClassVar[bool] = False
    sure: float = param(
        0.0,
        ge=0.0,
        le=1.0,
        doc="β, accept draft tokens unverified if their draft probability is above this; 1 is exact",
    )

    def init_state(self, sequence: Sequence, models: Models) -> None:
        """Compile the sums that the verifier needs before the first round. Return None: the verifier has no state."""
        make_ready(models.target.device)

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Accept nodes whose draft probability exceeds the threshold β; apply the exact rule at all other nodes."""
        tree, exact = v.tree, exact_decision(v)
        if not is_chain_with_probs(tree, exact):
            return exact.without_error
        assert tree.q is not None
        q = tree.q.to(v.p.dtype)
        token_q = at_draft_tokens(tree, q)
        writes = (token_q > self.sure) & allowed_mask(v)

        def node_deviation(node: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
            return unverified_excess(
                select_rows(v.p, node), select_rows(q, node), select_rows(v.logits, node), self.sure
            )

        greedy = v.u_bonus is None
        deviation = (
            torch.where(writes, 1 - exact.accept, 0.0)
            if greedy
            else compute_node_errors(len(tree), node_deviation, v.p, v.lazy)
        )
        return accept_unverified(exact, writes, AS_DRAFTED, {"own_chance": token_q}, deviation)

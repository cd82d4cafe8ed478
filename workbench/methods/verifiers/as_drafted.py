"""As drafted: what its drafter is sure of is kept unseen. Approximate decoding, with its price in view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.places import later, rows
from workbench.core.rejection import Ruling
from workbench.core.rules import ALL, Rule
from workbench.engine.declared import Claim
from workbench.engine.models import Models
from workbench.engine.parts import Verifier
from workbench.engine.request import Row
from workbench.engine.told import Verification
from workbench.methods.verifiers.answers import at_matched_accuracy
from workbench.methods.verifiers.handing_over import (
    at_tokens,
    exact_ruling,
    handed_over,
    may_hand_over,
    unforbidden,
)
from workbench.methods.verifiers.sums import make_ready, unseen

AS_DRAFTED = Rule(
    "as-drafted",
    "Kept as drafted",
    "d > β",
    {"d": "own_chance", "β": "sure"},
    "The drafter gives its own draft the chance d, more than β: it is kept, whatever the target says of it. The "
    "target's law is not kept.",
    leaves=ALL,
    source="Liu et al. 2024, arXiv:2404.06954 (β = 0); Sun et al. 2024, Lexical Unit Decoding, arXiv:2405.15208",
)

STILL_READ = (
    "With verifier=as-drafted, an approximation, the target still reads every draft: it writes the token that ends the "
    "round, the keys and values of the text are its own, and what it says of the drafts shows their price. A decoder "
    "that leaves its pass out would be faster than what is measured here."
)
"""Of a method whose part of the target may decode alone: why the whole target reads on."""


@dataclass(frozen=True)
class AsDrafted(Verifier):
    """Keep x where its drafter's own chance q(x) > β, whatever the target says; where not, the exact rule decides.

    So a part of the target that drafts becomes the approximate decoder that its paper has. β = 0 keeps all; 1 is exact.
    The target reads each round's draft all the same: it writes the token that ends the round, its keys and values are
    those of the text, and what it says of the draft is the price. A round pays, summed over the places that it tests,

        Σ (q(x) − p(x))₊ over the tokens with q(x) > β,

    which is the total variation between the law of the token there and the target's; at temperature 0, how many of
    the kept drafts are not the target's. Chains that carry their drafter's laws are kept so; any other draft is judged
    exactly.

    Source: Liu et al. 2024, Unified Layer Skipping, arXiv:2404.06954, and Alizadeh et al. 2024, Duo-LLM,
    arXiv:2410.10846 (β = 0); Sun et al. 2024, Lexical Unit Decoding, arXiv:2405.15208 (β).
    """

    name: ClassVar[str] = "as-drafted"
    claims: ClassVar[tuple[Claim, ...]] = (
        at_matched_accuracy(
            "as-drafted", ({},), "BLOOMZ-7B and LLaMA-2, fine-tuned with layers left out: nearly the same answers",
            "Liu et al. 2024, arXiv:2404.06954, abstract (direction)", temperature=0.0, method="unified-skip",
            lacks="a target that was trained on with layers left out",
        ),
        at_matched_accuracy(
            "as-drafted", ({},), "models fine-tuned to read placeholders: as good on text, 3 % less on code",
            "Sun et al. 2024, arXiv:2405.15208, abstract (direction)", temperature=0.0, method="lexical-unit",
            lacks="a target that was trained to read placeholders",
        ),
    )  # fmt: skip
    reads_laws: ClassVar[bool] = True
    keeps_greedy: ClassVar[bool] = False
    sure: float = param(
        0.0, ge=0.0, le=1.0, doc="β, the drafter's own chance of a draft above which it is kept unseen; 1 is exact"
    )

    def prime(self, row: Row, models: Models) -> None:
        """No state; but what adds up wide laws is compiled here, and not in a round."""
        make_ready(models.target.device)

    def rule(self, v: Verification) -> Ruling:
        """The exact rule, but for the nodes of which the drafter is sure."""
        tree, exact = v.tree, exact_ruling(v)
        if not may_hand_over(tree, exact):
            return exact.for_nothing
        assert tree.q is not None
        q = tree.q.to(v.p.dtype)
        own = at_tokens(tree, q)
        writes = (own > self.sure) & unforbidden(v)

        def apart(node: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
            return unseen(rows(v.p, node), rows(q, node), rows(v.logits, node), self.sure)

        greedy = v.u_stop is None
        paid = torch.where(writes, 1 - exact.accept, 0.0) if greedy else later(len(tree), apart, v.p, v.late)
        return handed_over(exact, writes, AS_DRAFTED, {"own_chance": own}, paid)

"""Lenient acceptance: the draft probability is scaled by λ < 1, so output probabilities are at most p / λ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision, RuleExplanation, greedy_match
from workbench.core.relaxed import Lift
from workbench.core.rules import EXCESS, OTHERS, Rule
from workbench.decoders.declarations import Claim
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.kernels.rejection import relaxed_rejection
from workbench.methods.verifiers.answers import at_matched_accuracy

SOURCE = "Leviathan et al. 2023, arXiv:2211.17192, appendix A.5; Zhou et al. 2024, DistillSpec, arXiv:2310.08461"
LENIENT = Rule(
    "lenient",
    "p over λ · q",
    "min(1, r / (λ · q′))",
    {"r": "residual", "q′": "q_left", "λ": "lenience"},
    "The draft probability q′ is scaled by λ and compared with r, the residual of p after earlier drafts: more drafts "
    "are accepted, and no token is emitted with more than 1/λ times its probability. A rejection leaves (r − λ · q′)₊.",
    leaves=EXCESS,
    share="lenience",
    source=SOURCE,
)
LENIENT_POINT = Rule(
    "lenient-point",
    "p over λ",
    "min(1, r / λ)",
    {"r": "residual", "λ": "lenience"},
    "The drafter proposed this token deterministically, so q is a point mass. It is scaled by λ and compared with r, "
    "the residual of p after earlier drafts. A rejection removes the token.",
    leaves=OTHERS,
    source=SOURCE,
)


@dataclass(frozen=True)
class Lenient(Verifier):
    """Accept x with min(1, p(x) / (λ·q(x))); after a rejection draw from (p − λ·q)₊, normalised.

    p and q are the target's and the drafter's distribution. The rule is speculative sampling with λ·q in place of q.
    For a draft sampled from q the output distribution is

        out(x) = min(q(x), p(x)/λ) + (1 − Σ min(q, p/λ)) · (p(x) − λ·q(x))₊ / Σ (p − λ·q)₊,

    and no entry is above p(x)/λ. λ = 1 is exact. The deviation of a round is the total variation between this
    distribution and p, summed over the tested positions. At temperature 0 the rule is greedy match.

    Source: Leviathan et al. 2023, arXiv:2211.17192, appendix A.5 (lenience, called l); Zhou et al. 2024, DistillSpec,
    arXiv:2310.08461, lossy speculative decoding with f(p) = p/ε. Siblings are tested as in recursive rejection.
    """

    name: ClassVar[str] = "lenient"
    claims: ClassVar[tuple[Claim, ...]] = (
        at_matched_accuracy(
            "lenient", ({"lenience": 0.9}, {"lenience": 0.7}, {"lenience": 0.5}),
            "distilled T5 drafters, GSM8K: faster, and equally accurate with λ near 1",
            "Zhou et al. 2024, DistillSpec, arXiv:2310.08461, lossy decoding (only the direction is compared; from "
            "memory; no number given)",
        ),
    )  # fmt: skip
    lenience: float = param(
        0.5, ge=0.05, le=1.0, doc="λ, factor on the draft probabilities in the acceptance test; 1 is exact"
    )

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Apply recursive rejection with λ·q in place of the draft distribution q; greedy match at temperature 0."""
        if v.u_bonus is None:
            return greedy_match(v.tree, v.likeliest()).without_error
        tree = v.tree
        test = relaxed_rejection(tree, v.p, v.u_bonus, Lift(self.lenience), v.lazy, with_total_variation=True)
        inputs = {"residual": test.residual, "q_left": test.q_left}
        if tree.q is None:
            explanation = RuleExplanation((LENIENT_POINT,), inputs)
        else:
            rule_of_node = (
                (tree.node_q_rows < 0).long() if tree.node_q_rows is not None else tree.tokens.new_zeros(len(tree))
            )
            explanation = RuleExplanation((LENIENT, LENIENT_POINT), {**inputs, "q": test.q}, rule_of_node)
        return AcceptanceDecision(
            test.accept, test.bonus, explanation=explanation, distribution_error=test.total_variation
        )

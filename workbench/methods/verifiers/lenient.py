"""Lenience: a draft counts as if its drafter had been less sure of it, and no token comes out far too often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.core.params import param
from workbench.core.rejection import Reason, Ruling, greedy_match
from workbench.core.relaxed import Lift
from workbench.core.rules import EXCESS, OTHERS, Rule
from workbench.engine.declared import Claim
from workbench.engine.parts import Verifier
from workbench.engine.rejecting import relaxed_rejection
from workbench.engine.told import Verification
from workbench.methods.verifiers.answers import at_matched_accuracy

SOURCE = "Leviathan et al. 2023, arXiv:2211.17192, appendix A.5; Zhou et al. 2024, DistillSpec, arXiv:2310.08461"
LENIENT = Rule(
    "lenient",
    "p over λ · q",
    "min(1, r / (λ · q′))",
    {"r": "residual", "q′": "q_left", "λ": "lenience"},
    "The drafter's chance q′ counts λ times against r, what elder drafts left of p: more is kept, and no token comes "
    "out with more than 1/λ of its probability there. A rejection leaves (r − λ · q′)₊.",
    leaves=EXCESS,
    share="lenience",
    source=SOURCE,
)
LENIENT_POINT = Rule(
    "lenient-point",
    "p over λ",
    "min(1, r / λ)",
    {"r": "residual", "λ": "lenience"},
    "It was chosen, not drawn: its law is a point mass, which counts λ times against r, what elder drafts left of p. A "
    "rejection takes the token out.",
    leaves=OTHERS,
    source=SOURCE,
)


@dataclass(frozen=True)
class Lenient(Verifier):
    """Accept x with min(1, p(x) / (λ·q(x))); after a rejection draw from (p − λ·q)₊, normalised.

    It is speculative sampling with λ·q for q, and so emits, of a draft drawn from q, the law

        out(x) = min(q(x), p(x)/λ) + (1 − Σ min(q, p/λ)) · (p(x) − λ·q(x))₊ / Σ (p − λ·q)₊,

    of which no entry is above p(x)/λ. λ = 1 is exact. What a round pays is the sum, over the places it tests, of the
    total variation between that law and p. At temperature 0 it is greedy match.

    Source: Leviathan et al. 2023, arXiv:2211.17192, appendix A.5 (lenience, there l); Zhou et al. 2024, DistillSpec,
    arXiv:2310.08461, lossy speculative decoding with f(p) = p/ε. Siblings are tested as in recursive rejection.
    """

    name: ClassVar[str] = "lenient"
    claims: ClassVar[tuple[Claim, ...]] = (
        at_matched_accuracy(
            "lenient", ({"lenience": 0.9}, {"lenience": 0.7}, {"lenience": 0.5}),
            "distilled T5 drafters, GSM8K: faster, and as good where λ is near 1",
            "Zhou et al. 2024, DistillSpec, arXiv:2310.08461, lossy decoding (direction; recalled, no figure)",
        ),
    )  # fmt: skip
    lenience: float = param(
        0.5, ge=0.05, le=1.0, doc="λ, by which the drafter's probabilities count; 1 keeps the target's law"
    )

    def rule(self, v: Verification) -> Ruling:
        """Recursive rejection against p/λ."""
        if v.u_stop is None:
            return greedy_match(v.tree, v.likeliest()).for_nothing
        tree = v.tree
        found = relaxed_rejection(tree, v.p, v.u_stop, Lift(self.lenience), v.late, priced=True)
        inputs = {"residual": found.residual, "q_left": found.q_left}
        if tree.q is None:
            reason = Reason((LENIENT_POINT,), inputs)
        else:
            chosen = (tree.law_of < 0).long() if tree.law_of is not None else tree.tokens.new_zeros(len(tree))
            reason = Reason((LENIENT, LENIENT_POINT), {**inputs, "q": found.q}, chosen)
        return Ruling(found.accept, found.stop, reason=reason, paid=found.apart)

"""The default exact verifier: greedy match at temperature 0, recursive rejection otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.core.rejection import AcceptanceDecision
from workbench.core.tree import Sampling
from workbench.decoders.declarations import Claim
from workbench.decoders.draft_verify.parts import Verification, Verifier, verify_lossless
from workbench.methods.verifiers.independent import Independent


@dataclass(frozen=True)
class Lossless(Verifier):
    """Verify exactly: greedy decoding emits the target's own tokens, and sampling follows the target's distribution.

    The form of the rule depends on how siblings were drawn (`DraftTree.sampling`); see
    `workbench.core.rejection.recursive_rejection`.

    Source: Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318; Jeon et al. 2024,
    arXiv:2402.14160.
    """

    name: ClassVar[str] = "lossless"
    exact_for: ClassVar[frozenset[Sampling]] = frozenset(Sampling)
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "acceptance probability of 4 drafts sampled without replacement, relative to SpecInfer's rule for 4 "
            "independent drafts",
            "LLaMA-2 and OPT pairs", None, None,
            "Jeon et al. 2024, arXiv:2402.14160, §3 "
            "(only the direction is compared)",
            lambda lab: lab.accepted_over((Lossless(), Sampling.FIXED_NUMBER), (Independent(), Sampling.SAMPLED), 4),
            key="without-replacement", method="draft-tree-sampled",
        ),
    )  # fmt: skip

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Verify a draft by greedy match at temperature 0, and by recursive rejection otherwise."""
        return verify_lossless(v)

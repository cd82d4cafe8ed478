"""Verification result on the host: results of the acceptance rule, and the walk through the tree."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.rejection import VerificationResult, expected_accepted
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.acceptance import Acceptance
from workbench.decoders.draft_verify.parts import Verifier


@dataclass(frozen=True, slots=True)
class VerifiedTree:
    """A draft tree with the results of its verification, on the host.

    Attributes:
        tree: draft tree; its tensors are on the device.
        acceptance: results of the acceptance rule.
        result: accepted path, and the token after it.
        n_accepted: number of accepted nodes; its expected value if probabilities of the exact rule are known and the
            verifier draws random numbers.
        probe_sources: source of each probe position.
    """

    tree: DraftTree
    acceptance: Acceptance
    result: VerificationResult
    n_accepted: float
    probe_sources: list[str]

    @classmethod
    def of(cls, tree: DraftTree, acceptance: Acceptance, verifier: Verifier, probe_sources: list[str]) -> VerifiedTree:
        """Find the accepted path and the token after it, from results of the rule on the host."""
        scores = [acceptance.score] if acceptance.score else []
        parents, accept = acceptance.parents, acceptance.accept
        result = verifier.walk(parents, accept, acceptance.bonus, acceptance.uniform, *scores)
        is_shared = bool(acceptance.exact) and type(verifier).walk is Verifier.walk
        n_accepted = expected_accepted(parents, accept) if is_shared else float(len(result.path))
        return cls(tree, acceptance, result, n_accepted, probe_sources)

    @property
    def is_nan(self) -> bool:
        """Whether the target's probabilities contain NaN."""
        return any(value != value for value in self.acceptance.entropy)

    @property
    def sources(self) -> list[str]:
        """Source of each node."""
        source = self.tree.source
        return [source] * len(self.acceptance.tokens) if isinstance(source, str) else list(source)

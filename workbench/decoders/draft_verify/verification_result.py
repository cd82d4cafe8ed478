"""Verification result on the host: results of the acceptance rule, and the walk through the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.core.grown import Grown
from workbench.core.rejection import Reason, VerificationResult, expected_kept
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.acceptance import Acceptance
from workbench.decoders.draft_verify.parts import Verifier


@dataclass(slots=True)
class VerifiedTree:
    """A draft tree and its verification result, on the host.

    Attributes:
        exact: acceptance probabilities of the exact rule, if the rule used is exact for no drafts.
        kept: number of accepted nodes; with `exact` and a random rule, its expectation.
        reason: the rules, and the names of their inputs.
        at_most: whether `paid` is an upper bound.
    """

    tokens: list[int]
    parents: list[int]
    verdict: VerificationResult
    p_node: list[float]
    accept: list[float]
    p_stop: Sequence[float]
    entropy: list[float]
    q: list[float]
    top_tokens: list[list[int]]
    top_probs: list[list[float]]
    top_q: list[Any]
    inputs: list[list[float]]
    rule_of: list[int]
    q_of: list[int]
    paid: Sequence[float]
    source: str | tuple[str, ...]
    probes: list[list[int]]
    probe_sources: list[str]
    growth: Grown | None
    worth: list[list[float]]
    exact: list[float]
    kept: float
    reason: Reason | None = None
    at_most: bool = False

    @classmethod
    def of(
        cls, tree: DraftTree, found: Acceptance, verifier: Verifier, probe_sources: list[str] | None = None
    ) -> VerifiedTree:
        """Walk the tree and combine the results. `found`: results of the rule, on the host."""
        scores = [found.score] if found.score else []
        verdict = verifier.walk(found.parents, found.accept, found.stop, found.uniform, *scores)
        is_shared = bool(found.exact) and type(verifier).walk is Verifier.walk
        return cls(
            tokens=found.tokens,
            parents=found.parents,
            verdict=verdict,
            p_node=found.p_node,
            accept=found.accept,
            p_stop=found.p_stop,
            entropy=found.entropy,
            q=found.q,
            top_tokens=found.top_tokens,
            top_probs=found.top_probs,
            top_q=found.top_q,
            inputs=found.inputs,
            rule_of=found.rule_of,
            q_of=found.q_of,
            paid=found.paid,
            source=tree.source,
            probes=found.probes,
            probe_sources=probe_sources or [],
            growth=tree.grown,
            worth=found.columns,
            exact=found.exact,
            kept=expected_kept(found.parents, found.accept) if is_shared else float(len(verdict.path)),
            reason=found.reason,
            at_most=found.at_most,
        )

    @property
    def is_nan(self) -> bool:
        """Whether the target's probabilities contain NaN."""
        return any(value != value for value in self.entropy)

    @property
    def sources(self) -> list[str]:
        """Source of each node."""
        return [self.source] * len(self.tokens) if isinstance(self.source, str) else list(self.source)

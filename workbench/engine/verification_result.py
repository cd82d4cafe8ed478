"""Verification result on the host: results of `acceptance.figures`, and the walk through the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.core.grown import Grown
from workbench.core.rejection import VerificationResult, expected_kept
from workbench.core.tree import DraftTree
from workbench.engine.parts import Verifier


@dataclass(slots=True)
class VerifiedTree:
    """A draft tree and its verification result, on the host.

    Attributes:
        exact: acceptance probabilities of the exact rule, if the rule used is exact for no drafts.
        kept: number of accepted nodes; with `exact` and a random rule, its expectation.
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

    @classmethod
    def of(
        cls,
        tree: DraftTree,
        lists: list[Any],
        verifier: Verifier,
        uniform: list[float] | None,
        probe_sources: list[str] | None = None,
    ) -> VerifiedTree:
        """Walk the tree and combine the results. `lists`: results of `acceptance.figures`, on the host."""
        tokens, parents, stop, p_stop, entropy, p_node, accept, q, top_tokens, top_probs, top_q, *more = lists
        score, inputs, rule_of, q_of, paid, probes, worth, exact = more
        verdict = verifier.walk(parents, accept, stop, uniform, *([score] if score else []))
        is_shared = bool(exact) and type(verifier).walk is Verifier.walk
        kept = expected_kept(parents, accept) if is_shared else float(len(verdict.path))
        return cls(
            tokens, parents, verdict, p_node, accept, p_stop, entropy, q, top_tokens, top_probs, top_q, inputs, rule_of,
            q_of, paid, tree.source, probes, probe_sources or [], tree.grown, worth,
            exact, kept,
        )  # fmt: skip

    @property
    def is_nan(self) -> bool:
        """Whether the target's probabilities contain NaN."""
        return any(value != value for value in self.entropy)

    @property
    def sources(self) -> list[str]:
        """Source of each node."""
        return [self.source] * len(self.tokens) if isinstance(self.source, str) else list(self.source)

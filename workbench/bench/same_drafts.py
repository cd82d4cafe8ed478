"""Two verifiers on the same chains: compare their expected tokens per round, so that sampling adds no noise.

Two runs with different verifiers generate different texts after the first different sample, and the texts change τ more
than the verifiers do. Here one run drafts, and both verifiers are evaluated on every draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.core.rejection import AcceptanceDecision
from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.verifiers.lossless import Lossless


@dataclass(frozen=True)
class _PairedVerifier(Lossless):
    """Exact verifier that also evaluates another one."""

    other: Verifier = field(default_factory=Lossless)
    token_pairs: list[tuple[float, float]] = field(default_factory=list, compare=False)

    def rule(self, v: Verification) -> AcceptanceDecision:
        decision = super().rule(v)
        self.token_pairs.append((expected_tokens(self.other.rule(v)), expected_tokens(decision)))
        return decision


def expected_tokens(decision: AcceptanceDecision) -> float:
    """Return the expected tokens of a round with a given chain: accepted drafted tokens, and one target token."""
    return 1 + float(decision.accept.double().cumprod(0).sum())


def expected_tau(
    models: Models,
    prompts: Sequence[list[int]],
    draws: int,
    n_tokens: int,
    other: Verifier,
    params: Mapping[str, Any],
    temperature: float,
) -> Iterator[tuple[float, float]]:
    """Yield per prompt the expected tokens per round of `other`, and of the exact token-by-token verifier.

    Args:
        models: models with a draft model.
        prompts: token ids.
        draws: sampled texts per prompt.
        n_tokens: longest text.
        other: a verifier for chains.
        params: parameters of `draft-model`.
        temperature: temperature of samples and distributions.
    """
    draft_model = registry.get("draft-model")
    for i, ids in enumerate(prompts):
        verifier = _PairedVerifier(other=other)
        method = replace(draft_model, verifier=verifier, other_verifiers=(), claims=(), suites={}).with_params(**params)
        for draw in range(draws):
            seed = i + draw * len(prompts)
            Engine(models, record=False).generate(
                Request(ids, method, SamplingParams(temperature), max_new_tokens=n_tokens, seed=seed)
            )
        if verifier.token_pairs:
            yield tuple(sum(column) / len(verifier.token_pairs) for column in zip(*verifier.token_pairs, strict=True))  # pyright: ignore[reportReturnType]

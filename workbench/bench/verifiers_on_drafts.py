"""Verifiers evaluated on the same drafts of a real target and its draft model, so that sampling adds no noise.

Two runs with different verifiers generate different texts after the first different sample, and the texts change τ more
than the verifiers do. Here one run drafts, and both verifiers are evaluated on every draft: on its chains (expected
tokens per round), or on several drafts for one position (acceptance probability).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.bench.verifier_suite import sample_draft
from workbench.core.random_stream import Purpose, RandomStream
from workbench.core.rejection import AcceptanceDecision
from workbench.core.sampling import SamplingParams
from workbench.core.tree import Sampling
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.verifiers.lossless import Lossless
from workbench.trace import theory

VerifierSetup = tuple[Verifier | None, Sampling]
"""Type of a verifier (None: the optimal-transport bound) together with the sampling of the drafts."""
SETS = 64
"""Number of sets of drafts that are sampled at each position of a text."""
POSITIONS_PER_TREE = 32
"""Largest number of positions of a text that are verified together as one draft tree. It is limited, since some
verifiers compare all nodes of a tree with each other."""


@dataclass(frozen=True, slots=True)
class TextDistributions:
    """Distributions of the target and of the draft model at the positions of one text.

    Attributes:
        p: float [n, V], the target's distributions.
        q: float [n, V], the draft model's distributions.
    """

    p: Float[Tensor, "n V"]
    q: Float[Tensor, "n V"]

    def __len__(self) -> int:
        return len(self.p)


@dataclass(frozen=True)
class _Recorder(Lossless):
    """Exact verifier that passes each verification (the draft to verify) and its decision to a function."""

    record: Callable[[Verification, AcceptanceDecision], None] = field(default=lambda v, decision: None, compare=False)

    def rule(self, v: Verification) -> AcceptanceDecision:
        decision = super().rule(v)
        self.record(v, decision)
        return decision


def draft(
    models: Models,
    ids: list[int],
    params: Mapping[str, Any],
    n_tokens: int,
    temperature: float,
    seed: int,
    record: Callable[[Verification, AcceptanceDecision], None],
) -> None:
    """Generate a text with `draft-model` and the exact verifier, and call `record` for the draft of each round.

    Args:
        models: models with a draft model.
        ids: the prompt's token ids.
        params: parameters of the method `draft-model`.
        n_tokens: maximum length of the text, in tokens.
        temperature: temperature of both distributions, and of the text.
        seed: seed of the text.
        record: function of the verification and the exact verifier's decision.
    """
    method = replace(
        registry.get("draft-model"), verifier=_Recorder(record=record), other_verifiers=(), claims=(), suites={}
    )
    sampling = SamplingParams(temperature=temperature)
    Engine(models, record=False).generate(
        Request(ids, method.with_params(**params), sampling, max_new_tokens=n_tokens, seed=seed)
    )


def distributions_of(
    models: Models, prompts: Sequence[list[int]], n_tokens: int, temperature: float
) -> Iterator[TextDistributions]:
    """Yield for each prompt both models' distributions along a text of the target, generated with drafts of one token.

    Args:
        models: models with a draft model.
        prompts: token ids of each prompt.
        n_tokens: maximum length of a text, in tokens.
        temperature: temperature of both distributions, and of the text.
    """
    for i, ids in enumerate(prompts):
        rows = list[tuple[Tensor, Tensor]]()

        def record(v: Verification, _: AcceptanceDecision, rows: list[tuple[Tensor, Tensor]] = rows) -> None:
            if len(v.tree) and v.tree.q is not None:
                rows.append((v.p[0].float().cpu(), v.tree.q[0].float().cpu()))

        draft(models, ids, {"depth": 1}, n_tokens, temperature, i, record)
        if rows:
            yield TextDistributions(*(torch.stack(column) for column in zip(*rows, strict=True)))


def expected_tokens(decision: AcceptanceDecision) -> float:
    """Return the expected tokens of a round with a given chain: accepted draft tokens, and one token of the target."""
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
    """Yield for each prompt the expected tokens per round of `other`, and of the exact token-by-token verifier.

    Args:
        models: models with a draft model.
        prompts: token ids of each prompt.
        draws: sampled texts per prompt.
        n_tokens: maximum length of a text, in tokens.
        other: a verifier for chains.
        params: parameters of the method `draft-model`.
        temperature: temperature of samples and distributions.
    """
    for i, ids in enumerate(prompts):
        pairs = list[tuple[float, float]]()

        def record(v: Verification, decision: AcceptanceDecision, pairs: list[tuple[float, float]] = pairs) -> None:
            pairs.append((expected_tokens(other.rule(v)), expected_tokens(decision)))

        for draw in range(draws):
            draft(models, ids, params, n_tokens, temperature, i + draw * len(prompts), record)
        if pairs:
            yield fmean(own for own, _ in pairs), fmean(exact for _, exact in pairs)


def acceptance_probability(distributions: TextDistributions, setup: VerifierSetup, siblings: int) -> float:
    """Return the probability that one of several drafts for a position is accepted, averaged over positions.

    Drafts are sampled from q, `SETS` times. Given the drafts, the verifier's probability is exact, so that nothing else
    is sampled. Setups with the same sampling get the same drafts.

    Args:
        distributions: distributions at the positions.
        setup: the verifier, and how drafts are sampled.
        siblings: number of drafts per position.
    """
    verifier, kind = setup
    if verifier is None:
        exact = [probs / probs.sum(1, keepdim=True) for probs in (distributions.p.double(), distributions.q.double())]
        pairs = zip(*(probs.numpy() for probs in exact), strict=True)
        return fmean(theory.optimal_acceptance(p, q, siblings, kind is Sampling.SAMPLED) for p, q in pairs)
    parts = [
        TextDistributions(*pair)
        for pair in zip(
            distributions.p.split(POSITIONS_PER_TREE), distributions.q.split(POSITIONS_PER_TREE), strict=True
        )
    ]
    accept_probs = [_acceptance_probs(part, verifier, kind, siblings, seed) for seed, part in enumerate(parts * SETS)]
    return float(torch.cat(accept_probs).mean())


def _acceptance_probs(
    distributions: TextDistributions, verifier: Verifier, kind: Sampling, siblings: int, seed: int
) -> Float[Tensor, " n"]:
    """Return for each position of a text the probability that one of the drafts for it is accepted.

    The verifier's probability of each draft is conditional on the rejection of the earlier ones.
    """
    n = len(distributions)
    tree = sample_draft(kind, distributions.q, n * siblings, seed, siblings)
    # The position of each row of the target's distributions; rows without a draft below them are unused.
    positions = torch.zeros(len(tree) + 1, dtype=torch.long)
    positions[tree.parents[::siblings] + 1] = torch.arange(n)
    p = distributions.p[positions]
    u = torch.from_numpy(RandomStream(seed).uniform(0, Purpose.BONUS, len(p)))
    decision = verifier.rule(Verification(tree, p.log(), p, SamplingParams(temperature=1.0), u))
    return 1 - (1 - decision.accept.double().view(n, siblings)).prod(1)

"""Verifiers of several drafts for one position, evaluated on distributions of a real target and its draft model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

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
"""A verifier (None: the optimal-transport bound), and the sampling of the drafts."""
SETS = 64
"""Sets of drafts that are sampled per position."""
POSITIONS_PER_TREE = 32
"""Positions verified at once, as one draft tree; a limit, since some verifiers compare all nodes of a tree with each
other."""


@dataclass(frozen=True, slots=True)
class TextDistributions:
    """Both distributions at the positions of one text.

    Attributes:
        p: float [n, V], the target's distributions.
        q: float [n, V], the draft model's distributions.
    """

    p: Float[Tensor, "n V"]
    q: Float[Tensor, "n V"]

    def __len__(self) -> int:
        return len(self.p)


@dataclass(frozen=True)
class _DistributionRecorder(Lossless):
    """Exact verifier that records the distributions of every position with a draft."""

    distributions: list[tuple[Tensor, Tensor]] = field(default_factory=list, compare=False)

    def rule(self, v: Verification) -> AcceptanceDecision:
        if len(v.tree) and v.tree.q is not None:
            self.distributions.append((v.p[0].float().cpu(), v.tree.q[0].float().cpu()))
        return super().rule(v)


def distributions_of(
    models: Models, prompts: Sequence[list[int]], n_tokens: int, temperature: float
) -> Iterator[TextDistributions]:
    """Yield the distributions along a text after each prompt; the target generates it with drafts of one token.

    Args:
        models: models with a draft model.
        prompts: token ids.
        n_tokens: longest text.
        temperature: temperature of both distributions, and of the text.
    """
    chain = registry.get("draft-model")
    for i, ids in enumerate(prompts):
        recorder = _DistributionRecorder()
        method = replace(chain, verifier=recorder, other_verifiers=(), claims=(), suites={})
        request = Request(
            ids, method.with_params(depth=1), SamplingParams(temperature=temperature), max_new_tokens=n_tokens, seed=i
        )
        Engine(models, record=False).generate(request)
        if recorder.distributions:
            yield TextDistributions(*(torch.stack(rows) for rows in zip(*recorder.distributions, strict=True)))


def acceptance_probability(distributions: TextDistributions, setup: VerifierSetup, siblings: int) -> float:
    """Return the probability that a position accepts one of its drafts, mean over positions.

    Drafts are sampled from q, `SETS` times. Given the drafts, the verifier's probability is exact, so that nothing else
    is sampled. Setups with the same sampling get the same drafts.

    Args:
        distributions: distributions at the positions.
        setup: the verifier, and how drafts are sampled.
        siblings: drafts per position.
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
    """Return per position the probability that one of its drafts is accepted.

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

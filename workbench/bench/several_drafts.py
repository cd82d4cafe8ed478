"""What verifiers make of several drafts for one place: on laws that a target and its draft model really have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.bench.verifier_suite import draft
from workbench.core.draw import Draw, Purpose
from workbench.core.rejection import Ruling
from workbench.core.sampling import SamplingParams
from workbench.core.tree import Sampling
from workbench.engine import Engine, Models, Request
from workbench.engine.feedback import Verification
from workbench.engine.parts import Verifier
from workbench.methods import registry
from workbench.methods.verifiers.lossless import Lossless
from workbench.trace import theory

Way = tuple[Verifier | None, Sampling]
"""A verifier, None for the best that any could be (the optimal-transport bound); and how the drafts are drawn."""
SETS = 64
"""Sets of drafts that are drawn for each place."""
TOGETHER = 32
"""Places judged at once, as one draft: some rules compare all its nodes with each other."""


@dataclass(frozen=True, slots=True)
class Laws:
    """Both laws at the places of one text.

    Attributes:
        p: float [n, V], the target's.
        q: float [n, V], the draft model's.
    """

    p: Float[Tensor, "n V"]
    q: Float[Tensor, "n V"]

    def __len__(self) -> int:
        return len(self.p)


@dataclass(frozen=True)
class _Watching(Lossless):
    """Keeps the laws of every place that something was drafted for."""

    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list, compare=False)

    def rule(self, v: Verification) -> Ruling:
        if len(v.tree) and v.tree.q is not None:
            self.seen.append((v.p[0].float().cpu(), v.tree.q[0].float().cpu()))
        return super().rule(v)


def laws_of(models: Models, prompts: Sequence[list[int]], n_tokens: int, temperature: float) -> Iterator[Laws]:
    """The laws along a text behind each prompt, which the target writes with drafts of one token.

    Args:
        models: with a draft model.
        prompts: token ids.
        n_tokens: longest text.
        temperature: of both laws, and of the text.
    """
    chain = registry.get("draft-model")
    for i, ids in enumerate(prompts):
        watching = _Watching()
        alone = replace(chain, verifier=watching, other_verifiers=(), claims=(), suites={})
        request = Request(
            ids, alone.with_params(depth=1), SamplingParams(temperature=temperature), max_new_tokens=n_tokens, seed=i
        )
        Engine(models, record=False).generate(request)
        if watching.seen:
            yield Laws(*(torch.stack(rows) for rows in zip(*watching.seen, strict=True)))


def accepted(laws: Laws, way: Way, siblings: int) -> float:
    """The chance that a place accepts one of its drafts, mean over places.

    Drafts are drawn from q, `SETS` times; given them the rule says the chance, so that nothing else is drawn. Ways that
    draw drafts alike see the same ones.

    Args:
        laws: of the places.
        way: what judges, and how drafts are drawn.
        siblings: drafts for each place.
    """
    verifier, kind = way
    if verifier is None:
        exact = [law / law.sum(1, keepdim=True) for law in (laws.p.double(), laws.q.double())]
        pairs = zip(*(law.numpy() for law in exact), strict=True)
        return fmean(theory.optimal_acceptance(p, q, siblings, kind is Sampling.SAMPLED) for p, q in pairs)
    parts = [Laws(*pair) for pair in zip(laws.p.split(TOGETHER), laws.q.split(TOGETHER), strict=True)]
    chances = [_chances(part, verifier, kind, siblings, seed) for seed, part in enumerate(parts * SETS)]
    return float(torch.cat(chances).mean())


def _chances(laws: Laws, verifier: Verifier, kind: Sampling, siblings: int, seed: int) -> Float[Tensor, " n"]:
    """Of each place, that one of its drafts is accepted: the rule says it of each, given those before it were not."""
    n = len(laws)
    tree = draft(kind, laws.q, n * siblings, seed, siblings)
    at = torch.zeros(len(tree) + 1, dtype=torch.long)  # row of the target's law → place; other rows are read by nobody
    at[tree.parents[::siblings] + 1] = torch.arange(n)
    p = laws.p[at]
    u = torch.from_numpy(Draw(seed).uniform(0, Purpose.STOP, len(p)))
    ruling = verifier.rule(Verification(tree, p.log(), p, SamplingParams(temperature=1.0), u))
    return 1 - (1 - ruling.accept.double().view(n, siblings)).prod(1)

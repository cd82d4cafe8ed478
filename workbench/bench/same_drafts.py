"""What two rules make of the same chains: the tokens that each expects of a round, so that no draw of theirs is noise.

Two runs that differ in the verifier alone write different texts after the first different draw, and their τ differ by
more than rules do. Here one run drafts, and both rules are asked about every draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.core.rejection import Ruling
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.engine.feedback import Verification
from workbench.engine.parts import Verifier
from workbench.methods import registry
from workbench.methods.verifiers.lossless import Lossless


@dataclass(frozen=True)
class _Asking(Lossless):
    """Judges by the exact rule, and asks another one, too."""

    other: Verifier = field(default_factory=Lossless)
    found: list[tuple[float, float]] = field(default_factory=list, compare=False)

    def rule(self, v: Verification) -> Ruling:
        ruling = super().rule(v)
        self.found.append((expected(self.other.rule(v)), expected(ruling)))
        return ruling


def expected(ruling: Ruling) -> float:
    """Tokens that a round with a chain emits on the average, given the chain: the kept ones and the target's own."""
    return 1 + float(ruling.accept.double().cumprod(0).sum())


def expected_tau(
    models: Models,
    prompts: Sequence[list[int]],
    draws: int,
    n_tokens: int,
    other: Verifier,
    params: Mapping[str, Any],
    temperature: float,
) -> Iterator[tuple[float, float]]:
    """Of each prompt: tokens a round that `other` expects, and those of one token after the other.

    Args:
        models: with a draft model.
        prompts: token ids.
        draws: texts of each.
        n_tokens: longest text.
        other: a verifier for chains.
        params: of `draft-model`.
        temperature: of draws and laws.
    """
    chain = registry.get("draft-model")
    for i, ids in enumerate(prompts):
        asking = _Asking(other=other)
        method = replace(chain, verifier=asking, other_verifiers=(), claims=(), suites={}).with_params(**params)
        for draw in range(draws):
            seed = i + draw * len(prompts)
            Engine(models, record=False).generate(
                Request(ids, method, SamplingParams(temperature), max_new_tokens=n_tokens, seed=seed)
            )
        if asking.found:
            yield tuple(sum(column) / len(asking.found) for column in zip(*asking.found, strict=True))  # pyright: ignore[reportReturnType]

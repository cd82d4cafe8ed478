"""Which exact verifiers a method offers: derived from how siblings are drawn and what each rule is exact for."""

from __future__ import annotations

from workbench.core.soundness import why_unsound
from workbench.core.tree import Sampling
from workbench.engine.parts import Grower
from workbench.methods.verifiers.block import Block
from workbench.methods.verifiers.deterministic import Deterministic
from workbench.methods.verifiers.exact import Exact
from workbench.methods.verifiers.greedy_draft import GreedyDraft
from workbench.methods.verifiers.independent import Independent
from workbench.methods.verifiers.k_seq import KSeq
from workbench.methods.verifiers.optimal_two import OptimalTwo

EXACT: tuple[Exact, ...] = (Block(), Independent(), KSeq(), OptimalTwo(), GreedyDraft(), Deterministic())
"""Beside `Lossless`, which is exact for all drafts."""


def offered(*drawn: Sampling) -> tuple[Exact, ...]:
    """The verifiers that are exact for siblings drawn in each of these ways, and another rule there than `Lossless`.

    Example:
        >>> [verifier.name for verifier in offered(Sampling.CHAIN)]
        ['block', 'deterministic']
    """
    return tuple(v for v in EXACT if set(drawn) <= v.exact_for and set(drawn) & v.made_for)


def for_growers(growers: tuple[Grower, ...]) -> tuple[Exact, ...]:
    """What a method offers beside `Lossless` whose drafts may grow in any of these ways: what each of them can use.

    With a grower that does not suit a rule the method promises no law, and says why: see `Configured.unsound`.
    """
    return tuple(v for v in EXACT if any(grower.siblings in v.made_for for grower in growers))


def refused(drafter: str, *drawn: Sampling) -> dict[str, str]:
    """Why others may not judge drafts whose siblings are drawn in these ways: a sentence by the verifier's name.

    A rule that comes to the same as `Lossless` there is not offered, and not refused.

    Args:
        drafter: its name, for the sentences.
        drawn: how its siblings may come.
    """
    reasons = {v.name: why_unsound(drafter, drawn, v.name, v.exact_for) for v in EXACT}
    return {verifier: reason for verifier, reason in reasons.items() if reason}

"""Choice of the exact verifiers that a method offers, by the way in which the method draws siblings."""

from __future__ import annotations

from workbench.core.soundness import why_unsound
from workbench.core.tree import Sampling
from workbench.decoders.draft_verify.parts import TreeBuilder
from workbench.methods.verifiers.block import Block
from workbench.methods.verifiers.deterministic import Deterministic
from workbench.methods.verifiers.exact import Exact
from workbench.methods.verifiers.greedy_draft import GreedyDraft
from workbench.methods.verifiers.independent import Independent
from workbench.methods.verifiers.k_seq import KSeq
from workbench.methods.verifiers.optimal_two import OptimalTwo

EXACT_VERIFIERS: tuple[Exact, ...] = (Block(), Independent(), KSeq(), OptimalTwo(), GreedyDraft(), Deterministic())
"""Exact verifiers besides `Lossless`, which is exact for all drafts."""


def verifiers_for_kinds(*kinds: Sampling) -> tuple[Exact, ...]:
    """Return the verifiers that are exact for all given ways of drawing siblings.

    Verifiers that equal `Lossless` for all of these ways are left out.

    Example:
        >>> [verifier.name for verifier in verifiers_for_kinds(Sampling.CHAIN)]
        ['block', 'deterministic']
    """
    return tuple(v for v in EXACT_VERIFIERS if set(kinds) <= v.exact_for and set(kinds) & v.useful_for)


def verifiers_for_builders(tree_builders: tuple[TreeBuilder, ...]) -> tuple[Exact, ...]:
    """Return the verifiers besides `Lossless` that are exact for the siblings of at least one given tree builder.

    A user may combine a verifier with a tree builder for which it is not exact. The output then need not follow the
    target's distribution, and `ConfiguredMethod.unsound_reason` returns the reason.
    """
    return tuple(v for v in EXACT_VERIFIERS if any(grower.siblings in v.useful_for for grower in tree_builders))


def unsound_reasons(drafter: str, *kinds: Sampling) -> dict[str, str]:
    """Return, by the verifier's name, the reason why each verifier is not exact for the siblings of a drafter.

    Verifiers that are exact for the siblings are not in the result.

    Args:
        drafter: name of the drafter, for the texts of the reasons.
        kinds: ways in which the drafter's siblings may be drawn.
    """
    reasons = {v.name: why_unsound(drafter, kinds, v.name, v.exact_for) for v in EXACT_VERIFIERS}
    return {verifier: reason for verifier, reason in reasons.items() if reason}

"""Presets for declarations of methods: verifiers, policies and tree builders that methods of one family share.

A preset returns keyword arguments of `Method`: `Method("name", **tree_head(BestFirst(), depth=5), ...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from workbench.decoders.draft_verify.parts import DistributionDrafter, Policy, TreeBuilder, Verifier
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.tree_builders.common import supported_builders
from workbench.methods.verifiers.exact_verifiers import verifiers_for_builders
from workbench.methods.verifiers.lossless import Lossless

PolicyClass = Callable[..., Policy]


class Parts(TypedDict):
    """Keyword arguments of `Method`: verifiers, policies and tree builders.

    The first policy and the first tree builder are the method's defaults. The default verifier is `Lossless`.
    """

    verifier: Verifier
    other_verifiers: tuple[Verifier, ...]
    policies: tuple[Policy, ...]
    tree_builders: tuple[TreeBuilder, ...]


def tree_head(
    default: TreeBuilder,
    *other_verifiers: Verifier,
    depth: int | None = None,
    drafter: type[DistributionDrafter] = DistributionDrafter,
    policies: Sequence[PolicyClass] = (Fixed, Planned, Entropy, Bandit),
) -> Parts:
    """Return verifiers, policies and tree builders for a drafter that has a distribution q: a head, or a draft model.

    The method offers all tree builders that the drafter supports, and all verifiers that are exact for one of them.

    Args:
        default: the default tree builder, with its settings.
        other_verifiers: verifiers offered besides the exact ones.
        depth: default depth of a draft in tokens; None: the default of each policy.
        drafter: class of the drafter, if its model takes embeddings or images; see `supported_builders`.
        policies: classes of the policies, the default first.

    Example:
        >>> from workbench.methods.tree_builders.template import Template
        >>> [policy.name for policy in tree_head(Template())["policies"]]
        ['fixed', 'planned', 'entropy', 'bandit']
    """
    builders = supported_builders(default, drafter)
    return _parts((*verifiers_for_builders(builders), *other_verifiers), policies, depth, builders)


def copying(
    *other_verifiers: Verifier, depth: int, policies: Sequence[PolicyClass] = (Fixed, Planned, Bandit)
) -> Parts:
    """Return verifiers and policies for a drafter without a distribution q: copies from n-grams, tries or guesses.

    Args:
        other_verifiers: approximate verifiers offered besides the exact one.
        depth: default depth of a draft in tokens.
        policies: classes of the policies, the default first.
    """
    return _parts(other_verifiers, policies, depth)


def layer_skipping(*other_verifiers: Verifier, depth: int) -> Parts:
    """Return verifiers and policies for a drafter that runs some layers of the target and drafts a chain.

    Args:
        other_verifiers: verifiers offered besides the exact one.
        depth: default depth of a draft in tokens.
    """
    return _parts(other_verifiers, (Fixed, Confidence, Planned, Entropy, Bandit, OptimalOracle), depth)


def _parts(
    other_verifiers: tuple[Verifier, ...],
    policies: Sequence[PolicyClass],
    depth: int | None,
    tree_builders: tuple[TreeBuilder, ...] = (),
) -> Parts:
    return {
        "verifier": Lossless(),
        "other_verifiers": other_verifiers,
        "policies": tuple(policy() if depth is None else policy(depth=depth) for policy in policies),
        "tree_builders": tree_builders,
    }

"""Parts, claims and benchmark settings that methods of one family share. A declaration states only its differences.

A preset of parts returns keyword arguments of `Method`: `Method("name", **tree_head(BestFirst(), depth=5), ...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from workbench.decoders.declarations import WRONG_SCALE, Claim, Setting
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

CHAIN_AND_TREE = {
    "on-policy": (
        Setting("chain", {"nodes": 4, "depth": 4}),
        Setting("tree", {"nodes": 16, "depth": 4}),
    )
}
"""Settings that the benchmark suite runs for heads with a template tree: a chain and a tree."""


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


def claim_over_medusa(setting: str, source: str, *, key: str = "medusa", nodes: int | None = None) -> Claim:
    """Return the claim that a head's τ is larger than Medusa's at temperature 0.

    Args:
        setting: the paper's models and data, and the value that it reports.
        source: paper, section and address.
        key: name that distinguishes this claim from other claims of the method.
        nodes: number of nodes of both trees; None: the methods' defaults, which are equal.
    """
    params = {} if nodes is None else {"nodes": nodes}
    return Claim(
        "τ relative to Medusa with a tree of the same size",
        setting,
        None,
        None,
        source,
        lambda lab: lab.tau_over("medusa", params, params, 0.0),
        key=key,
        needs=("medusa",),
    )


def slow_rounds(times: float) -> str:
    """Return the reason why a bundled model is not faster: on a CPU, verifying several tokens takes longer than one.

    Args:
        times: time of a round relative to a round of plain decoding, measured on two CPU cores.
    """
    return (
        f"{WRONG_SCALE}: on two CPU cores a round takes {times:.1f} times as long as one of plain decoding; on the "
        "paper's GPUs several tokens cost about as much as one."
    )


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

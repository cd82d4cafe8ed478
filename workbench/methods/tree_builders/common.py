"""Tree builders that every drafter with distributions can use; a new one is added here for all methods."""

from __future__ import annotations

from workbench.decoders.draft_verify.parts import DistributionDrafter, TreeBuilder
from workbench.methods.tree_builders.best_first import BestFirst
from workbench.methods.tree_builders.chain import Chain
from workbench.methods.tree_builders.constant_branching import ConstantBranching
from workbench.methods.tree_builders.dyspec import DySpec
from workbench.methods.tree_builders.head_and_one import HeadAndOne
from workbench.methods.tree_builders.sequoia import Sequoia
from workbench.methods.tree_builders.spec_infer import SpecInfer
from workbench.methods.tree_builders.stochastic_beam import StochasticBeam
from workbench.methods.tree_builders.superposed import Superposed
from workbench.methods.tree_builders.template import Template

EVERY: tuple[TreeBuilder, ...] = (
    Chain(),
    BestFirst(),
    Template(),
    SpecInfer(),
    ConstantBranching(),
    StochasticBeam(),
    DySpec(),
    HeadAndOne(),
    Sequoia(),
    Superposed(),
)


def offered(first: TreeBuilder, over: type[DistributionDrafter] = DistributionDrafter) -> tuple[TreeBuilder, ...]:
    """Return all tree builders that a drafter supports, its method's default first, with that one's settings.

    Args:
        first: the default.
        over: the drafter's class; by default one that can only read tokens.

    Example:
        >>> [grower.name for grower in offered(Template())][:2]
        ['template', 'chain']
    """
    may = (grower for grower in EVERY if over.superposes or not grower.superposes)
    return (first, *(grower for grower in may if grower.name != first.name))

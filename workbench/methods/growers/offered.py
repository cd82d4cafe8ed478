"""Tree builders that every drafter with distributions can use; a new one is added here for all methods."""

from __future__ import annotations

from workbench.decoders.draft_verify.parts import DistributionDrafter, Grower
from workbench.methods.growers.best_first import BestFirst
from workbench.methods.growers.chain import Chain
from workbench.methods.growers.constant_branching import ConstantBranching
from workbench.methods.growers.dyspec import DySpec
from workbench.methods.growers.head_and_one import HeadAndOne
from workbench.methods.growers.sequoia import Sequoia
from workbench.methods.growers.spec_infer import SpecInfer
from workbench.methods.growers.stochastic_beam import StochasticBeam
from workbench.methods.growers.superposed import Superposed
from workbench.methods.growers.template import Template

EVERY: tuple[Grower, ...] = (
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


def offered(first: Grower, over: type[DistributionDrafter] = DistributionDrafter) -> tuple[Grower, ...]:
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

"""The ways of growing that every drafter that gives laws can be offered: a new one is added here, once for all."""

from __future__ import annotations

from workbench.engine.parts import Grower
from workbench.methods.growers.best_first import BestFirst
from workbench.methods.growers.chain import Chain
from workbench.methods.growers.constant_branching import ConstantBranching
from workbench.methods.growers.dyspec import DySpec
from workbench.methods.growers.head_and_one import HeadAndOne
from workbench.methods.growers.sequoia import Sequoia
from workbench.methods.growers.spec_infer import SpecInfer
from workbench.methods.growers.stochastic_beam import StochasticBeam
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
)


def offered(first: Grower) -> tuple[Grower, ...]:
    """All of them for a method, the one it has by default first, with that one's settings.

    Example:
        >>> [grower.name for grower in offered(Template())][:2]
        ['template', 'chain']
    """
    return (first, *(grower for grower in EVERY if grower.name != first.name))

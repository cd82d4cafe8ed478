"""List of tree builders for drafters that give distributions over the next token.

Every method whose drafter gives distributions offers the tree builders in `ALL_BUILDERS`.
"""

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

ALL_BUILDERS: tuple[TreeBuilder, ...] = (
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


def supported_builders(
    default: TreeBuilder, drafter: type[DistributionDrafter] = DistributionDrafter
) -> tuple[TreeBuilder, ...]:
    """Return all tree builders that a drafter supports, the method's default first.

    Args:
        default: the method's default tree builder, with its settings.
        drafter: class of the drafter. The default is a class whose model accepts only tokens as input, not embeddings.

    Example:
        >>> [builder.name for builder in supported_builders(Template())][:2]
        ['template', 'chain']
    """
    supported = (grower for grower in ALL_BUILDERS if drafter.superposes or not grower.superposes)
    return (default, *(grower for grower in supported if grower.name != default.name))

"""Draft budget that a policy gives to a drafter."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from workbench.core.tree import DraftTree, Sampling


@runtime_checkable
class TreeBuilderProtocol(Protocol):
    """Interface of a tree builder (`TreeBuilder` in `decoders/draft_verify/parts.py`) that a plan uses."""

    siblings: ClassVar[Sampling]

    def build(self, tree: Any, plan: Plan) -> DraftTree:
        """Build a tree within the plan."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Draft budget of a round.

    Attributes:
        depth: largest depth of the tree; 0: draft nothing.
        can_stop_early: ask the policy after each level whether to continue (`Policy.should_continue`), which costs a
            synchronisation.
        tree_builder: tree builder, for drafters that use one; None: the one in the method's settings.
        nodes: most nodes of the tree, for drafters with a tree builder; None: the tree builder's own number.
    """

    depth: int
    _: KW_ONLY
    can_stop_early: bool = False
    tree_builder: TreeBuilderProtocol | None = None
    nodes: int | None = None

    def limit_nodes(self, nodes: int) -> int:
        """Limit a number of nodes, or levels of a chain, to the budget."""
        return nodes if self.nodes is None else min(nodes, self.nodes)

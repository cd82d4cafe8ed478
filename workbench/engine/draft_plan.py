"""How much is drafted in a round: what a policy says to a drafter."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from workbench.core.tree import DraftTree, Sampling


@runtime_checkable
class Grows(Protocol):
    """The part of a tree builder (`Grower` in `engine/parts.py`) that a plan uses."""

    siblings: ClassVar[Sampling]

    def grow(self, growth: Any, plan: Plan) -> DraftTree:
        """A tree within the plan."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to draft in this round.

    Attributes:
        depth: most levels; 0 asks for no draft at all.
        stops: ask the policy behind each level whether to go on (`Policy.go_on`), which costs a synchronisation.
        grower: how the tree grows, for drafters that follow one; None: as the method's settings say.
        nodes: most nodes of the tree, for drafters that follow a grower; None: as many as the grower has by itself.
    """

    depth: int
    _: KW_ONLY
    stops: bool = False
    grower: Grows | None = None
    nodes: int | None = None

    def within(self, nodes: int) -> int:
        """As many nodes, or levels of a chain, as the budget lets be."""
        return nodes if self.nodes is None else min(nodes, self.nodes)

"""How much is drafted in a round: what a policy says to a drafter."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, runtime_checkable

from workbench.core.tree import DraftTree


@runtime_checkable
class Grows(Protocol):
    """What a plan knows of a grower; see `engine/growing.py`, where growers and what they are given are."""

    def grow(self, growth: Any, depth: int) -> DraftTree:
        """A tree of at most `depth` levels."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to draft in this round.

    Attributes:
        depth: most levels; 0 asks for no draft at all.
        stops: ask the policy behind each level whether to go on (`Policy.go_on`), which costs a synchronisation.
        grower: how the tree grows, for drafters that give laws; None: as the drafter does by itself.
    """

    depth: int
    _: KW_ONLY
    stops: bool = False
    grower: Grows | None = None

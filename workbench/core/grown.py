"""Why a grower put nodes into its tree, and what they were worth to it: said with the tree, kept by the trace.

No view knows a grower by heart: the words are the grower's own. Nothing of this is used to accept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """How a grower decides on a node.

    Attributes:
        name: the grower's, or of the draft where none was asked.
        title: for people.
        says: one or two sentences: what put the node there.
        before: what the first value of a node is; "": it has none.
        after: what the second one is, once more was known; "": it has none.
    """

    name: str
    title: str
    says: str
    before: str = ""
    after: str = ""

    def to_wire(self) -> dict[str, str]:
        """Plain JSON."""
        return asdict(self)


Chances = Sequence[Sequence[float]]
"""Of each level and rank among siblings; the last level's serve all deeper ones."""


@dataclass(frozen=True, slots=True)
class Grown:
    """What a tree says of its own growth.

    Attributes:
        rules: in force in it.
        of: which of them each node was put there by; None: the first.
        before: of each node; or chances, of which a node's is the product down its path; None: there are none.
        after: likewise.
    """

    rules: tuple[GrowthRule, ...]
    of: Int[Tensor, " N"] | None = None
    before: Float[Tensor, " N"] | Int[Tensor, " N"] | Chances | None = None
    after: Float[Tensor, " N"] | Int[Tensor, " N"] | Chances | None = None

    @property
    def columns(self) -> list[Tensor]:
        """What of it lies on the device, in the order of the attributes."""
        return [column for column in (self.of, self.before, self.after) if isinstance(column, Tensor)]

    def on_host(
        self, columns: Sequence[Sequence[float]], parents: Sequence[int]
    ) -> tuple[list[int], list[float | None], list[float | None]]:
        """(rule, value before, value after) of each node; an empty list where there is none.

        Args:
            columns: what `columns` gave, as lists.
            parents: of the nodes.
        """
        left = iter(columns)
        of = list(map(int, next(left))) if self.of is not None else []
        values = [
            list(next(left)) if isinstance(told, Tensor) else [] if told is None else products(told, parents)
            for told in (self.before, self.after)
        ]
        before, after = ([value if math.isfinite(value) else None for value in column] for column in values)
        return of, before, after


def products(chances: Chances, parents: Sequence[int]) -> list[float]:
    """Of each node the product of chances along its path, by level and rank among siblings; 0 where none is told.

    Example:
        >>> products([[0.5, 0.25], [0.4]], [-1, -1, 0, 0])
        [0.5, 0.25, 0.2, 0.0]
    """
    depths, found, elder = list[int](), list[float](), Counter[int]()
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
        level, rank = chances[min(depths[-1], len(chances)) - 1], elder[parent]
        found.append((level[rank] if rank < len(level) else 0.0) * (found[parent] if parent >= 0 else 1.0))
        elder[parent] += 1
    return found

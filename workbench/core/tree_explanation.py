"""Explain a draft tree's shape: the tree builder's rule that added each node, and the node's value under that rule.

The explanation is a field of the tree and is stored in the trace, so that views need no text about each tree builder.
Verification does not use it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TreeBuilderRule:
    """Rule by which a tree builder adds a node.

    Attributes:
        name: registry name of the tree builder, or of the drafter if it built the tree itself.
        title: display name.
        says: explanation in one or two sentences, for display.
        before: meaning of a node's first value; "" if there is none.
        after: meaning of a node's second value, computed with more information; "" if there is none.
    """

    name: str
    title: str
    says: str
    before: str = ""
    after: str = ""

    def to_wire(self) -> dict[str, str]:
        """Return the tree builder's rule as JSON data."""
        return asdict(self)


RankProbs = Sequence[Sequence[float]]
"""Type of acceptance probabilities by level of a draft tree and by rank among siblings. The last level also applies to
all deeper levels."""


@dataclass(frozen=True, slots=True)
class TreeExplanation:
    """Explanation of a draft tree's shape: the rule by which each node was added, and each node's values.

    Attributes:
        rules: rules by which nodes were added.
        rule_index: int64 [N], index into `rules` for each node; None: the first rule added all nodes.
        before: first value of each node [N]; or probabilities by level and rank (`RankProbs`), where a node's value is
            the product of the probabilities on its path. None: no value.
        after: second value of each node, in the same forms.
    """

    rules: tuple[TreeBuilderRule, ...]
    rule_index: Int[Tensor, " N"] | None = None
    before: Float[Tensor, " N"] | Int[Tensor, " N"] | RankProbs | None = None
    after: Float[Tensor, " N"] | Int[Tensor, " N"] | RankProbs | None = None

    @property
    def columns(self) -> list[Tensor]:
        """Return those of the fields `rule_index`, `before` and `after` that are tensors, in this order."""
        return [column for column in (self.rule_index, self.before, self.after) if isinstance(column, Tensor)]

    def to_lists(
        self, columns: Sequence[Sequence[float]], parents: Sequence[int]
    ) -> tuple[list[int], list[float | None], list[float | None]]:
        """Return three lists with an entry per node: rule index, first value, second value. A missing column gives [].

        Args:
            columns: the tensors of the property `columns`, converted to lists.
            parents: parent of each node.
        """
        column_values = iter(columns)
        of = list(map(int, next(column_values))) if self.rule_index is not None else []
        values = [
            list(next(column_values))
            if isinstance(value, Tensor)
            else []
            if value is None
            else path_products(value, parents)
            for value in (self.before, self.after)
        ]
        before, after = ([value if math.isfinite(value) else None for value in column] for column in values)
        return of, before, after


def path_products(rank_probs: RankProbs, parents: Sequence[int]) -> list[float]:
    """Return the product of the probabilities `rank_probs` along each node's path; 0 for a rank that is not listed.

    Args:
        rank_probs: probability by level and by rank among siblings.
        parents: parent of each node.

    Example:
        >>> path_products([[0.5, 0.25], [0.4]], [-1, -1, 0, 0])
        [0.5, 0.25, 0.2, 0.0]
    """
    depths, values, n_children = list[int](), list[float](), Counter[int]()
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
        level, rank = rank_probs[min(depths[-1], len(rank_probs)) - 1], n_children[parent]
        values.append((level[rank] if rank < len(level) else 0.0) * (values[parent] if parent >= 0 else 1.0))
        n_children[parent] += 1
    return values

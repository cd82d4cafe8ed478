"""The target without some halves of its layers, or with less in them, drafts for the whole of it, over its own cache.

A draft writes keys and values behind the committed part, in those layers whose attention it runs, and they are not the
target's: what stands before them in the stream is another one. Verification reads root and draft whole, at the same
places of the cache, so that nothing of a draft is left there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from workbench.core.cells import cells
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.engine.parts import Drafter
from workbench.engine.request import Row
from workbench.kernels.segment import Output, Segment
from workbench.kernels.weight_sharing import Twin
from workbench.methods.drafters.part_of_target import PartOfTarget
from workbench.methods.growers.chain import draft_chain

Halves = frozenset[int]
"""Halves of layers: the attention of layer i is 2 i, its feed-forward 2 i + 1."""


@dataclass(frozen=True, slots=True)
class Thinned(PartOfTarget):
    """A model without some halves, or with a twin in its place, asked as if it were one. See `draft_chain`."""

    without: Halves = frozenset()
    twin: Twin | None = None

    def forward(self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None) -> Output:
        """Logits by the final norm and head, in the order of the rows in the cache."""
        return self.target.forward(batch, layers=layers, without=self.without, twin=self.twin)


class Thinning(Drafter):
    """Drafts chains with a part of the target; subclasses say which."""

    reads_target: ClassVar[bool] = True
    source: ClassVar[str]

    def part(self, row: Row) -> Thinned:
        """What drafts in this round. What is to be shown of it goes into the row's signals."""
        raise NotImplementedError

    def propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """Chains, together for rows of one part."""
        groups = dict[Thinned, list[Row]]()
        for row in rows:
            groups.setdefault(cast(Thinning, row.drafter).part(row), []).append(row)
        trees: dict[int, DraftTree] = {}
        for part, group in groups.items():
            slots = [row.place for row in group]
            for slot in slots:
                slot.scratch = 0
            first = [to_device(row.committed[-1:], part.device) for row in group]
            trees.update(zip(map(id, group), draft_chain(group, part, slots, first, self.source), strict=True))
        return [trees[id(row)] for row in rows]


class Skipping(Thinning):
    """Drafts with what is left of the target; subclasses say what is left out."""

    def without(self, row: Row) -> Halves:
        """The halves that do not draft in this round."""
        raise NotImplementedError

    def part(self, row: Row) -> Thinned:
        """The target without them; drawn is a strip of halves."""
        target, without = row.models.target, self.without(row)
        row.signals.update(strip(without, target.n_layers))
        return Thinned(target, without)


def spread(n_layers: int, kept: int) -> Halves:
    """What is left out where so many layers are kept, evenly spread, the first and the last among them.

    Source: Liu et al. 2024, Unified Layer Skipping, arXiv:2404.06954, §3.

    Example:
        >>> sorted(spread(5, 3))
        [2, 3, 6, 7]
    """
    steps = max(1, kept) - 1
    run = {round(i * (n_layers - 1) / max(1, steps)) for i in range(steps + 1)}
    return frozenset(half for layer in range(n_layers) if layer not in run for half in (2 * layer, 2 * layer + 1))


def strip(without: Collection[int], n_layers: int) -> dict[str, float]:
    """Signals: which halves of which layers draft."""
    runs = {name: [float(2 * i + h not in without) for i in range(n_layers)] for h, name in enumerate(ROWS)}
    return cells("layers that draft", runs)


ROWS = ("attention", "feed-forward")

"""The target without some halves of its layers drafts for the whole of it, over the target's own cache.

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
from workbench.engine.segment import Output, Segment
from workbench.methods.drafters.part_of_target import PartOfTarget
from workbench.methods.growers.chain import draft_chain

Halves = frozenset[int]
"""Halves of layers: the attention of layer i is 2 i, its feed-forward 2 i + 1."""


@dataclass(frozen=True, slots=True)
class Thinned(PartOfTarget):
    """The target without some halves, asked as if it were a model. See `draft_chain`."""

    without: Halves

    def forward(self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None) -> Output:
        """Logits by the final norm and head, in the order of the rows in the cache."""
        return self.target.forward(batch, layers=layers, without=self.without)


class Skipping(Drafter):
    """Drafts chains with what is left of the target; subclasses say what is left out."""

    reads_target: ClassVar[bool] = True
    source: ClassVar[str]

    def without(self, row: Row) -> Halves:
        """The halves that do not draft in this round."""
        raise NotImplementedError

    def propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """Chains, together for rows that leave out the same halves."""
        trees: dict[int, DraftTree] = {}
        left_out = {id(row): cast(Skipping, row.drafter).without(row) for row in rows}
        for without in sorted(set(left_out.values()), key=sorted):
            group = [row for row in rows if left_out[id(row)] == without]
            target, slots = group[0].models.target, [row.place for row in group]
            for slot in slots:
                slot.scratch = 0
            first = [to_device(row.committed[-1:], target.device) for row in group]
            drafted = draft_chain(group, Thinned(target, without), slots, first, self.source)
            trees.update(zip(map(id, group), drafted, strict=True))
            for row in group:
                row.signals.update(strip(without, target.n_layers))
        return [trees[id(row)] for row in rows]


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

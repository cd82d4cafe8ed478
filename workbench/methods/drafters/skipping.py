"""Draft with a part of the target, over its KV cache: without some attentions and MLPs, or with smaller MLPs.

A draft writes keys and values after the committed part, in the layers whose attention it runs. They are not the
target's, because the residual stream before them differs. Verification processes root and draft with the whole target,
at the same positions of the cache, so nothing of a draft stays there.

"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from workbench.core.cells import cells
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import Drafter
from workbench.engine.request import Row
from workbench.kernels.segment import Output, Segment
from workbench.kernels.weight_sharing import WeightSharingCopy
from workbench.methods.drafters.part_of_target import PartOfTarget
from workbench.methods.tree_builders.chain import draft_chain

Halves = frozenset[int]
"""Set of half layers: the attention of layer i is 2 i, its MLP is 2 i + 1."""


@dataclass(frozen=True, slots=True)
class Thinned(PartOfTarget):
    """Target without some half layers, or a weight-sharing copy, with the interface of a model. See `draft_chain`."""

    without: Halves = frozenset()
    shared_copy: WeightSharingCopy | None = None

    def forward(self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None) -> Output:
        """Return logits by the final norm and LM head, in the order of the sequences' cache slots."""
        return self.target.forward(batch, layers=layers, without=self.without, shared_copy=self.shared_copy)


class Thinning(Drafter):
    """Draft chains with a part of the target, defined by subclasses."""

    reads_target: ClassVar[bool] = True
    source: ClassVar[str]

    def part(self, row: Row) -> Thinned:
        """Return the part of the target that drafts in this round, and record its signals."""
        raise NotImplementedError

    def propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """Draft chains, batched for sequences with the same part."""
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
    """Draft with the target without some half layers, chosen by subclasses."""

    def without(self, row: Row) -> Halves:
        """Return the half layers that are skipped in this round."""
        raise NotImplementedError

    def part(self, row: Row) -> Thinned:
        """Return the target without the skipped half layers, and record which layers draft."""
        target, without = row.models.target, self.without(row)
        row.report.signals.update(strip(without, target.n_layers))
        return Thinned(target, without)


def spread(n_layers: int, kept: int) -> Halves:
    """Return the skipped half layers if `kept` layers run, evenly spread, including the first and the last.

    Source: Liu et al. 2024, Unified Layer Skipping, arXiv:2404.06954, §3.

    Example:
        >>> sorted(spread(5, 3))
        [2, 3, 6, 7]
    """
    steps = max(1, kept) - 1
    run = {round(i * (n_layers - 1) / max(1, steps)) for i in range(steps + 1)}
    return frozenset(half for layer in range(n_layers) if layer not in run for half in (2 * layer, 2 * layer + 1))


def strip(without: Collection[int], n_layers: int) -> dict[str, float]:
    """Return trace signals: 1 for each half layer that drafts, 0 for each that is skipped."""
    runs = {name: [float(2 * i + h not in without) for i in range(n_layers)] for h, name in enumerate(ROWS)}
    return cells("layers that draft", runs)


ROWS = ("attention", "feed-forward")

"""Draft with a reduced target over the target's KV cache: without some attention layers and MLPs, or with smaller MLPs.

A draft writes keys and values after the committed part of the KV cache, in the layers whose attention it runs. These
keys and values differ from those of the whole target, because the residual stream differs. Verification processes root
and draft with the whole target and overwrites them.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, cast

from workbench.core.table_signals import make_table_signals
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import Drafter
from workbench.engine.request import Sequence
from workbench.kernels.segment import Output, Segment
from workbench.kernels.weight_sharing import WeightSharingCopy
from workbench.methods.common.partial_target import PartialTarget
from workbench.methods.tree_builders.chain import draft_chain

HalfLayers = frozenset[int]
"""Set of half layers of the target. The attention of layer i is half layer 2 i, its MLP is half layer 2 i + 1."""


@dataclass(frozen=True, slots=True)
class ReducedTarget(PartialTarget):
    """Draft model that consists of some layers of the target, with the interface that `draft_chain` needs.

    Attributes:
        skipped: half layers (attention or MLP of a layer) that do not run.
        shared_copy: weight-sharing copy that runs instead of the target, such as one with smaller MLPs; None: the
            target itself runs.
    """

    skipped: HalfLayers = frozenset()
    shared_copy: WeightSharingCopy | None = None

    def forward(self, batch: abc.Sequence[Segment], *, layers: abc.Sequence[int] | None = None) -> Output:
        """Run the reduced target, without its skipped attention blocks and MLPs, over new tokens of several sequences.

        The outputs are in the order of the sequences' KV cache slots.

        Args:
            batch: new tokens of each sequence.
            layers: indices of the layers that run; None: all layers.
        """
        return self.target.forward(batch, layers=layers, skipped_halves=self.skipped, shared_copy=self.shared_copy)


class ReducedTargetDrafter(Drafter):
    """Base class of drafters that draft chains with a reduced target: without some layers, or with smaller MLPs."""

    reads_target: ClassVar[bool] = True
    source: ClassVar[str]

    def reduced_target(self, sequence: Sequence) -> ReducedTarget:
        """Return the reduced target (fewer layers or smaller MLPs) of this round, and record it in the trace."""
        raise NotImplementedError

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[DraftTree]:
        """Draft a chain for each sequence. Sequences with the same skipped layers or smaller MLPs form one batch."""
        groups = dict[ReducedTarget, list[Sequence]]()
        for sequence in sequences:
            reduced = cast(ReducedTargetDrafter, sequence.drafter).reduced_target(sequence)
            groups.setdefault(reduced, []).append(sequence)
        trees: dict[int, DraftTree] = {}
        for part, group in groups.items():
            slots = [sequence.cache_slot for sequence in group]
            for slot in slots:
                slot.scratch = 0
            first = [to_device(sequence.committed[-1:], part.device) for sequence in group]
            trees.update(zip(map(id, group), draft_chain(group, part, slots, first, self.source), strict=True))
        return [trees[id(sequence)] for sequence in sequences]


class LayerSkippingDrafter(ReducedTargetDrafter):
    """Base class of drafters that skip some attention layers and MLPs of the target. Subclasses choose which ones."""

    def skipped_half_layers(self, sequence: Sequence) -> HalfLayers:
        """Return the attention blocks and MLPs that are skipped in this round."""
        raise NotImplementedError

    def reduced_target(self, sequence: Sequence) -> ReducedTarget:
        """Return the target without the skipped attention blocks and MLPs, and record the skipped ones in the trace."""
        target, without = sequence.models.target, self.skipped_half_layers(sequence)
        sequence.report.signals.update(layer_signals(without, target.n_layers))
        return ReducedTarget(target, without)


def evenly_skipped(n_layers: int, n_run: int) -> HalfLayers:
    """Return the attention blocks and MLPs to skip so that `n_run` of `n_layers` evenly spread layers run.

    In the result, the attention of layer i has the number 2 i, its MLP the number 2 i + 1.

    Source: Liu et al. 2024, Unified Layer Skipping, arXiv:2404.06954, §3.

    Example:
        >>> sorted(evenly_skipped(5, 3))
        [2, 3, 6, 7]
    """
    steps = max(1, n_run) - 1
    run = {round(i * (n_layers - 1) / max(1, steps)) for i in range(steps + 1)}
    return frozenset(half for layer in range(n_layers) if layer not in run for half in (2 * layer, 2 * layer + 1))


def layer_signals(skipped: Collection[int], n_layers: int) -> dict[str, float]:
    """Return signals for the trace: a table with 1 for each attention layer and MLP that drafts, 0 if it is skipped."""
    runs = {name: [float(2 * i + h not in skipped) for i in range(n_layers)] for h, name in enumerate(ROWS)}
    return make_table_signals("layers that draft", runs)


ROWS = ("attention", "feed-forward")

"""The first layers of the target draft for the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import MethodUnavailableError
from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.engine.models import Models
from workbench.engine.parts import Drafter
from workbench.engine.request import Row
from workbench.engine.runner import Runner
from workbench.engine.segment import Output, Segment, Slot
from workbench.engine.told import Exits
from workbench.methods.growers.chain import draft_chain


@dataclass(slots=True)
class ExitStates:
    """What a row keeps of its draft: the tree, and the exit states at the root and behind each node."""

    tree: DraftTree | None = None
    states: Float[Tensor, "N_plus_1 D"] | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """The target's first layers, asked as if they were a model; what they say on the way is kept. See `draft_chain`."""

    target: Runner
    layer: int
    states: dict[Slot, list[Tensor]]

    @property
    def device(self) -> torch.device:
        """The target's."""
        return self.target.device

    @property
    def vocab_size(self) -> int:
        """The target's."""
        return self.target.vocab_size

    def forward(self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None) -> Output:
        """Logits by the final norm and head, in the order of the rows in the cache."""
        last = self.layer - 1
        out = self.target.forward(batch, layers=range(self.layer), taps={last})
        self.keep(batch, out.taps[last])
        return out

    def keep(self, batch: Sequence[Segment], states: Float[Tensor, "B n D"]) -> None:
        """Keep the exit states of new tokens."""
        for b, segment in enumerate(sorted(batch, key=lambda segment: segment.slot.index)):
            self.states[segment.slot].append(states[b, : len(segment.tokens)])


@dataclass(frozen=True)
class EarlyExit(Drafter):
    """Draft with layers 0 … E−1, the final norm and the head, over the target's own cache; verify with the others.

    Drafting writes keys and values of the first E layers behind the committed part, and keeps the exit states. The last
    drafted token is read by the first E layers, too; then verification runs layers E … over all exit states at once. So
    there is no second model, no second cache, nothing to keep in step, and no layer reads a token twice.

    Source: Elhoushi et al. 2024, LayerSkip, arXiv:2404.16710, §3.3 (drafting), §3.4 (the exit states are used again).
    """

    reads_target: ClassVar[bool] = True
    exit_layer: int = param(2, ge=1, le=64, doc="number of target layers that draft")

    def prime(self, row: Row, models: Models) -> ExitStates:
        """Check that the target is deep enough; its cache is all the state there is between two rounds."""
        n_layers = models.target.n_layers
        if self.exit_layer > n_layers:
            raise MethodUnavailableError(
                f"exit_layer={self.exit_layer}, but the target has {n_layers} layers.", f"Use 1 to {n_layers}."
            )
        return ExitStates()

    def propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """Chains, together for rows that leave at the same layer."""
        trees: dict[int, DraftTree] = {}
        exits = {id(row): cast(EarlyExit, row.drafter).exit_layer for row in rows}
        for exit_layer in sorted(set(exits.values())):
            group = [row for row in rows if exits[id(row)] == exit_layer]
            trees.update(zip(map(id, group), self._propose(group, exit_layer), strict=True))
        return [trees[id(row)] for row in rows]

    def _propose(self, rows: Sequence[Row], exit_layer: int) -> list[DraftTree]:
        target = rows[0].models.target
        for row in rows:
            row.place.scratch = 0
        first = [to_device(row.committed[-1:], target.device) for row in rows]
        slots = [row.place for row in rows]
        exit_ = Exit(target, exit_layer, {slot: [] for slot in slots})
        trees = draft_chain(rows, exit_, slots, first, "early-exit")
        unread = [
            Segment(slot, tree.tokens[-1:])  # where a policy stopped the draft, its last token was read before
            for slot, tree in zip(slots, trees, strict=True)
            if slot.scratch == len(tree)
        ]
        if unread and target.may_begin_at(exit_layer):
            exit_.keep(unread, target.exit_states(unread, exit_layer))
        for row, slot, tree in zip(rows, slots, trees, strict=True):
            kept = cast(ExitStates, row.state)
            kept.tree, kept.states = tree, torch.cat(exit_.states[slot])
        return trees

    def exits(self, row: Row, tree: DraftTree) -> Exits | None:
        kept = cast(ExitStates, row.state)
        is_of_it = kept.tree is tree and kept.states is not None and len(kept.states) == len(tree) + 1
        if not is_of_it or not row.models.target.may_begin_at(self.exit_layer):
            return None
        assert kept.states is not None
        return Exits(self.exit_layer, kept.states)

"""The first layers of the target draft for the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from workbench.core.errors import MethodUnavailableError
from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.engine.models import Models
from workbench.engine.parts import Drafter
from workbench.engine.request import Row
from workbench.methods.growers.chain import draft_chain


@dataclass(frozen=True)
class EarlyExit(Drafter):
    """Draft with layers 0 … E−1, the final norm and the head, over the target's own cache.

    Drafting writes keys and values of the first E layers behind the committed part; verification runs all layers over
    the same tokens and writes them again. So there is no second model, no second cache, and nothing to keep in step.

    Source: Elhoushi et al. 2024, LayerSkip, arXiv:2404.16710, §3.3. The paper also reuses the exit states, so that
    verification skips the first E layers; here it runs them again.
    """

    reads_target: ClassVar[bool] = True
    exit_layer: int = param(2, ge=1, le=64, doc="number of target layers that draft")

    def prime(self, row: Row, models: Models) -> None:
        """Check that the target is deep enough; the target's cache is all the state there is."""
        n_layers = models.target.n_layers
        if self.exit_layer > n_layers:
            raise MethodUnavailableError(
                f"exit_layer={self.exit_layer}, but the target has {n_layers} layers.", f"Use 1 to {n_layers}."
            )

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
        return draft_chain(rows, target, [row.place for row in rows], first, "early-exit", layers=range(exit_layer))

"""Plan as many tokens as pay by the layers that they cost, at the exit for which they pay most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from workbench.core.cells import cells
from workbench.core.params import param
from workbench.engine.growing import Step
from workbench.engine.parts import Policy
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.methods.drafters.dynamic_exit import Ledger
from workbench.methods.policies.fixed import DEPTH


@dataclass(frozen=True)
class TokensPerLayer(Policy):
    """Choose exit and length from 0 on together: the largest expected tokens / cost in layers; and stop where unsure.

    The draft ends early once the exit's largest probability falls below a threshold between what it has on average
    where it is right and where it is wrong. With a drafter that does not know its exits: K tokens.

    Source: Zarch et al. 2025, DEL, arXiv:2504.05598.
    """

    name: ClassVar[str] = "tokens-per-layer"
    depth: int = param(4, **DEPTH)

    def start(self) -> list[float]:
        """The threshold in force, in a list so that it can change."""
        return [0.0]

    def plan(self, row: Row, state: list[float], batch: Sequence[Row] = ()) -> Plan:
        """The best cell of the table of exits and lengths."""
        ledger = row.state
        if not isinstance(ledger, Ledger):
            state[0] = 0.0
            return Plan(self.depth)
        rates = ledger.rates(self.depth)
        rows = {f"exit {layer}": values.tolist() for layer, values in zip(ledger.layers, rates, strict=True)}
        row.signals.update(cells("expected tokens a layer", rows, range(self.depth + 1)))
        depth = int(rates.max(0).argmax())
        state[0] = ledger.threshold(ledger.best(depth))
        row.signals["planned depth"] = depth
        row.signals["threshold"] = state[0]
        return Plan(depth, stops=state[0] > 0)

    def go_on(self, row: Row, state: list[float], step: Step) -> Bool[Tensor, ""]:
        """While the exit is as sure as where it is right."""
        return step.p.amax() >= state[0]

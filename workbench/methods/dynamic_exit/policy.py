"""DEL's policy: choose exit layer and draft length for the most expected tokens per computed layer."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from workbench.core.params import param
from workbench.core.table_signals import make_table_signals
from workbench.decoders.draft_verify.parts import Plan, Policy
from workbench.decoders.draft_verify.tree_building import Step
from workbench.engine.request import Sequence
from workbench.methods.dynamic_exit.drafter import ExitStatistics
from workbench.methods.policies.fixed import DEPTH


@dataclass(frozen=True)
class TokensPerLayer(Policy):
    """Choose exit layer and draft length (0 or more) for the most expected tokens per computed layer.

    The draft ends early if the largest probability at the exit layer is below a threshold. The threshold is the
    midpoint between the mean of this probability where the exit layer's prediction was right and its mean where it was
    wrong. If the drafter has no exit layers, the policy plans drafts of `depth` tokens.

    Source: Zarch et al. 2025, DEL, arXiv:2504.05598.
    """

    name: ClassVar[str] = "tokens-per-layer"
    depth: int = param(4, **DEPTH)

    def init_state(self) -> list[float]:
        """Return the policy's state: a list with the probability threshold 0, which each round's plan replaces."""
        return [0.0]

    def plan(self, sequence: Sequence, state: list[float], batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan with the draft length that belongs to the best pair of exit layer and draft length."""
        ledger = sequence.state.drafter
        if not isinstance(ledger, ExitStatistics):
            state[0] = 0.0
            return Plan(self.depth)
        rates = ledger.rates(self.depth)
        cells_by_exit = {f"exit {layer}": values.tolist() for layer, values in zip(ledger.layers, rates, strict=True)}
        sequence.report.signals.update(
            make_table_signals("expected tokens per layer", cells_by_exit, range(self.depth + 1))
        )
        depth = int(rates.max(0).argmax())
        state[0] = ledger.threshold(ledger.best(depth))
        sequence.report.signals["planned depth"] = depth
        sequence.report.signals["threshold"] = state[0]
        return Plan(depth, can_stop_early=state[0] > 0)

    def should_continue(self, sequence: Sequence, state: list[float], step: Step) -> Bool[Tensor, ""]:
        """Return whether drafting should continue: the largest probability at the exit layer reaches the threshold."""
        return step.p.amax() >= state[0]

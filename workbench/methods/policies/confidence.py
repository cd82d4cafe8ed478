"""Policy that stops drafting when the drafter's largest probability is low."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.core.params import param
from workbench.decoders.draft_verify.parts import Plan, Policy
from workbench.decoders.draft_verify.tree_building import Step
from workbench.engine.request import Sequence
from workbench.methods.policies.fixed import DEPTH

SIGNAL = "drafter's largest probability at the last stopping test"
"""Name of the trace signal for the drafter's largest probability at the last stopping test."""


@dataclass(frozen=True)
class Confidence(Policy):
    """Draft up to K tokens, and stop when the largest probability of the drafter's distribution is below a threshold.

    The test uses the distribution before a token is drawn from it, never the token, so it does not bias the output, and
    sampling stays exact. The first token is always drafted. On a GPU each test costs a synchronisation.

    Source: `assistant_confidence_threshold` of Hugging Face's assisted generation, which tests the drawn token instead.
    """

    name: ClassVar[str] = "confidence"
    depth: int = param(4, **DEPTH)
    threshold: float = param(0.4, ge=0.0, le=1.0, doc="stop drafting when the drafter's top probability is below this")

    def plan(self, sequence: Sequence, state: Any, batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan with `depth` draft levels, and with early stopping if the threshold is above 0."""
        return Plan(self.depth, can_stop_early=self.threshold > 0)

    def should_continue(self, sequence: Sequence, state: Any, step: Step) -> bool:
        """Return whether drafting should continue: some node's largest draft probability reaches the threshold."""
        sequence.report.signals[SIGNAL] = confidence = float(step.p.amax())
        return confidence >= self.threshold

"""Stop drafting where the drafter itself is unsure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.core.params import param
from workbench.engine.growing import Step
from workbench.engine.parts import Policy
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.methods.policies.fixed import DEPTH

ASKED = "largest q when last asked"
"""Signal: what is compared with the threshold, of the surest node."""


@dataclass(frozen=True)
class Confidence(Policy):
    """Up to K tokens, but no further once the drafter's largest probability falls below a threshold.

    The test looks at the law before a token is drawn from it, never at the token: so it does not bias what is kept, and
    exactness holds when sampling too. The first token is always drafted. On a GPU each test costs a synchronisation.

    Source: `assistant_confidence_threshold` of Hugging Face's assisted generation, which tests the drawn token instead.
    """

    name: ClassVar[str] = "confidence"
    depth: int = param(4, **DEPTH)
    threshold: float = param(0.4, ge=0.0, le=1.0, doc="drafter's largest probability below which drafting stops")

    def plan(self, row: Row, state: Any, batch: Sequence[Row] = ()) -> Plan:
        """Depth K with the stop."""
        return Plan(self.depth, stops=self.threshold > 0)

    def go_on(self, row: Row, state: Any, step: Step) -> bool:
        """While the drafter is sure of a token; of a tree, behind any of its nodes."""
        row.signals[ASKED] = found = float(step.p.amax())
        return found >= self.threshold

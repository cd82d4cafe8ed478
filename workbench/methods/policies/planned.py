"""The length that pays best, from measured costs and the acceptance seen so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from workbench.core.params import param
from workbench.engine.calibration import Costs, costs_of
from workbench.engine.parts import Outcome, Policy
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.methods.policies.fixed import DEPTH


@dataclass(slots=True)
class _Belief:
    """Accepted and tested drafts, discounted, and the costs of this machine."""

    accepted: float
    tested: float
    costs: Costs | None = None


@dataclass(frozen=True)
class Planned(Policy):
    """Choose K up to a bound so that expected tokens per second are largest.

    Tokens a round: (1 − αᴷ⁺¹)/(1 − α), with α the acceptance rate seen so far (older rounds count less). Seconds a
    round: K draft steps and one verification of K + 1 tokens, both measured once on this machine.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1 and §3.5, with measured instead of assumed costs.
    """

    name: ClassVar[str] = "planned"
    depth: int = param(4, **DEPTH)
    forgetting: float = param(0.9, ge=0.5, le=1.0, doc="weight of a past round, by the next one")

    def start(self) -> _Belief:
        """A prior of one test accepted at 0.7."""
        return _Belief(0.7, 1.0)

    def plan(self, row: Row, state: _Belief, batch: Sequence[Row] = ()) -> Plan:
        """The best K from 1 to `depth`."""
        assert row.models is not None
        if state.costs is None:
            state.costs = costs_of(row.models)
        alpha = min(state.accepted / state.tested, 0.999)

        def rate(k: int) -> float:
            tokens = (1 - alpha ** (k + 1)) / (1 - alpha)
            return tokens / (k * state.costs.draft_s + state.costs.verify_s(k + 1))  # type: ignore[union-attr]

        best = max(range(1, self.depth + 1), key=rate)
        row.signals["planned depth"] = best
        row.signals["believed acceptance"] = alpha
        return Plan(best)

    def observe(self, row: Row, state: _Belief, outcome: Outcome) -> None:
        """Count what was tested."""
        state.accepted = self.forgetting * state.accepted + len(outcome.verdict.path)
        state.tested = self.forgetting * state.tested + len(outcome.verdict.tested)

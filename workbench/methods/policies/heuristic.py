"""Policy that adapts the draft length: longer after full acceptance, shorter after a rejection."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import ClassVar

from workbench.core.params import param
from workbench.decoders.draft_verify.parts import Plan, Policy, RoundFeedback
from workbench.engine.request import Sequence
from workbench.methods.policies.fixed import DEPTH


@dataclass(frozen=True)
class Heuristic(Policy):
    """Start with draft length K. Add two after a round in which every draft was accepted, otherwise subtract one.

    The length stays between 1 and 24.

    Source: the dynamic length rule of Hugging Face's assisted generation (`num_assistant_tokens_schedule="heuristic"`).
    """

    name: ClassVar[str] = "heuristic"
    depth: int = param(4, **DEPTH)

    def init_state(self) -> list[int]:
        """Return the policy's state: a list with the current draft length, at first `depth`."""
        return [self.depth]

    def plan(self, sequence: Sequence, state: list[int], batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan with the current draft length."""
        sequence.report.signals["planned depth"] = state[0]
        return Plan(state[0])

    def observe(self, sequence: Sequence, state: list[int], feedback: RoundFeedback) -> None:
        """Increase the draft length after a fully accepted draft, otherwise decrease it."""
        all_accepted = len(feedback.tokens) > 0 and len(feedback.result.path) == len(feedback.tokens)
        state[0] = min(state[0] + 2, 24) if all_accepted else max(1, state[0] - 1)

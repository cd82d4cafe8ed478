"""The roof of all policies: it knows what the target will say, and drafts that far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from workbench.core.params import param
from workbench.core.transfer import listed, to_device
from workbench.engine.growing import Step
from workbench.engine.parts import Policy
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.methods.growers.chain import draft_chain
from workbench.methods.policies.fixed import DEPTH

SAMPLED = (
    "policy=optimal-oracle knows greedy text alone: where the target samples, its drafts are as long as fixed ones. "
    "Set temperature 0 to see the roof."
)


@dataclass(frozen=True)
class OptimalOracle(Policy):
    """Draft up to K tokens, and stop before the first that the target will refuse.

    Greedy text can be known ahead: here the target is asked for it, token by token, which costs more than all drafts
    save. So it is no method that one could ship. What it drafts is the shortest draft that accepts as many tokens as K
    levels could: the roof of every rule for the length of a chain. Its first token is drafted whatever it is, since no
    policy sees a law before it; where that one is refused, another may follow it that happens to fit. Rounds are
    timed without the look ahead; the run is not.

    Source: the oracle that Huang et al. 2024, SpecDec++, arXiv:2405.19715, §3 compares rules with.
    """

    name: ClassVar[str] = "optimal-oracle"
    simulates: ClassVar[bool] = True
    depth: int = param(4, **DEPTH)

    def start(self) -> list[int]:
        """What the target will say next, up to K tokens."""
        return []

    def plan(self, row: Row, state: list[int], batch: Sequence[Row] = ()) -> Plan:
        """Look ahead."""
        state.clear()
        if not row.sampling.greedy:
            row.say(SAMPLED)
            return Plan(self.depth)
        ahead = min(self.depth, row.remaining - 1)
        if ahead > 0:
            state += look_ahead(row, ahead)
        return Plan(self.depth, stops=True)

    def go_on(self, row: Row, state: list[int], step: Step) -> Bool[Tensor, ""]:
        """While the drafter's next token is the one that the target will say."""
        wanted = state[step.level] if step.level < len(state) else -1
        return step.p.argmax(-1).eq(wanted).any()


def look_ahead(row: Row, n: int) -> list[int]:
    """The next n ≥ 1 tokens of the target's own greedy text. The row's cache is as before."""
    target, plan = row.models.target, row.plan
    row.place.scratch, row.plan = 0, Plan(n)
    try:
        first = to_device(row.committed[-1:], target.device)
        with torch.inference_mode():
            (tree,) = draft_chain([row], target, [row.place], [first], "look-ahead")
        return listed(tree.tokens)
    finally:
        row.place.scratch, row.plan = 0, plan

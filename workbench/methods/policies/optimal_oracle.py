"""SpecDec++'s oracle: draft exactly as far as the target will accept, as an upper bound for policies."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from workbench.core.params import param
from workbench.core.transfer import to_device, to_list
from workbench.decoders.draft_verify.parts import Plan, Policy
from workbench.decoders.draft_verify.tree_building import Step
from workbench.engine.request import Sequence
from workbench.methods.policies.fixed import DEPTH
from workbench.methods.tree_builders.chain import draft_chain

SAMPLED = (
    "policy=optimal-oracle chooses the draft length for greedy text only; when sampling, its drafts have a fixed "
    "length. Set temperature 0 to see the upper bound."
)


@dataclass(frozen=True)
class OptimalOracle(Policy):
    """Draft up to K tokens, and stop before the first token that the target will reject.

    Before each round the target decodes its next greedy tokens, which takes longer than all drafts save. The policy is
    therefore a simulation, not a practical method. It plans the shortest draft that has as many accepted tokens as K
    levels could have. This is an upper bound for all rules that choose the length of a chain. The first token is always
    drafted, since a policy gets no distribution before it. If the first token is rejected, a second token that happens
    to match the target's may be drafted. The reported time of a round excludes this look-ahead of the target; the time
    of the run includes it.

    Source: Huang et al. 2024, SpecDec++, arXiv:2405.19715, §3, which compares rules with this oracle.
    """

    name: ClassVar[str] = "optimal-oracle"
    simulates: ClassVar[bool] = True
    depth: int = param(4, **DEPTH)

    def init_state(self) -> list[int]:
        """Return the policy's state: an empty list that `plan` fills with the target's next tokens."""
        return []

    def plan(self, sequence: Sequence, state: list[int], batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Compute the target's next tokens, and return a plan of `depth` levels with early stopping."""
        state.clear()
        if not sequence.sampling.greedy:
            sequence.add_warning(SAMPLED)
            return Plan(self.depth)
        n_ahead = min(self.depth, sequence.remaining - 1)
        if n_ahead > 0:
            state += look_ahead(sequence, n_ahead)
        return Plan(self.depth, can_stop_early=True)

    def should_continue(self, sequence: Sequence, state: list[int], step: Step) -> Bool[Tensor, ""]:
        """Return whether drafting should continue: at some node, the drafter's likeliest token is the target's."""
        target_token = state[step.level] if step.level < len(state) else -1
        return step.p.argmax(-1).eq(target_token).any()


def look_ahead(sequence: Sequence, n: int) -> list[int]:
    """Return the next n ≥ 1 tokens of the target's greedy text. The sequence's KV cache is unchanged."""
    target, plan = sequence.models.target, sequence.state.plan
    sequence.cache_slot.scratch, sequence.state.plan = 0, Plan(n)
    try:
        first = to_device(sequence.committed[-1:], target.device)
        with torch.inference_mode():
            (tree,) = draft_chain([sequence], target, [sequence.cache_slot], [first], "look-ahead")
        return to_list(tree.tokens)
    finally:
        sequence.cache_slot.scratch, sequence.state.plan = 0, plan

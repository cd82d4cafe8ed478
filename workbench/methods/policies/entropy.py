"""Policy that stops drafting when the entropy of the drafter's distribution is high."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from workbench.core.params import param
from workbench.core.sampling import entropy_nats
from workbench.decoders.declarations import Claim
from workbench.decoders.draft_verify.parts import Plan, Policy
from workbench.decoders.draft_verify.tree_building import Step
from workbench.engine.request import Sequence
from workbench.methods.policies.fixed import BEST_OF, DEPTH

SIGNAL = "√H of the drafter's distribution at the last stopping test"
"""Name of the trace signal for the lowest √H among a draft level's nodes at the last stopping test (H: entropy)."""


def root_entropy(p: Float[Tensor, "*b V"]) -> Float[Tensor, "*b"]:
    """Return √H of each distribution over V tokens; H is the entropy in nats.

    Example:
        >>> root_entropy(torch.tensor([0.5, 0.3, 0.15, 0.05])).item()  # doctest: +ELLIPSIS
        1.0687...
    """
    return entropy_nats(p).sqrt()


@dataclass(frozen=True)
class Entropy(Policy):
    """Draft up to K tokens, and stop when √H, the root of the entropy of the drafter's distribution, exceeds a bound.

    By Pinsker's inequality a token is accepted with probability 1 − TV ≥ 1 − √(KL/2). If the divergence KL is
    proportional to the entropy H (in nats) of the drafter's distribution, the bound is 1 − √(γH). SVIP stops if √H > h,
    AdaEDL if 1 − √(γH) < λ: the same rule, with h = (1 − λ)/√γ. The test uses the distribution before a token is drawn
    from it, so sampling stays exact. A tree continues while at least one node of the newest level is below the bound.
    The first token is always drafted.

    Source: Zhang et al. 2024, SVIP, arXiv:2411.18462; Agrawal et al. 2024, AdaEDL, arXiv:2410.18351. AdaEDL also adapts
    λ to the acceptance so far; here the bound is fixed.
    """

    name: ClassVar[str] = "entropy"
    depth: int = param(4, **DEPTH)
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "tokens per second relative to the best fixed draft length",
            "several model pairs and tasks, compared with static draft lengths", 1.1,
            1.57, "Agrawal et al. 2024, AdaEDL, arXiv:2410.18351, abstract: 10 to 57 % faster (from memory)",
            lambda lab: lab.speed_over({"policy": "entropy", "depth": 8}, BEST_OF), key="entropy", timed=True,
            method="draft-model",
        ),
    )  # fmt: skip
    root_entropy: float = param(
        1.0, ge=0.0, le=4.0, doc=("stop drafting when √H is above this; H: entropy of the draft distribution in nats")
    )

    def plan(self, sequence: Sequence, state: Any, batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan with `depth` draft levels and early stopping."""
        return Plan(self.depth, can_stop_early=True)

    def should_continue(self, sequence: Sequence, state: Any, step: Step) -> bool:
        """Return whether drafting should continue: at least one node's distribution has √H within the bound."""
        sequence.report.signals[SIGNAL] = lowest = float(root_entropy(step.p).amin())
        return lowest <= self.root_entropy

"""Oracle: draft from a mixture that contains the target's own distribution, at an acceptance rate set by the user."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import cast

from jaxtyping import Float
from torch import Tensor

from workbench.core.params import param
from workbench.core.sampling import to_probs
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import Drafter
from workbench.engine.request import Sequence
from workbench.methods.tree_builders.chain import draft_chain


@dataclass(frozen=True)
class Oracle(Drafter):
    """Draft from q = a·p + (1 − a)·(point mass at the target's least likely token), with p the target's distribution.

    Then Σ min(p, q) = a, up to the least likely token's own probability. So every drafted token is accepted with
    probability a = `acceptance`, independent of earlier tokens, as closed forms in the literature assume. The target
    itself drafts, so the speed has no meaning: this is a simulation, for teaching and for tests of such formulas.
    """

    acceptance: float = param(0.8, ge=0.0, le=1.0, doc="probability that a drafted token is accepted")

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[DraftTree]:
        """Draft chains from the mixture distribution q, in lock-step for all sequences."""
        target = sequences[0].models.target
        for sequence in sequences:
            sequence.cache_slot.scratch = 0
        first = [to_device(sequence.committed[-1:], target.device) for sequence in sequences]
        return draft_chain(
            sequences, target, [sequence.cache_slot for sequence in sequences], first, "oracle", draft_probs=mixture
        )


def mixture(sequence: Sequence, logits: Float[Tensor, "1 V"]) -> Float[Tensor, "1 V"]:
    """Return the oracle's draft distribution q at a position, a mixture computed from the target's logits."""
    a = cast(Oracle, sequence.drafter).acceptance
    p = to_probs(logits, sequence.sampling)
    return (a * p).scatter_add(1, logits.argmin(1, keepdim=True), p.new_full((1, 1), 1.0 - a))

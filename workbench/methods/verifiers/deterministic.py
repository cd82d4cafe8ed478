"""Accept the draft that equals a token drawn from the target's distribution p, which is exact for any drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from workbench.core.rejection import AcceptanceDecision, recursive_rejection
from workbench.core.tree import DraftTree, Sampling
from workbench.methods.verifiers.exact import Exact


@dataclass(frozen=True)
class Deterministic(Exact):
    """Draw a token y ~ p and accept the draft with this token, if there is one.

    One of the siblings is accepted with probability Σ p.

    p is the target's distribution; the sum is over the tokens of the siblings. The drafter's distribution q is not
    used, so no drafting rule can bias the output. Sampled drafts are accepted less often than by speculative sampling:
    one draft with probability Σ p·q instead of Σ min(p, q).

    Source: Li et al. 2024, EAGLE-2, arXiv:2406.16858, §4 (siblings accepted with the residual of p); Miao et al. 2024,
    SpecInfer, arXiv:2305.09781, §4.3, calls it naive sampling.
    """

    name: ClassVar[str] = "deterministic"
    exact_for: ClassVar[frozenset[Sampling]] = frozenset(Sampling)
    useful_for: ClassVar[frozenset[Sampling]] = frozenset(Sampling) - {Sampling.DETERMINISTIC}

    def decide(
        self, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_bonus: Float[Tensor, " N_plus_1"], lazy: bool = False
    ) -> AcceptanceDecision:
        """Verify all drafts as deterministic: accept the draft that equals a token drawn from the target."""
        deterministic = replace(
            tree, sampling=Sampling.DETERMINISTIC, q=None, child_q_rows=None, node_q_rows=None, without_replacement=None
        )
        return recursive_rejection(deterministic, p, u_bonus, lazy)

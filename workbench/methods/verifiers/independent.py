"""SpecInfer's rule: siblings drawn independently, each tested against the residual after its earlier siblings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from workbench.core.rejection import AcceptanceDecision
from workbench.core.tree import DraftTree, Sampling
from workbench.kernels.rejection import recursive_rejection
from workbench.methods.verifiers.exact import Exact


@dataclass(frozen=True)
class Independent(Exact):
    """Test siblings in turn: r ← p; accept x with min(1, r(x) / q(x)), else r ← (r − q)₊, normalised; finally y ~ r.

    p and q are the target's and the drafter's distribution, r is the residual, and y the token emitted if all siblings
    are rejected. Every sibling counts as an independent draw from q. A sibling with the token of a rejected sibling has
    r = 0, so it is never accepted. Drawing without replacement avoids such siblings.

    Source: Miao et al. 2024, SpecInfer, arXiv:2305.09781, Algorithm 2.
    """

    name: ClassVar[str] = "independent"
    exact_for: ClassVar[frozenset[Sampling]] = frozenset({Sampling.DETERMINISTIC, Sampling.CHAIN, Sampling.SAMPLED})
    useful_for: ClassVar[frozenset[Sampling]] = frozenset({Sampling.SAMPLED})

    def decide(
        self, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_bonus: Float[Tensor, " N_plus_1"], lazy: bool = False
    ) -> AcceptanceDecision:
        """Apply recursive rejection, with siblings treated as independent draws from the drafter's distribution."""
        return recursive_rejection(replace(tree, sampling=Sampling.SAMPLED), p, u_bonus, lazy)

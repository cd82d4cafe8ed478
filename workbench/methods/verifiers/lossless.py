"""The exact rules: greedy match at temperature 0, recursive rejection otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from workbench.core.rejection import Ruling, greedy_match, recursive_rejection
from workbench.core.sampling import SamplingParams, likeliest
from workbench.core.tree import DraftTree
from workbench.engine.parts import Verifier


@dataclass(frozen=True)
class Lossless(Verifier):
    """Emits what decoding from the target would: the same tokens when greedy, the same distribution when sampling.

    How siblings were chosen (`DraftTree.sampling`) decides the form of the rule; see
    `workbench.core.rejection.recursive_rejection`.

    Source: Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318; Jeon et al. 2024,
    arXiv:2402.14160.
    """

    def rule(
        self,
        tree: DraftTree,
        logits: Float[Tensor, "N_plus_1 V"],
        p: Float[Tensor, "N_plus_1 V"],
        sampling: SamplingParams,
        u_stop: Float[Tensor, " N_plus_1"] | None,
    ) -> Ruling:
        """Greedy match or recursive rejection."""
        if u_stop is None:
            return greedy_match(tree, likeliest(logits))
        return recursive_rejection(tree, p, u_stop)

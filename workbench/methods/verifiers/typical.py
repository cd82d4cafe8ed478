"""Typical acceptance: accept tokens whose target probability exceeds a threshold, which falls with entropy."""

from __future__ import annotations

import math
from collections import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision, RuleExplanation, VerificationResult, greedy_match
from workbench.core.rules import Rule
from workbench.core.sampling import SamplingParams
from workbench.core.sibling_groups import compute_node_errors, sample_bonus_tokens
from workbench.core.tree import DraftTree, children_of, tree_attention_mask
from workbench.decoders.declarations import Claim
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.engine.request import Sequence
from workbench.methods.verifiers.answers import at_matched_accuracy
from workbench.methods.verifiers.sums import make_ready, price_of_keeping
from workbench.models.loading import Models

TYPICAL = Rule(
    "typical",
    "Typical acceptance",
    "p > θ",
    {"p": "p", "θ": "threshold", "ε": "epsilon", "δ": "delta", "H": "entropy"},
    "The draft is accepted if its target probability exceeds a threshold: ε, or less where p's entropy H (in nats) "
    "is high. Among the paths that pass, the longest is taken, and among paths of equal length the likeliest. The "
    "test is not random, and the output does not follow the target's distribution.",
    because={"θ": "min(ε, δ · exp(−H))"},
    source="Cai et al. 2024, Medusa, arXiv:2401.10774, §2.3.1",
)


@dataclass(frozen=True)
class TypicalAcceptance(Verifier):
    """Accept x if p(x) > min(ε, δ·exp(−H(p))); follow the longest accepted path, then emit one token drawn from p.

    p is the target's distribution and H(p) its entropy in nats. At low entropy the threshold is ε; at high entropy it
    is lower. The rule is approximate: ε and δ determine how far the output deviates from the target's distribution. At
    temperature 0 it is greedy match.

    The deviation of a round is, for a chain, the sum of `workbench.core.relaxed.threshold_rule_error`. In a tree the
    drafts determine the path, and each token x of the path adds 1 − p(x), the target's probability of all other tokens.
    For deterministic drafts this sum is exact. For sampled drafts it is an upper bound on average: the output
    distribution is an average over drafts, and the distance of an average of distributions from p is at most the
    average of their distances. The exact deviation would depend on the subtrees of tokens that were not drawn.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, §2.3.1. Of accepted paths of equal length, the likelier one is
    taken.
    """

    name: ClassVar[str] = "typical"
    claims: ClassVar[tuple[Claim, ...]] = (
        at_matched_accuracy(
            "typical", ({"epsilon": 0.5, "delta": 0.7}, {"epsilon": 0.3, "delta": 0.55}, {}),
            "Vicuna 7B and 13B with Medusa heads, MT-bench: more drafts accepted, answers rated equal",
            "Cai et al. 2024, Medusa, arXiv:2401.10774, §3 (only the direction is compared; from memory)",
        ),
    )  # fmt: skip
    epsilon: float = param(0.09, ge=0.0, le=1.0, doc="ε, always accept tokens with a target probability above this")
    delta: float = param(
        0.3, ge=0.0, le=1.0, doc="δ, factor on exp(−entropy): the acceptance threshold at high entropy"
    )

    def init_state(self, sequence: Sequence, models: Models) -> None:
        """Compile the sums that the verifier needs before the first round. Return None: the verifier has no state."""
        make_ready(models.target.device)

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Return the acceptance of each draft node, 0 or 1, with the target probabilities as scores for `walk`."""
        if v.u_bonus is None:
            return greedy_match(v.tree, v.likeliest()).without_error
        tree, p = v.tree, v.p
        entropy = v.entropies()
        threshold = torch.minimum(p.new_tensor(self.epsilon), self.delta * torch.exp(-entropy))  # [N+1]
        p_x = p[tree.parents + 1, tree.tokens]
        node_threshold = threshold[tree.parents + 1]
        inputs = {"entropy": entropy[tree.parents + 1], "threshold": node_threshold}
        accept = (p_x > node_threshold).to(p.dtype)

        def node_deviation(node: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
            deviation = price_of_keeping(tree, p, threshold, node)
            assert deviation is not None
            return deviation

        is_chain = tree.fanout <= 1
        deviation = (
            compute_node_errors(len(tree), node_deviation, p, v.lazy)
            if is_chain
            else torch.where(on_best_path(tree, accept, p_x), 1 - p_x, 0.0)
        )
        bonus, explanation = sample_bonus_tokens(p, v.u_bonus, v.lazy), RuleExplanation((TYPICAL,), inputs)
        return AcceptanceDecision(
            accept, bonus, p_x, explanation, deviation, is_upper_bound=not is_chain and tree.q is not None
        )

    def walk(
        self,
        parents: abc.Sequence[int],
        accept: abc.Sequence[float],
        bonus: abc.Sequence[int],
        uniform: abc.Sequence[float] | None,
        score: abc.Sequence[float] | None = None,
    ) -> VerificationResult:
        """Follow the longest path of accepted draft nodes, and return these nodes and the token emitted after them.

        Among equally long paths, the one with the largest product of scores is taken.

        Args:
            parents: parent of each node, -1 below the root.
            accept: 1 for accepted nodes, else 0.
            bonus: token to emit if the path ends at the root or at each node.
            uniform: unused, because the rule draws nothing.
            score: target probability of each node; None: of equally long paths, the first is taken.
        """
        best: tuple[int, float, tuple[int, ...]] = (0, 0.0, ())
        paths: dict[int, tuple[float, tuple[int, ...]]] = {-1: (0.0, ())}
        tested_nodes: list[int] = []
        for node, parent in enumerate(parents):
            if parent not in paths:
                continue
            tested_nodes.append(node)
            if accept[node] > 0.5:
                product, path = paths[parent]
                log_score = 0.0 if score is None else math.log(max(score[node], math.ulp(0.0)))
                paths[node] = (product + log_score, (*path, node))
                best = max(best, (len(path) + 1, *paths[node]), key=lambda b: b[:2])
        path = best[2]
        position = path[-1] + 1 if path else 0
        results = tuple((node, node in path) for node in tested_nodes)
        return VerificationResult(path, int(bonus[position]), bool(children_of(parents)[position]), results, {})

    def needs_uniform(self, sampling: SamplingParams) -> bool:
        """Return False: the acceptance test compares with a threshold, so it needs no random numbers."""
        return False


def on_best_path(tree: DraftTree, accept: Float[Tensor, " N"], score: Float[Tensor, " N"]) -> Bool[Tensor, " N"]:
    """Return a mask of the nodes on the longest accepted path, as `TypicalAcceptance.walk` finds it, on the device.

    Args:
        tree: draft tree of at least one node.
        accept: 1 for accepted nodes, else 0.
        score: target probability of each node.
    """
    sees = tree_attention_mask(tree.parents, tree.depth)  # [N, N]
    is_accepted_path = ~(sees & (accept <= 0.5)).any(1)
    length = torch.where(is_accepted_path, sees.sum(1), 0)
    path_score = (sees * score.double().clamp_min(math.ulp(0.0)).log()).sum(1)
    best = torch.where(is_accepted_path & (length == length.max()), path_score, -torch.inf).argmax().unsqueeze(0)
    return (sees & is_accepted_path.unsqueeze(1)).index_select(0, best).squeeze(0)

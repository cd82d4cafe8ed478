"""Reflective verification: in one pass the target reads the draft, a question about it, and the draft again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.probes import ProbeOutput, Probes
from workbench.core.rejection import AcceptanceDecision, RuleExplanation, greedy_match
from workbench.core.relaxed import Lift
from workbench.core.rules import Rule
from workbench.core.sampling import apply_logits_processors, likeliest
from workbench.core.sibling_groups import ranks
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree, tree_attention_mask
from workbench.decoders.declarations import Claim
from workbench.decoders.draft_verify.parts import Verification, Verifier, verify_lossless
from workbench.engine.request import Sequence
from workbench.kernels.rejection import relaxed_rejection
from workbench.methods.verifiers.answers import at_matched_accuracy
from workbench.models.loading import Models

QUESTION = "\n[Check the last words for a mistake and write them again, corrected:]\n"
"""Question about a draft, which the target reads after the draft. The paper's wording is not published."""
REFLECTIVE = Rule(
    "reflective",
    "p after the target processed the draft twice",
    "min(1, r / q′)",
    {"r": "residual", "q′": "q_left", "p′": "reflected"},
    "After the draft the target reads a request to check it, and then a second copy of the draft. p′ is its "
    "probability of this token in the second copy. The logits of both readings are interpolated. r is the residual of "
    "the resulting distribution after earlier drafts, q′ the draft probability (1 if deterministic). A rejection "
    "leaves (r − q′)₊.",
    source="Wang et al. 2025, Think Before You Accept, arXiv:2505.18629",
)
REFLECTIVE_GREEDY = Rule(
    "reflective-greedy",
    "Likeliest token after a second pass over the draft",
    "x = x̂",
    {"x": "token", "x̂": "likeliest"},
    "At temperature 0 a draft is accepted if it is x̂, the likeliest token of the interpolated logits: those of the "
    "first reading, and those of a second reading after a request to check the draft.",
    source="Wang et al. 2025, Think Before You Accept, arXiv:2505.18629",
)
_SHARED = "reflective: the question"


@dataclass(frozen=True)
class Reflective(Verifier):
    """Verify against p̂ = softmax(((1 − α)·l + α·l′) / T) instead of p; rejected tokens are replaced by draws from p̂.

    The draft d₁ … d_K is followed by the question, the last m committed tokens and the draft again, as probe positions:
    positions that the same pass computes and that are never accepted. l are the target's logits for a draft token at
    its first reading; they do not depend on the probes. l′ are the logits for the same token at the second reading,
    after the whole draft and the question. α is the weight of the second reading, T the temperature. The token after
    the last draft is drawn with l alone. With α = 0 there are no probes, and the rule is exact.

    For a draft of N tokens, a pass reads 2·N + |question| + m tokens after the last committed one, instead of N. The
    deviation of a round is the total variation distance between p̂ and p, summed over the tested positions. Because p̂
    depends on the draft, this is, for sampled drafts, the deviation given the draft. It does not bound the distance
    between the overall output distribution and p. The second reading favours tokens that the target has read before:
    with higher α more drafts are accepted, both right and wrong ones.

    At temperature 0 the logits are interpolated in the same way: a draft is accepted if it is the likeliest token of (1
    − α)·l + α·l′; otherwise this token replaces it. The deviation is the number of tested positions where this token is
    not the likeliest token of l.

    Source: Wang et al. 2025, Think Before You Accept, arXiv:2505.18629. Its α, m and question are not published. In a
    tree, the question and the draft tokens of the second reading attend to all draft tokens of the first reading.
    """

    name: ClassVar[str] = "reflective"
    claims: ClassVar[tuple[Claim, ...]] = tuple(
        at_matched_accuracy(
            "reflective", ({"reflection": 0.1}, {"reflection": 0.3}, {"reflection": 0.5}),
            "Llama 3 1B → 8B and 8B → 70B, dialogue, mathematics, code: 5 to 15 % faster, quality hardly changes",
            "Wang et al. 2025, arXiv:2505.18629 "
            "(numbers from reviews of the paper; faster than with statistical acceptance rules alone)",
            1.05, 1.15, temperature,
        )
        for temperature in (0.0, 1.0)
    )  # fmt: skip
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    keeps_greedy: ClassVar[bool] = False
    reflection: float = param(0.3, ge=0.0, le=1.0, doc="α, weight of the second pass over the draft; 0: exact output")
    again: int = param(8, ge=1, le=32, doc="m, number of committed tokens repeated before the draft is processed again")

    def init_state(self, sequence: Sequence, models: Models) -> Int[Tensor, " R"]:
        """Return the token ids of the question about the draft as a tensor, which all sequences share."""
        if _SHARED not in models.shared:
            ids = models.tokenizer.encode(QUESTION, add_special_tokens=False)
            models.shared[_SHARED] = to_device(ids, models.target.device, torch.long)
        return models.shared[_SHARED]

    def probes(self, sequence: Sequence, tree: DraftTree) -> Probes | None:
        """Return extra positions at which the target reads a question about the draft, and the draft again.

        The result is None if the second reading has the weight 0 or the draft is empty.
        """
        if len(tree) == 0 or self.reflection == 0.0:
            return None
        last_tokens = to_device(sequence.committed[-self.again :], tree.tokens.device, torch.long)
        return second_reading(tree, torch.cat([sequence.state.verifier, last_tokens]))

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Verify a draft against p̂, from the logits mixed between its two readings; greedily at temperature 0.

        A reading is one processing of the draft in the forward pass. If there was only one, the exact rule is applied.
        """
        tree = v.tree
        if v.probe_output is None:
            return verify_lossless(v).without_error
        if v.u_bonus is None:
            return self._greedy(v, v.probe_output)
        p = v.p
        mixed, second = self._mixed(v, v.probe_output, p.dtype)
        is_tested = torch.zeros(len(p), 1, dtype=torch.bool, device=p.device).index_fill(0, tree.parents + 1, True)
        p_hat = torch.where(is_tested, v.probs_of(mixed), p)  # p̂ [N+1, V]
        test = relaxed_rejection(tree, p_hat, v.u_bonus, Lift(), v.lazy)
        reflected = v.probs_of(second)[tree.parents + 1, tree.tokens]
        inputs = {"residual": test.residual, "q_left": test.q_left, "reflected": reflected}
        if tree.q is not None:
            inputs["q"] = test.q
        tv = (p_hat - p).abs_().sum(1) / 2
        deviation = torch.where(ranks(tree.parents) == 0, tv[tree.parents + 1], 0.0)
        return AcceptanceDecision(
            test.accept, test.bonus, explanation=RuleExplanation((REFLECTIVE,), inputs), distribution_error=deviation
        )

    def _greedy(self, v: Verification, probed: ProbeOutput) -> AcceptanceDecision:
        """Verify a draft greedily: accept the tokens that are likeliest by the logits mixed from both readings."""
        tree, target_tokens = v.tree, v.likeliest()
        mixed, _ = self._mixed(v, probed, torch.promote_types(v.logits.dtype, torch.float32))
        positions = tree.parents + 1
        is_tested = torch.zeros_like(target_tokens, dtype=torch.bool).index_fill(0, positions, True)
        tokens = torch.where(
            is_tested, likeliest(apply_logits_processors(mixed, v.sampling, v.histories)), target_tokens
        )
        decision = greedy_match(tree, tokens)
        assert decision.explanation is not None
        deviation = torch.where(
            ranks(tree.parents) == 0, (tokens != target_tokens)[positions].to(decision.accept.dtype), 0.0
        )
        return AcceptanceDecision(
            decision.accept,
            decision.bonus,
            explanation=RuleExplanation((REFLECTIVE_GREEDY,), decision.explanation.inputs),
            distribution_error=deviation,
        )

    def _mixed(
        self, v: Verification, probed: ProbeOutput, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "N_plus_1 V"], Float[Tensor, "N_plus_1 V"]]:
        """Return the logits interpolated between both readings of a draft in one forward pass, and those of the second.

        The interpolated logits are (1 − α)·l + α·l′ after the root and each node, before penalties. l′ are the logits
        of the second reading, in which the target reads the draft again after a question about it.
        """
        second = probed.logits[-len(v.tree) - 1 :].to(dtype)  # [N+1, V]: after the root, then after each draft
        if self.reflection == 1.0:
            return second, second
        first = (v.logits if v.raw_logits is None else v.raw_logits).to(dtype)
        return (1 - self.reflection) * first + self.reflection * second, second


def second_reading(tree: DraftTree, lead: Int[Tensor, " L"]) -> Probes:
    """Return probes (extra positions) for the second reading of a draft: the tokens of `lead`, then the draft's.

    The probes' positions in the text follow the position of the deepest node. The last N + 1 probes correspond to the
    root and the N nodes of the tree; the last token of `lead` corresponds to the root.

    Args:
        tree: draft tree of at least one node.
        lead: tokens of the question and of the repeated text before the draft; L ≥ 1.
    """
    n, m, device = len(tree), lead.shape[0], lead.device
    draft_mask = tree_attention_mask(tree.parents, tree.depth)
    sees = torch.zeros(m + n, 2 * n + m, dtype=torch.bool, device=device)
    sees[:, :n] = True
    sees[:m, n : n + m] = torch.ones(m, m, dtype=torch.bool, device=device).tril()
    sees[m:, n : n + m] = True
    sees[m:, n + m :] = draft_mask
    lead_parents = torch.arange(n - 1, n + m - 1, device=device)  # the lead is a chain below the last draft node
    parents = torch.cat([lead_parents, tree.parents + n + m])
    steps = torch.cat([torch.arange(1, m + 1, device=device), m + draft_mask.sum(1)])
    return Probes(torch.cat([lead, tree.tokens]), parents, steps + tree.depth, sees, 2 * tree.depth + m, "reflective")

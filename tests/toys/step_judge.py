"""A toy for teaching: a verifier that judges whole steps, and revokes poor ones.

    WORKBENCH_METHODS=tests/toys/step_judge.py

It shows how to use `Verifier.max_tentative` and `Verifier.decide_tentative`.
"""

from __future__ import annotations

import math
from collections import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision, RuleExplanation, greedy_match
from workbench.core.rules import Rule
from workbench.core.sampling import SamplingParams, likeliest, pick
from workbench.decoders import Method, Promise, Source
from workbench.decoders.draft_verify.parts import TentativeDecision, Verification, Verifier
from workbench.engine import Models, Sequence
from workbench.methods.draft_model.drafter import DraftModel
from workbench.methods.policies.fixed import Fixed
from workbench.trace.tokens import EmittedToken

EASY = Rule(
    "easy",
    "Lenient acceptance",
    "p > θ",
    {"p": "p", "θ": "threshold"},
    "Accepted if p is above θ; the whole step is judged later. This does not follow the target's distribution.",
)


@dataclass
class StepState:
    """State of a sequence: whether the current step replaces a revoked one."""

    is_strict: bool = False


@dataclass(frozen=True)
class StepJudge(Verifier):
    """Accept nearly all draft tokens, judge each step when it is complete, and revoke poor steps.

    A step has at least `step` tokens, since it ends with a round. It is good if the geometric mean of the target's
    probabilities of its tokens is at least `enough`. A revoked step is generated again with the target's greedy tokens
    (or sampled from p), and is then kept.

    Source: the step-level judge of Pan et al. 2025, SpecReason, arXiv:2504.07891, is the target itself, which rates a
    reasoning step in words. Here its probabilities are the rating: the toy shows how to revoke tokens.
    """

    name: ClassVar[str] = "step-judge"
    keeps_greedy: ClassVar[bool] = False
    step: int = param(8, ge=1, le=64, doc="minimum number of tokens of a step")
    easy: float = param(
        0.01, ge=0.0, le=1.0, doc="θ, probability above which a draft is accepted until its step is judged"
    )
    enough: float = param(0.3, ge=0.0, le=1.0, doc="mean probability of a step's tokens below which it is revoked")

    def init_state(self, row: Sequence, models: Models) -> StepState:
        """Start with a normal step."""
        return StepState()

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Accept leniently, or strictly in a step that replaces a revoked one."""
        if v.u_bonus is None and v.state.is_strict:
            return greedy_match(v.tree, likeliest(v.logits))
        stop = likeliest(v.logits) if v.u_bonus is None else pick(v.p, v.u_bonus)
        p_x = v.p[v.tree.parents + 1, v.tree.tokens]
        if v.state.is_strict:
            return AcceptanceDecision(torch.zeros_like(p_x), stop)
        threshold = p_x.new_full(p_x.shape, self.easy)
        return AcceptanceDecision(
            (p_x > threshold).to(p_x.dtype), stop, explanation=RuleExplanation((EASY,), {"threshold": threshold})
        )

    def needs_uniform(self, sampling: SamplingParams) -> bool:
        """Both rules only compare probabilities."""
        return False

    def max_tentative(self) -> int:
        """Return the length of a step and of the round that ends it."""
        return 2 * self.step + 64

    def decide_tentative(self, row: Sequence, held: abc.Sequence[EmittedToken], ends: bool) -> TentativeDecision:
        """Judge a step that is long enough, or the last one."""
        judge: Any = row.state.verifier
        if len(held) < self.step and not ends:
            return TentativeDecision()
        mean = math.exp(sum(math.log(max(token.p, 1e-30)) for token in held) / len(held))
        if mean >= self.enough or judge.is_strict:
            judge.is_strict = False
            return TentativeDecision(n_final=len(held))
        judge.is_strict = True
        row.report.signals["steps revoked"] = 1
        return TentativeDecision(n_revoked=len(held))


METHOD = Method(
    "step-judge",
    title="Judging whole steps (a toy)",
    promise=Promise.APPROXIMATE,
    source=Source(
        "SpecReason: fast and accurate inference-time compute via speculative reasoning",
        "Pan et al.",
        2025,
        "https://arxiv.org/abs/2504.07891",
        "a step is judged as a whole",
    ),
    summary="A token may be judged later, as long as it has not been shown.",
    idea=(
        "A toy that shows judging whole steps: drafts are accepted leniently, a step becomes text only after it was "
        "judged, and a poor step is revoked and generated again."
    ),
    differences=("The judge is the mean probability of the step's tokens, not the answer of a model.",),
    drafter=DraftModel(),
    verifier=StepJudge(),
    policies=(Fixed(depth=4),),
)

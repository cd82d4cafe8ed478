"""A toy for teaching: a verifier that judges whole steps, and takes back one that it does not like.

    WORKBENCH_METHODS=tests/toys/step_judge.py

It shows what that takes: `Verifier.max_tentative` and `Verifier.decide_tentative`.
"""

from __future__ import annotations

import math
from collections import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision, Reason, greedy_match
from workbench.core.rules import Rule
from workbench.core.sampling import SamplingParams, likeliest, pick
from workbench.decoders import Method, Promise, Source
from workbench.decoders.draft_verify.feedback import TentativeDecision, Verification
from workbench.decoders.draft_verify.parts import Verifier
from workbench.engine import Models, Sequence
from workbench.methods.drafters.draft_model import DraftModel
from workbench.methods.policies.fixed import Fixed
from workbench.trace.tokens import EmittedToken

EASY = Rule(
    "easy",
    "Easy on the draft",
    "p > θ",
    {"p": "p", "θ": "threshold"},
    "Kept if the target gives it more than θ: the step that it belongs to is judged as a whole. Not the target's law.",
)


@dataclass
class StepState:
    """Of one row: whether the step that is written is one that was taken back before."""

    is_strict: bool = False


@dataclass(frozen=True)
class StepJudge(Verifier):
    """Keep nearly all of a draft, and judge each step when it is written: one that is poor is taken back.

    A step is `step` tokens, or what a round more makes of them. It is good where the target gives its tokens the
    probability `enough`, as their geometric mean. One that was taken back is written anew with the target's likeliest
    tokens alone, or its law, and stands.

    Source: the step-level judge of Pan et al. 2025, SpecReason, arXiv:2504.07891, is the target itself, asked in words
    how good a step of thought is. Here its probabilities are the judge: the toy shows the way back.
    """

    name: ClassVar[str] = "step-judge"
    keeps_greedy: ClassVar[bool] = False
    step: int = param(8, ge=1, le=64, doc="tokens of a step, at least")
    easy: float = param(0.01, ge=0.0, le=1.0, doc="θ, probability above which a draft is kept until its step is judged")
    enough: float = param(0.3, ge=0.0, le=1.0, doc="mean probability of a step's tokens below which it is taken back")

    def init_state(self, row: Sequence, models: Models) -> StepState:
        """Nothing was taken back yet."""
        return StepState()

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Easy, or strict in a step that was taken back."""
        if v.u_bonus is None and v.state.is_strict:
            return greedy_match(v.tree, likeliest(v.logits))
        stop = likeliest(v.logits) if v.u_bonus is None else pick(v.p, v.u_bonus)
        p_x = v.p[v.tree.parents + 1, v.tree.tokens]
        if v.state.is_strict:
            return AcceptanceDecision(torch.zeros_like(p_x), stop)
        threshold = p_x.new_full(p_x.shape, self.easy)
        return AcceptanceDecision(
            (p_x > threshold).to(p_x.dtype), stop, reason=Reason((EASY,), {"threshold": threshold})
        )

    def needs_uniform(self, sampling: SamplingParams) -> bool:
        """Both rules are comparisons."""
        return False

    def max_tentative(self) -> int:
        """A step, and what the round that ends it may add."""
        return 2 * self.step + 64

    def decide_tentative(self, row: Sequence, held: abc.Sequence[EmittedToken], ends: bool) -> TentativeDecision:
        """Judge the step once it is long enough, or the last."""
        judge: Any = row.state.verifier
        if len(held) < self.step and not ends:
            return TentativeDecision()
        mean = math.exp(sum(math.log(max(token.p, 1e-30)) for token in held) / len(held))
        if mean >= self.enough or judge.is_strict:
            judge.is_strict = False
            return TentativeDecision(n_final=len(held))
        judge.is_strict = True
        row.report.signals["steps taken back"] = 1
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
    summary="A verdict may come later than the token, as long as nobody was shown the token.",
    idea=(
        "A toy that shows judging whole steps: drafts are kept easily, nothing of a step is text before it has been "
        "judged, and a poor step is taken back and written anew."
    ),
    differences=("The judge is the mean probability of the step, not a model that is asked.",),
    drafter=DraftModel(),
    verifier=StepJudge(),
    policies=(Fixed(depth=4),),
)

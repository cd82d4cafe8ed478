"""Lexical unit decoding: draft from the target's predictions at placeholder tokens after the text."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import AT_LEAST_ONE, Claim, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.lexical_unit.drafter import LexicalUnit
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.as_drafted import AsDrafted
from workbench.methods.verifiers.lossless import Lossless

METHOD = Method(
    "lexical-unit",
    title="Lexical unit decoding",
    promise=Promise.EXACT,
    source=Source(
        "Lexical unit decoding: accelerating large language models without compromising generation quality",
        "Sun et al.",
        2024,
        "https://arxiv.org/abs/2405.15208",
        "§3",
    ),
    summary="A model that was trained for it can predict several later tokens at placeholders after the text.",
    idea=(
        "The verifying pass has placeholder tokens (for later tokens that are unknown yet) after every position at "
        "which a round may end. The target's predictions at the placeholders after the position where the round does "
        "end are the next draft, so drafting needs no pass of its own. The paper accepts a prediction without "
        "verifying it if the target was confident: a lexical unit."
    ),
    formula="draft x(t + 1 + j) from p( · | x(≤ t), _ … _ ) with j placeholders _; unit: continue while max p > β",
    differences=(
        "The paper fine-tunes the target with placeholders in place of tokens that it predicts confidently, so that "
        "it learns to predict several at once. No such target is bundled: the placeholder is an ordinary token (_), "
        "and predictions there are seldom right beyond the first position.",
        "The paper accepts confident predictions without verifying them, as verifier=as-drafted with β = 0.9 does; "
        "that is approximate. By default the next pass verifies them, and the text follows the target's distribution.",
        "Even without verification the target reads every draft token, as in the paper: the pass that reads a unit "
        "also predicts the next one. The total variation distance shown is computed from the target's predictions in "
        "that pass.",
        "When sampling, a draft is drawn from the distribution predicted at each position instead of taking the "
        "likeliest token.",
        "The paper's control of repetitions is not built, because the paper hardly describes it.",
    ),
    order=76,
    testing=Testing(
        short={"depth": 2}, no_perfect_reason=(
            "Drafts cannot always be right here, because they are predictions at placeholder tokens; "
            "test_lexical_unit.py tests the method instead."
        )
    ),
    drafter=LexicalUnit(),
    verifier=Lossless(),
    other_verifiers=(AsDrafted(sure=0.9),),
    policies=(
        *(Fixed(depth=2), Confidence(depth=2), Planned(depth=2)),
        *(Bandit(depth=2), OptimalOracle(depth=2)),
    ),
    claims=(
        Claim(
            "speed-up over plain decoding, units accepted without verification", "fine-tuned models, text and code",
            1.3, 1.33, "Sun et al. 2024, arXiv:2405.15208, abstract (33 % on text, 30 % on code)",
            lambda lab: lab.speed(verifier="as-drafted"), timed=True,
            lacks="a target that was trained to predict later tokens at placeholder tokens",
        ),
        Claim(
            "tokens per target pass (τ), units accepted without verification",
            "fine-tuned models, text and code", None, None,
            "Sun et al. 2024, arXiv:2405.15208, abstract "
            "(only the direction is compared)", lambda lab: lab.tau(verifier="as-drafted"),
            key="tau", by_construction=AT_LEAST_ONE,
            lacks="a target that was trained to predict later tokens at placeholder tokens",
        ),
    ),
)  # fmt: skip

"""The target says several places at once, at placeholders, and drafts with that."""

from __future__ import annotations

from workbench.engine.declared import Claim
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.lexical_unit import LexicalUnit
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
    teaches="Asked at blanks behind its text, a model says something of later words, too, if it has learnt to.",
    idea=(
        "Placeholders stand behind every place where a round may end, in the pass that verifies. What the target says "
        "at those behind the place where it does end is the next draft, so that drafting has no pass of its own; "
        "the paper keeps it unseen where the target was sure: a lexical unit."
    ),
    formula="draft x(t + 1 + j) from p( · | x(≤ t), _ … _ ) with j placeholders;  unit: go on while max p > β",
    differs=(
        "The paper trains the target on, with placeholders in the places of tokens that it is sure of, so that it "
        "learns to say several at once. No such target is bundled: the placeholder is a token that it knows (_), and "
        "what it says there is seldom right beyond the first place.",
        "The paper keeps what the target is sure of, unseen: that is verifier=as-drafted with β = 0.9, approximate. By "
        "default the next pass verifies it, and the text is the target's.",
        "Either way the target reads every draft, as in the paper: the pass that reads a unit is the one that says the "
        "next. What it says of the drafts themselves is read off, too, and shown as their price.",
        "Where the target samples, a draft is drawn from what was said at each place, and not the likeliest token.",
        "The paper's control of repetitions, of which its text tells little, is not built.",
    ),
    place=76,
    drafter=LexicalUnit(),
    verifier=Lossless(),
    other_verifiers=(AsDrafted(sure=0.9),),
    policies=(
        *(Fixed(depth=2), Confidence(depth=2), Planned(depth=2)),
        *(Bandit(depth=2), OptimalOracle(depth=2)),
    ),
    claims=(
        Claim(
            "speed-up over plain decoding, text of units kept unseen", "fine-tuned models, text and code",
            1.3, 1.33, "Sun et al. 2024, arXiv:2405.15208, abstract (33 % on text, 30 % on code)",
            lambda lab: lab.speed(verifier="as-drafted"), timed=True,
            lacks="a target that was trained to read placeholders",
        ),
        Claim(
            "tokens a target pass (τ), units kept unseen", "fine-tuned models, text and code", None, None,
            "Sun et al. 2024, arXiv:2405.15208, abstract (direction)", lambda lab: lab.tau(verifier="as-drafted"),
            key="tau", lacks="a target that was trained to read placeholders",
        ),
    ),
)  # fmt: skip

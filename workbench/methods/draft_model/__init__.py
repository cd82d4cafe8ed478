"""Speculative decoding with a draft model: a small model drafts, and the target verifies."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import tree_head
from workbench.methods.draft_model.drafter import DraftModel
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.heuristic import Heuristic
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.policies.specdec_plus_plus import SpecDecPlusPlus
from workbench.methods.tree_builders.chain import Chain
from workbench.methods.verifiers.entropy_adaptive import EntropyAdaptive
from workbench.methods.verifiers.judge import Judge
from workbench.methods.verifiers.lenient import Lenient
from workbench.methods.verifiers.nearest import Nearest
from workbench.methods.verifiers.reflective import Reflective
from workbench.methods.verifiers.typical import TypicalAcceptance

METHOD = Method(
    "draft-model",
    title="Draft model",
    promise=Promise.EXACT,
    source=Source(
        "Fast inference from transformers via speculative decoding",
        "Leviathan et al.",
        2023,
        "https://arxiv.org/abs/2211.17192",
        "Algorithm 1",
    ),
    summary=(
        "A small model drafts tokens; rejection sampling with min(1, p/q) keeps the output distribution exactly the "
        "target's."
    ),
    idea=(
        "A small model with distribution q drafts K tokens, one after the other. The target reads all of them in one "
        "pass and accepts a prefix. A rejected token is replaced by a draw from the residual distribution, which "
        "makes the output follow exactly the target's distribution p."
    ),
    formula="accept x with probability min(1, p(x) / q(x)); after a rejection draw from (p − q)₊ / Σ (p − q)₊",
    differences=(
        "With policy=confidence, the drafter's distribution decides whether a draft stops, before a token is drawn "
        "from it; Hugging Face's rule tests the drawn token. A stop that depends on the drawn token would bias "
        "sampled text. Unlikely tokens stay in the draft, and it may be shorter or longer than with Hugging Face's "
        "rule.",
        "The judge of verifier=judge is trained on answers that a program corrupted; the paper (Judge Decoding) has "
        "some 500 questions annotated by hand. It may accept mistakes that the paper's judge would reject. It is "
        "also applied to drafts in sampled text.",
        "policy=planned uses the measured times of this run's rounds instead of the paper's single cost ratio, and a "
        "separate acceptance rate for each level of the draft. It may skip drafting, and its draft length may differ "
        "from that of the paper's formula.",
    ),
    order=10,
    testing=Testing(short={"depth": 2, "threshold": 0.5}, perfect={}),
    drafter=DraftModel(),
    **tree_head(
        Chain(),
        *(TypicalAcceptance(), Lenient(), Nearest(), EntropyAdaptive(), Reflective(), Judge()),
        drafter=DraftModel,
        policies=(Fixed, Heuristic, Confidence, Planned, Entropy, Bandit, SpecDecPlusPlus, OptimalOracle),
    ),
    claims=(
        Claim(
            "speed-up over plain decoding", "T5-XXL 11B with a T5 drafter, translation and summaries", 2.0, 3.0,
            "Leviathan et al. 2023, arXiv:2211.17192, abstract (from memory)", lambda lab: lab.speed(), timed=True,
        ),
        Claim(
            "τ relative to E[τ] by equation 1 of Leviathan et al. at the measured acceptance rate",
            "any pair whose acceptance rate is constant", 1.0, 1.0,
            "Leviathan et al. 2023, arXiv:2211.17192, equation 1", lambda lab: lab.tau_over_closed_form(),
            key="equation-1", tolerance=0.1,
        ),
    ),
    suites={
        "gpu": (Setting("Draft model"),),
        "on-policy": (Setting("chain", {"policy": "fixed", "depth": 5}),),
    },
)  # fmt: skip

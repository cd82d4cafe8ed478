"""A draft model goes on learning while it drafts."""

from __future__ import annotations

from workbench.engine.declared import Claim, Recording
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.online import Online
from workbench.methods.drafters.warmth import SHIFTING
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.heuristic import Heuristic
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless

METHOD = Method(
    "online",
    title="Online draft model (OSD)",
    promise=Promise.EXACT,
    source=Source(
        "Online speculative decoding",
        "Liu et al.",
        2024,
        "https://arxiv.org/abs/2310.07177",
        "§4",
    ),
    teaches="What the target said where a draft was wrong is a lesson that costs no pass of the target.",
    idea=(
        "A draft model drafts, and the places at which the target judged it, or those alone at which it was wrong, are "
        "kept together with the target's law there. Every few rounds a copy of its layers takes one step towards "
        "these laws, so that acceptance rises while a text of a new kind is written; the verifier never changes, and "
        "so the output stays the target's."
    ),
    formula="every I rounds:  θ ← AdamW( θ, ∇ mean over judged places of Σ p(x) log p(x) / q_θ(x) )",
    differs=(
        "By default all places that the target judged are learnt from, where the paper keeps those at which it "
        "rejected (places=rejected).",
        "Lessons follow rounds of one text, where the paper's follow requests; with warm=True they go on over requests "
        "of this backend, as the paper's do.",
        "Only the draft model's layers learn; embedding and LM head are shared with those who draft without learning.",
        "The target's law at a rejected place is read off the verification, where the released code has the target "
        "read the text again. What the draft model's cache holds was read before the lesson; it is not read anew.",
    ),
    place=12,
    drafter=Online(),
    verifier=Lossless(),
    policies=(Fixed(), Heuristic(), Confidence(), Planned(), Entropy(), Bandit(), OptimalOracle()),
    claims=(
        Claim(
            "speed-up over the same draft model that does not learn",
            "Vicuna-7B and Flan-T5, streams of requests of one kind", 1.22, 3.06,
            "Liu et al. 2024, arXiv:2310.07177, abstract",
            lambda lab: lab.speed_over(
                {"policy": "fixed", "warm": True}, [{"policy": "fixed", "rate": 0.0, "warm": False}]
            ),
            timed=True,
        ),
        Claim(
            "τ with learning that goes on over a stream that shifts its domain / without",
            "acceptance rises by 0.1 to 0.65", None, None,
            "Liu et al. 2024, arXiv:2310.07177, abstract (direction)",
            lambda lab: lab.on(*SHIFTING).tau_over(
                "online", {"policy": "fixed", "warm": True}, {"policy": "fixed", "rate": 0.0}, 0.0
            ),
            key="learns",
        ),
    ),
    recording=Recording(),
)  # fmt: skip

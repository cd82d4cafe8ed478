"""Kangaroo: draft with an adapter after the target's first layers, and stop at low confidence."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.differences import TRIMMED
from workbench.methods.kangaroo.drafter import ExitAdapter, Kangaroo
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless

SHALLOW = (
    f"{WRONG_SCALE}: τ 1.78 with 1.9 drafted tokens per round, but a round takes as long as 1.7 rounds of plain "
    "decoding; 14 prompts."
)

METHOD = Method(
    "kangaroo",
    title="Kangaroo (exit adapter)",
    promise=Promise.EXACT,
    source=Source(
        "Kangaroo: lossless self-speculative decoding via double early exiting",
        "Liu et al.",
        2024,
        "https://arxiv.org/abs/2404.18911",
        "§3",
    ),
    summary="Early layers do not predict the next token well, but a small trained adapter after them can.",
    idea=(
        "The first E layers of the target run over its own KV cache, and one trained attention layer A after them "
        "predicts the hidden state that the LM head reads. Drafting stops when the drafter's largest probability is "
        "below a threshold η: the second of the two early exits."
    ),
    formula="q = softmax( LM head( A( h(E) ) ) ),  continue while max q ≥ η",
    differences=(
        "Verification computes the first E layers again; it does not continue from the hidden states that drafting "
        "computed, as the method early-exit does. So a round also costs these E layers over the drafted tokens.",
        "Drafting stops before the token at which the confidence is too low; the paper still verifies that token. "
        "The test does not depend on a drawn token, so sampling stays exact.",
        "By default drafting stops when the likeliest token has a probability below η = 0.4, or after 4 tokens; the "
        "released code has η = 0.6 and 6 tokens, and exits after layer 2. SmolLM2's adapter follows layer 4 of 30.",
        "Drafts are chains; the paper's variant with siblings is not built.",
        TRIMMED,
    ),
    order=110,
    testing=Testing(short={"depth": 2, "threshold": 0.2}, perfect={}),
    drafter=Kangaroo(),
    verifier=Lossless(),
    policies=(
        *(Confidence(depth=4), Fixed(depth=4), Planned(depth=4), Entropy(depth=4)),
        *(Bandit(depth=4), OptimalOracle(depth=4)),
    ),
    claims=(
        Claim(
            "speed-up over plain decoding", "Vicuna, Spec-Bench, one sequence", 1.68, 1.68,
            "Liu et al. 2024, arXiv:2404.18911, abstract: up to 1.68×", lambda lab: lab.speed(), timed=True,
            explanation_by_column={"smollm2": ("2026-11-24 17:40 UTC", SHALLOW)},
        ),
    ),
    head=Head(
        ExitAdapter,
        "Kangaroo's adapter (Liu et al. 2024, arXiv 2404.18911): one attention layer after the target's layer "
        "{exit_layer}.",
    ),
    suites={"on-policy": (Setting("chain", {"policy": "fixed", "depth": 5}),)},
    recording=Recording(("chat", "story")),
)  # fmt: skip

"""An adapter behind the target's first layers, and a stop where it is unsure."""

from __future__ import annotations

from workbench.engine.declared import WRONG_SCALE, Claim, Head, Recording, Setting
from workbench.engine.method import Method, Promise, Source
from workbench.methods.catalogue.eagle_2 import TRIMMED
from workbench.methods.drafters.kangaroo import ExitAdapter, Kangaroo
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless

SHALLOW = f"{WRONG_SCALE}: τ 1.78 with 1.9 drafts a round, which takes 1.7 times as long as a plain token; 14 prompts."

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
    teaches="Early layers do not know the next word, but a small adapter behind them can be taught to guess it.",
    idea=(
        "The first E layers of the target run over its own cache, and one trained attention behind them guesses "
        "what the LM head would have read. Drafting stops where the drafter is unsure of itself: the second of the "
        "two early exits."
    ),
    formula="q = softmax( LM head( A( h(E) ) ) ),  go on while max q ≥ η",
    differs=(
        "Verification runs the first E layers again instead of going on from the exit states that drafting left, "
        "as early-exit does here; a round costs E layers' time over the drafted tokens more.",
        "Drafting stops before the token of which the drafter is unsure, where the paper still verifies it: the test "
        "then looks at no drawn token, and is exact when sampling too.",
        "By default it stops where the likeliest token has less than η = 0.4, after 4 tokens; the released code has "
        "0.6 and 6, and exits behind layer 2. SmolLM2's adapter stands behind layer 4 of 30.",
        "Chains only: of the paper's variant with siblings nothing is built.",
        TRIMMED,
    ),
    place=110,
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
            why_on={"smollm2": ("2026-11-24 17:40 UTC", SHALLOW)},
        ),
    ),
    head=Head(
        ExitAdapter,
        "Kangaroo's adapter (Liu et al. 2024, arXiv 2404.18911): one attention behind the target's layer "
        "{exit_layer}.",
        settings={"loss": "ce_soft:1"},
    ),
    suites={"on-policy": (Setting("chain", {"policy": "fixed", "depth": 5}),)},
    recording=Recording(("chat", "story")),
)  # fmt: skip

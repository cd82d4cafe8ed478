"""Masks behind the text: one pass of a small layer guesses several tokens at once."""

from __future__ import annotations

from workbench.engine.declared import Claim, Head, Recording, Setting
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.pard import Pard, PardNet
from workbench.methods.growers.offered import offered
from workbench.methods.growers.template import Template
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless

METHOD = Method(
    "pard",
    title="PARD",
    promise=Promise.EXACT,
    source=Source(
        "PARD: accelerating LLM inference with low-cost parallel draft model adaptation",
        "An et al.",
        2025,
        "https://arxiv.org/abs/2504.18583",
        "§3",
    ),
    teaches="A drafter that is asked about several places at once needs one pass, however many there are.",
    idea=(
        "Behind the text stand a few masks, all of them one learned vector, and one pass of the drafter guesses the "
        "tokens at all of their places at once, each place blind to what the others guess. In training, later masks "
        "are read ever more seldom, and only where the masks before them are, which makes it cheap."
    ),
    formula=(
        "f̂(t+1), …, f̂(t+K) = layer( W [ norm e(x(≤ t+1)) ; norm f(≤ t) ], m, …, m ),  "
        "q(k) = softmax( LM head f̂(t+k) )"
    ),
    differs=(
        "The paper's drafter is a language model of its own, which reads tokens alone and so serves a whole family of "
        "targets. Here it is a layer on one target's features, as in PARD-2's mode that depends on the target "
        "(arXiv:2605.08632) and in parallel EAGLE: a language model trained for minutes would guess next to nothing.",
        "Inside, the layer is 96 numbers wide, a third of the bundled target's width.",
        "Guesses are combined in a tree, as Medusa's, of 12 nodes by default; the paper verifies one chain of 8 to "
        "16, which is `nodes` no larger than `depth`.",
    ),
    place=107,
    drafter=Pard(),
    verifier=Lossless(),
    policies=(Fixed(), Planned(), Bandit()),
    growers=offered(Template()),
    claims=(
        Claim(
            "speed-up over plain decoding", "LLaMA3.1-8B in vLLM, one sequence", 3.67, 3.67,
            "An et al. 2025, arXiv:2504.18583, abstract: up to 3.67×", lambda lab: lab.speed(), timed=True,
        ),
    ),
    suites={
        "on-policy": (
            Setting("chain", {"nodes": 6, "depth": 6}),
            Setting("tree", {"nodes": 16, "depth": 6}),
        )
    },
    head=Head(
        PardNet,
        "PARD's masks (An et al. 2025, arXiv 2504.18583) behind one layer, {inner} numbers wide, on the target's "
        "features: {blocks} tokens in one pass.",
        settings={"loss": "ce_soft:1", "blocks": 6},
    ),
    recording=Recording(("chat", "story")),
)  # fmt: skip

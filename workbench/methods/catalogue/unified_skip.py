"""The target with layers left out evenly drafts for the whole of it."""

from __future__ import annotations

from workbench.engine.declared import Claim
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.unified_skip import UnifiedSkip
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.as_drafted import STILL_READ, AsDrafted
from workbench.methods.verifiers.lossless import Lossless

METHOD = Method(
    "unified-skip",
    title="Unified layer skipping",
    promise=Promise.EXACT,
    source=Source(
        "Accelerating inference in large language models with a unified layer skipping strategy",
        "Liu et al.",
        2024,
        "https://arxiv.org/abs/2404.06954",
        "§3",
    ),
    teaches="Layers spread evenly over the depth, first and last kept, can stand in for all of them, up to a point.",
    idea=(
        "A target speed-up s says how many layers run, L / s; they are spread evenly, whatever the token. What is left "
        "of the target drafts over the target's own cache, and the whole of it verifies."
    ),
    formula="layers that draft: round( i · (L − 1) / (k − 1) ), i = 0 … k − 1, with k = round( L / s )",
    differs=(
        "The paper emits what the thinned model says, an approximation; here it drafts, and the text is the target's.",
        STILL_READ,
        "The paper trains on with random speed-ups, so that the model gets used to missing layers. The bundled target "
        "was trained to leave early instead, another target not at all: drafts are worse.",
    ),
    place=72,
    drafter=UnifiedSkip(),
    verifier=Lossless(),
    other_verifiers=(AsDrafted(),),
    policies=(
        *(Fixed(depth=3), Confidence(depth=3), Planned(depth=3), Entropy(depth=3)),
        *(Bandit(depth=3), OptimalOracle(depth=3)),
    ),
    claims=(
        Claim(
            "speed-up over plain decoding", "BLOOMZ-7B and LLaMA-2, fine-tuned, translation: text of the thinned model",
            1.3, 1.7, "Liu et al. 2024, arXiv:2404.06954, abstract (recalled)", lambda lab: lab.speed(), timed=True,
            lacks="a target that was trained on with layers left out; measured is the exact decoder",
        ),
        Claim(
            "τ with half of the layers, evenly spread / with the first half of them",
            "BLOOMZ-7B and LLaMA-2, fine-tuned: better than other ways of skipping at an equal ratio", None, None,
            "Liu et al. 2024, arXiv:2404.06954, abstract (direction)",
            lambda lab: lab.tau_over(
                "early-exit", {"speedup": 2.0}, {"exit_layer": lab.models.target.n_layers // 2}, 0.0
            ),
            key="spread", lacks="a target that was trained on with layers left out",
        ),
    ),
)  # fmt: skip

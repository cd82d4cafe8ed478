"""DEL: draft with the target's first layers; choose exit layer and draft length in every round."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SETTING, Claim, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.dynamic_exit.drafter import DynamicExit
from workbench.methods.dynamic_exit.policy import TokensPerLayer
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless

NO_EXIT = (
    f"{WRONG_SETTING}: SmolLM2 was not trained for early exits; the rule finds no exit worth drafting "
    "from (τ 1.00), and trying exits costs time."
)

METHOD = Method(
    "del",
    title="DEL (dynamic exit layer)",
    promise=Promise.EXACT,
    source=Source(
        "DEL: context-aware dynamic exit layer for efficient self-speculative decoding",
        "Zarch et al.",
        2025,
        "https://arxiv.org/abs/2504.05598",
        "§3",
    ),
    summary="The best exit layer and the best draft length depend on each other and on the text.",
    idea=(
        "Verification yields the hidden states of all layers at every accepted position. From them the target's LM "
        "head computes the token that each exit would have drafted there, which shows how often each exit layer is "
        "right. The next draft uses the exit layer and draft length with the most expected tokens per computed layer."
    ),
    formula=(
        "expected tokens per computed layer TPL(E, d) = (1 − α^(d+1)) / (1 − α) / (d · (E + h) + L + h), with "
        "acceptance rate α of exit layer E, d drafts, L layers, and an LM head that costs h layers"
    ),
    differences=(
        "The LM head counts as h layers, by its number of weights, in drafts and in verification, because in a small "
        "model with a large vocabulary it costs as much as many layers. The paper counts layers only.",
        "Only a few exit layers are tried, spread evenly, because the LM head has to be applied to each of them at "
        "every accepted position.",
        "A draft stops before the token at which the exit's confidence is too low. The test does not depend on a "
        "drawn token, so sampling stays exact. The threshold lies midway between the mean probabilities of the "
        "exit's right and of its wrong predictions; we have not read how the authors' code sets it.",
        "The bundled target was trained with an early-exit loss, but without the paper's layer dropout.",
    ),
    order=71,
    testing=Testing(
        short={"policy": "fixed", "depth": 2},
        no_perfect_reason=(
            "Drafts cannot always be right here, because the drafter stops before the target's last layer; "
            "test_dynamic_exit.py tests the method instead."
        ),
    ),
    drafter=DynamicExit(),
    verifier=Lossless(),
    policies=(
        *(TokensPerLayer(depth=4), Fixed(depth=4), Planned(depth=4), Confidence(depth=4)),
        *(Bandit(depth=4), OptimalOracle(depth=4)),
    ),
    claims=(
        Claim(
            "speed-up over plain decoding", "LayerSkip models (LLaMA-2, LLaMA-3, CodeLLaMA), seven tasks",
            2.16, 2.62, "Zarch et al. 2025, arXiv:2504.05598v2, abstract", lambda lab: lab.speed(), timed=True,
            explanation_by_column={"smollm2": ("2026-11-24 17:34 UTC", NO_EXIT)},
        ),
        Claim(
            "tokens per computed layer relative to a fixed exit after a quarter of the layers, 4 drafts",
            "LayerSkip models, seven tasks: faster than the best fixed exit, by 0.19 to 0.27 of plain decoding's speed",
            None, None, "Zarch et al. 2025, arXiv:2504.05598v1 and v2, abstract (only the direction is compared)",
            lambda lab: lab.tokens_per_layer_over(
                "early-exit", {}, {"exit_layer": max(1, lab.models.target.n_layers // 4), "depth": 4}
            ),
            key="fixed-exit",
        ),
    ),
)  # fmt: skip

"""LayerSkip: draft with the target's own first layers."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SETTING, Claim, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import layer_skipping
from workbench.methods.early_exit.drafter import EarlyExit
from workbench.methods.verifiers.as_drafted import STILL_READ, AsDrafted

UNTRAINED = (
    f"{WRONG_SETTING}: SmolLM2 was not trained for early exits (τ 1.04 with 3 drafts per round), and "
    "draft passes are not compiled."
)

METHOD = Method(
    "early-exit",
    title="Early exit (LayerSkip)",
    promise=Promise.EXACT,
    source=Source(
        "LayerSkip: enabling early exit inference and self-speculative decoding",
        "Elhoushi et al.",
        2024,
        "https://arxiv.org/abs/2404.16710",
        "§3.3",
    ),
    summary=(
        "The target's own first layers can draft, without a second model or KV cache; deeper exits are more accurate "
        "and slower."
    ),
    idea=(
        "The first E layers of the target, with its final norm and LM head, draft K tokens over the target's own KV "
        "cache. The other layers then verify them in one pass, starting from the hidden states of the exit layer. So "
        "there is no second model, no second cache, and no layer reads a token twice."
    ),
    formula=(
        "q = softmax( head( norm( h(E) ) ) ), with h(E) the state after layer E; accept with probability min(1, p / q)"
    ),
    differences=(
        "Where passes are compiled (bfloat16 on a CPU with bfloat16 instructions), verification runs all layers over "
        "the draft again. Compiled passes compute the same bits for a token whatever else is in the batch; with "
        "reused hidden states this would not hold.",
        "The bundled target was trained with an early-exit loss on one early layer at a time, without the paper's "
        "layer dropout and curriculum, which may make early layers better drafters. Any other target is used as it is.",
        STILL_READ,
    ),
    order=70,
    testing=Testing(
        short={"depth": 2, "exit_layer": 1},
        real={"depth": 2, "exit_layer": 24},
        perfect={"exit_layer": 3},
    ),
    drafter=EarlyExit(),
    **layer_skipping(AsDrafted(), depth=3),
    claims=(
        Claim(
            "speed-up over plain decoding",
            "Llama models trained with layer dropout and early-exit loss; summaries 2.16, coding 1.82, parsing 2.0",
            1.82, 2.16, "Elhoushi et al. 2024, arXiv:2404.16710, abstract (from memory)", lambda lab: lab.speed(),
            timed=True, explanation_by_column={"smollm2": ("2026-11-24 17:33 UTC", UNTRAINED)},
        ),
    ),
    suites={"gpu": (Setting("Early exit"),)},
    recording=Recording(params={"temperature": 0.8}),
)  # fmt: skip

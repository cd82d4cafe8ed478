"""Unified layer skipping: draft with evenly spaced layers of the target."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import layer_skipping
from workbench.methods.unified_skip.drafter import UnifiedSkip
from workbench.methods.verifiers.as_drafted import STILL_READ, AsDrafted

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
    summary=(
        "Evenly spread layers, including the first and the last, approximate the whole target well enough to draft."
    ),
    idea=(
        "A chosen speed-up s sets the number of the target's layers that run, L / s of L; they are spread evenly, "
        "and are the same for every token. These layers draft over the target's own KV cache, and the whole target "
        "verifies."
    ),
    formula="layers that draft: round( i · (L − 1) / (k − 1) ), i = 0 … k − 1, with k = round( L / s )",
    differences=(
        "The paper emits the output of the model with skipped layers, an approximation. Here this output is only the "
        "draft, and the text follows the target's distribution.",
        STILL_READ,
        "The paper fine-tunes with random speed-ups, so that the model adapts to missing layers. The bundled target "
        "was trained for early exits instead; other targets were trained for neither. Drafts are worse than in the "
        "paper.",
    ),
    order=72,
    testing=Testing(short={"depth": 2, "speedup": 2.0}, perfect={"speedup": 1.0}),
    drafter=UnifiedSkip(),
    **layer_skipping(AsDrafted(), depth=3),
    claims=(
        Claim(
            "speed-up over plain decoding",
            "BLOOMZ-7B and LLaMA-2, fine-tuned, translation: output of the model with skipped layers",
            1.3, 1.7, "Liu et al. 2024, arXiv:2404.06954, abstract (from memory)", lambda lab: lab.speed(), timed=True,
            lacks="a target fine-tuned with layers skipped; measured with the exact decoder",
        ),
        Claim(
            "τ with half of the layers, evenly spread, relative to τ with the first half of them",
            "BLOOMZ-7B and LLaMA-2, fine-tuned: better text than other ways of skipping as many layers", None, None,
            "Liu et al. 2024, arXiv:2404.06954, abstract (only the direction is compared)",
            lambda lab: lab.tau_over(
                "early-exit", {"speedup": 2.0}, {"exit_layer": lab.models.target.n_layers // 2}, 0.0
            ),
            key="spread", lacks="a target fine-tuned with layers skipped",
        ),
    ),
)  # fmt: skip

"""FLASH: compress an image to a few latent vectors, and draft several tokens from one hidden state."""

from __future__ import annotations

from typing import Any

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Head, Measurement, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.eagle_vlm import LOSSES
from workbench.methods.flash.drafter import Flash, FlashNet
from workbench.methods.policies.fixed import Fixed
from workbench.methods.tree_builders.template import Template
from workbench.methods.verifiers.lossless import Lossless
from workbench.models.bundle import VISION_TARGET
from workbench.trace import metrics


def per_offset(lab: Any) -> Measurement:
    """Return the acceptance rate of a drafted block's first token, divided by that of its third token.

    Args:
        lab: a `workbench.bench.vision_lab.VisionLab`.
    """
    counts = [{d: n for d, *n in metrics.acceptance_by_depth(trace.rounds)} for trace in lab.traces("FLASH")]
    first, third = ([by_depth.get(depth, [0, 0]) for by_depth in counts] for depth in (1, 3))
    return lab.ratio_of_quotients(
        *(([n[1] for n in position_counts], [n[0] for n in position_counts]) for position_counts in (first, third))
    )


METHOD = Method(
    "flash",
    title="FLASH, latents and blocks",
    promise=Promise.EXACT,
    source=Source(
        "FLASH: latent-aware semi-autoregressive speculative decoding for multimodal tasks",
        "Wang et al.",
        2025,
        "https://arxiv.org/abs/2505.12728",
        "§3",
    ),
    summary=(
        "One forward pass can draft a block of tokens, which is cheaper than a pass per token and works best for "
        "formulaic text."
    ),
    idea=(
        "Learned queries A combine the image's features F into a few latent vectors. From one hidden state s of the "
        "layer an MLP predicts several future features at once; the LM head turns them into a block of tokens that do "
        "not depend on each other."
    ),
    formula="image: softmax(A Fᵀ) F;  f̂(t+1) = s(t),  f̂(t+1+i) = s(t) + MLPᵢ(s(t)), i < k",
    differences=(
        "One MLP of width 256 serves all offsets, and its output is added to the hidden state; the paper's MLP goes "
        "from D to 4·D and predicts all k features directly. The shared MLP has fewer weights, and k = 1 is exactly "
        "EAGLE; features at later offsets may be less accurate.",
        "A block has k = 4 features instead of the paper's 5. An image becomes 8 vectors, because images of the "
        "bundled target have 64 patches; the paper has 64 vectors for 576 patches. Training samples the number of "
        "learned queries, so that one drafter can be measured at every size; at each size it may be a little worse "
        "than a drafter trained for that size.",
        "The tree is chosen in every round from the round's probabilities, and the next block continues the "
        "likeliest path; the paper has one static tree of 63 nodes (shape=medusa-63 is a published tree of that "
        "size). With as many nodes, more drafts may be accepted than in the paper.",
        "The first future feature is the output of the layer itself, normalised as in the workbench's EagleVLM. "
        "Attention has as many key heads as query heads; in the paper four query heads share a key head. The bundled "
        "target is too narrow to gain from sharing.",
        LOSSES,
    ),
    order=180,
    testing=Testing(short={"depth": 2, "width": 2, "nodes": 6}, perfect={"nodes": 24}),
    drafter=Flash(),
    verifier=Lossless(),
    tree_builders=(Template(),),
    policies=(Fixed(depth=8),),
    claims=(
        Claim(
            "speed-up over plain decoding", "video captioning", 2.68, 2.68,
            "Wang et al. 2025, arXiv:2505.12728, abstract: up to 2.68×", lambda lab: lab.speed("FLASH"), timed=True,
            home=VISION_TARGET,
        ),
        Claim(
            "acceptance rate of a block's first token relative to the acceptance rate of its third token",
            "semi-autoregressive head, k = 5", None, None,
            "Wang et al. 2025, arXiv:2505.12728, §3.2 "
            "(only the direction is compared)", per_offset, key="offset", home=VISION_TARGET,
        ),
    ),
    suites={
        "vision": (
            Setting("FLASH", line="latents"),
            *(Setting(f"FLASH, {n} of 8", {"latents": n}, line="latents", main=False) for n in (4, 2, 1)),
        ),
    },
    head=Head(
        FlashNet,
        "FLASH (Wang et al. 2025, arXiv 2505.12728): learned queries combine the image's features into latent "
        "vectors, and one hidden state predicts several future features.",
        recipe="vision-heads",
    ),
    recording=Recording(scene="four-shapes"),
)  # fmt: skip

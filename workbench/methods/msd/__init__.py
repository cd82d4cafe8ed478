"""MSD: the drafter reads words as pairs of feature and embedding, and image patches as vision embeddings."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import tree_head
from workbench.methods.eagle_vlm import LOSSES
from workbench.methods.msd.drafter import MSD, MSDNet
from workbench.methods.policies.fixed import Fixed
from workbench.methods.tree_builders.best_first import BestFirst
from workbench.models.bundle import VISION_TARGET

NO_ROOM = (
    f"{WRONG_SCALE}: a tree of 5 levels allows 6 tokens per pass, and {{}} reaches {{}}, because all images are of one "
    "synthetic domain."
)

METHOD = Method(
    "msd",
    title="MSD, text and vision decoupled",
    promise=Promise.EXACT,
    source=Source(
        "Speculative decoding reimagined for multimodal large language models",
        "Lin et al.",
        2025,
        "https://arxiv.org/abs/2505.14260",
        "§3",
    ),
    summary="An image patch has no next word, so only words are fused with the embedding of the next token.",
    idea=(
        "Words enter as in EAGLE, as hidden state f and embedding e fused by a projection W. A patch v enters as the "
        "vector e(v) that the projector computed from it, without the target's hidden state and without a next token. "
        "Training starts on text alone and goes on with images and text."
    ),
    formula="word: W [ e(x(t+1)) ; f(t) ],  patch: e(v) itself",
    differences=(
        "The layer and its norms are those of the workbench's EagleVLM, so that the two drafters differ only in how "
        "an image enters. EAGLE, on which MSD builds, has none of these norms; MSD's gain over EAGLE may differ.",
        "The default tree has 12 nodes, 3 children per node and 5 levels instead of the paper's 63, 8 and 5, because "
        "each node costs a small target relatively more time; τ may be lower.",
        LOSSES,
        "As in the paper, training has two stages, text alone and then an increasing share of images. They last "
        "minutes instead of 40 epochs, and the first stage may be too short to matter.",
    ),
    order=160,
    testing=Testing(perfect={}),
    drafter=MSD(),
    **tree_head(BestFirst(), depth=5, policies=(Fixed,)),
    claims=(
        Claim(
            "τ relative to a drafter in which patches enter like words",
            "LLaVA-1.5, Qwen2-VL",
            None,
            None,
            "Lin et al. 2025, arXiv:2505.14260, §4.3 (only the direction is compared)",
            lambda lab: lab.tau_over("EagleVLM", "MSD"),
            home=VISION_TARGET,
            explanation=(
                "2026-11-22 12:14 UTC",
                NO_ROOM.format("the drafter in which patches enter like words", "5.3"),
            ),
        ),
        Claim(
            "speed-up over plain decoding",
            "LLaVA-1.5-7B, greedy",
            2.29,
            2.29,
            "Lin et al. 2025, arXiv:2505.14260, abstract: up to 2.29×",
            lambda lab: lab.speed("MSD"),
            key="speed",
            timed=True,
            home=VISION_TARGET,
        ),
    ),
    suites={
        "vision": (Setting("MSD"),),
    },
    head=Head(
        MSDNet,
        "MSD (Lin et al. 2025, arXiv 2505.14260): a word enters as hidden state and embedding of the next token, "
        "an image patch as the vector that the target's projector computed for it. The head was trained on text "
        "alone first, then with an increasing share of images.",
        recipe="vision-heads",
    ),
    recording=Recording(scene="four-shapes"),
)

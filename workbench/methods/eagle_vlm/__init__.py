"""EagleVLM: EAGLE's drafter for vision-language targets, which reads every patch of an image."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import tree_head
from workbench.methods.eagle_vlm.drafter import EagleVLM, EagleVLMNet
from workbench.methods.policies.fixed import Fixed
from workbench.methods.tree_builders.best_first import BestFirst
from workbench.models.bundle import VISION_TARGET

LOSSES = (
    "The losses on features and on distributions have weights 1 and 1 instead of 1 and 0.1 (workbench train "
    "vision-heads --set loss=smooth_l1:1+ce_soft:0.1 uses the paper's), which suits training runs of minutes; for "
    "longer runs the paper's weights may be better."
)

PAPER = Source(
    "SpecVLM: fast speculative decoding in vision-language models",
    "Huang et al.",
    2025,
    "https://arxiv.org/abs/2509.11815",
    "§3.1: the baseline EagleVLM",
)
CITED = "Huang et al. 2025, arXiv:2509.11815"

METHOD = Method(
    "eagle-vlm",
    title="EagleVLM",
    promise=Promise.EXACT,
    source=PAPER,
    summary=(
        "One decoder layer on the target's hidden states drafts well, but its cost grows with every image patch it "
        "reads."
    ),
    idea=(
        "The target's last hidden state f(t) at each position is fused by a projection W with the embedding e of the "
        "next token. One decoder layer predicts the next hidden state f̂(t+1) from it; the target's own LM head "
        "computes the distribution q from this prediction. Words and image patches are treated alike."
    ),
    formula="f̂(t+1) = layer( W [ norm e(x(t+1)) ; norm f(t) ], … ),  q = softmax( LM head f̂(t+1) )",
    differences=(
        "The feature and the embedding are each normalised before they are fused; the paper describes one norm on "
        "the drafter's input. Two more norms, which EAGLE does not have, are on the layer's input and on its output "
        "(initialised as the target's final norm). They keep a short training stable. Predictions may differ from "
        "the paper's because of these norms, and because of the shorter training.",
        "The default tree has 12 nodes, 3 children per node and 5 levels instead of the paper's 60, 10 and 7, because "
        "each node costs a small target relatively more time; τ may be lower.",
        LOSSES,
    ),
    order=150,
    testing=Testing(short={"depth": 2, "width": 2, "nodes": 6}, perfect={}),
    drafter=EagleVLM(),
    **tree_head(BestFirst(), depth=5, policies=(Fixed,)),
    claims=(
        Claim(
            "mean accepted length τ", "LLaVA-1.5-7B, greedy, trained for one epoch, tree of 60 nodes", 3.59, 3.59,
            f"{CITED}, main table", lambda lab: lab.tau("EagleVLM"), home=VISION_TARGET,
        ),
    ),
    suites={
        "vision": (Setting("EagleVLM"),),
    },
    head=Head(
        EagleVLMNet,
        "EagleVLM (Huang et al. 2025, arXiv 2509.11815): reads the target's feature and the next embedding at every "
        "position, word or patch.",
        recipe="vision-heads",
        folder_suffix="eagle",
    ),
    recording=Recording(scene="four-shapes"),
)  # fmt: skip

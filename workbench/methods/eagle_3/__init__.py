"""EAGLE-3: draft from hidden states of three layers, with a draft vocabulary and training-time test."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import tree_head
from workbench.methods.eagle_3.drafter import Eagle3, Eagle3Net
from workbench.methods.tree_builders.best_first import BestFirst

METHOD = Method(
    "eagle-3",
    title="EAGLE-3",
    promise=Promise.EXACT,
    source=Source(
        "EAGLE-3: scaling up inference acceleration of large language models via training-time test",
        "Li et al.",
        2025,
        "https://arxiv.org/abs/2503.01840",
        "§3",
    ),
    summary="A drafter that reads several target layers and trains on its own drafts needs no loss on features.",
    idea=(
        "The target's hidden states h after a low, a middle and a high layer are fused by a projection W into one "
        "state g. One decoder layer reads g with the next token's embedding e, and a small LM head U predicts the "
        "next token. At deeper levels of a draft, the layer reads its own last output instead of g. The layer was "
        "trained on drafts unrolled in this way, without a loss on features; the tree is EAGLE-2's."
    ),
    formula=(
        "g(t) = W [ h(low); h(mid); h(high) ],  s(t+1) = layer( [ norm e(x(t+1)) ; norm g(t) ], g(t) ),  "
        "q = softmax( U norm s(t+1) ),  then g(t+1) = s(t+1)"
    ),
    differences=(
        "Training takes minutes and has three draft steps instead of seven. Its loss is the mean over the supervised "
        "positions, whereas the released code divides by the number of all positions. τ is lower than after a long "
        "training.",
        "Unless the drafter is trained with head_learns=true, it has no LM head of its own and uses the target's: in "
        "minutes of training its layer learns faster that way. Heads with an LM head of their own, as in the paper, "
        "also work.",
        "Training may start from a trained layer of EAGLE (`begin`), as for SmolLM2's bundled head: its query, key "
        "and value weights are then applied to the fused hidden states instead of the feature. The paper starts from "
        "random weights.",
        "The fused layers are always three distinct ones; the released code uses layers 2, L/2 and L − 3, which can "
        "coincide in a shallow target.",
        "The default tree has 12 nodes, 3 children per node and 5 levels instead of the 60, 10 and 8 of the released "
        "code, because each node costs a small target relatively more time; τ may be lower.",
        "In a prompt with images, the drafter reads only the text after the images; the paper's targets read text "
        "only.",
    ),
    order=105,
    testing=Testing(no_perfect_reason=(
        "A head whose drafts are always right cannot be built here, because the drafter also reads tokens of the "
        "draft path; test_drafts.py tests the method instead."
    )),
    drafter=Eagle3(),
    **tree_head(BestFirst(), depth=5),
    claims=(
        Claim(
            "τ relative to EAGLE-2 with the same tree", "Vicuna-13B, MT-Bench, greedy: τ 6.65 against 4.83",
            1.38, 1.38, "Li et al. 2025, arXiv:2503.01840, table 1 (from memory)",
            lambda lab: lab.tau_over("eagle-2", {}, {}, 0.0),
            explanation=(
                "2026-11-27 23:07 UTC",
                f"{WRONG_SCALE}: both heads had 600 steps of 32 answers each; the paper's gain comes "
                "with eight times the data.",
            ),
            explanation_by_column={
                "smollm2": (
                    "2026-11-27 23:01 UTC",
                    f"{WRONG_SCALE}: EAGLE-3's layer was trained on 28,306 tokens of the target's answers, EAGLE-2's "
                    "on 485,710; measured on 14 prompts.",
                )
            },
        ),
    ),
    head=Head(
        Eagle3Net,
        "EAGLE-3's layer (Li et al. 2025, arXiv 2503.01840) on the fused outputs of the target's layers {taps}.",
    ),
    suites={
        "on-policy": (
            Setting("chain", {"depth": 5, "width": 1, "nodes": 5}),
            Setting("tree", {"depth": 5, "width": 3, "nodes": 16}),
        )
    },
    recording=Recording(("chat", "story")),
)  # fmt: skip

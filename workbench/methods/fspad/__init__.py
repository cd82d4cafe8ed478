"""FSPAD: the token's embedding gates the feature, and the LM head reads a projection of the predicted feature."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.differences import NORMS, TRIMMED
from workbench.methods.common.presets import tree_head
from workbench.methods.fspad.drafter import FSPAD, FSPADNet
from workbench.methods.tree_builders.best_first import BestFirst

UNDECIDED = f"{WRONG_SCALE}: the ratio is above 1, but with 25 prompts its 95 % interval of ±7 % contains 1."

METHOD = Method(
    "fspad",
    title="FSPAD",
    promise=Promise.EXACT,
    source=Source(
        "Boosting lossless speculative decoding via feature sampling and partial alignment distillation",
        "Gui et al.",
        2024,
        "https://arxiv.org/abs/2408.15562",
        "§3",
    ),
    summary=(
        "A hidden state covers every token that may follow; the embedding of the sampled token selects the relevant "
        "features."
    ),
    idea=(
        "The embedding e of the drawn token gates the target's feature f in a wider space, whereas EAGLE fuses the "
        "two by one projection. EAGLE's layer predicts the next feature f̂ from the result g. The target's LM head "
        "reads the prediction plus a learned projection of it, so that the losses on features and on tokens do not "
        "conflict. S, O, W and V are learned matrices."
    ),
    formula=(
        "g(t) = W ( silu( S norm e(x(t+1)) ) ⊙ ( O norm f(t) ) ),  f̂(t+1) = layer( g(t), … ),  "
        "q = softmax( LM head ( f̂(t+1) + V f̂(t+1) ) )"
    ),
    differences=(
        "No code was released, and the abstract names two ideas; we chose how to combine them. The feature loss "
        "applies to the layer's output, which is also fed back; the LM head reads a projection of it.",
        "In bfloat16, EAGLE drafts a level with one compiled call. FSPAD's levels are not compiled and take longer.",
        NORMS,
        "The default tree is EAGLE-2's with 12 nodes, 3 children per node and 5 levels, because each node costs a "
        "small target relatively more time; τ may be lower.",
        TRIMMED,
    ),
    order=102,
    testing=Testing(perfect={}),
    drafter=FSPAD(),
    **tree_head(BestFirst(), depth=5),
    claims=(
        Claim(
            "τ relative to EAGLE-2 with the same tree",
            "Vicuna and LLaMA-3-instruct targets, all tasks, greedy and sampled: τ above EAGLE-2's",
            None, None,
            "Gui et al. 2024, arXiv:2408.15562, abstract (only the direction is compared; from memory; "
            "no number given)",
            lambda lab: lab.tau_over("eagle-2", {}, {}, 0.0),
            explanation=("2026-11-27 23:08 UTC", UNDECIDED),
        ),
    ),
    head=Head(
        FSPADNet,
        "FSPAD's layer (Gui et al. 2024, arXiv 2408.15562): the token's embedding gates the feature in {wide} times "
        "its width, one decoder layer predicts the next feature, and the LM head reads a projection of it.",
    ),
    suites={
        "on-policy": (
            Setting("chain", {"depth": 5, "width": 1, "nodes": 5}),
            Setting("tree", {"depth": 5, "width": 3, "nodes": 16}),
        )
    },
    recording=Recording(("chat", "story")),
)  # fmt: skip

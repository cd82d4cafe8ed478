"""Hydra++: deeper Hydra heads, which also read an additional attention layer over the whole text."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import CHAIN_AND_TREE, claim_over_medusa, tree_head
from workbench.methods.hydra_plus_plus.drafter import HydraPlusPlus, HydraPlusPlusHeads
from workbench.methods.tree_builders.template import Template
from workbench.methods.verifiers.typical import TypicalAcceptance

METHOD = Method(
    "hydra-plus-plus",
    title="Hydra++",
    promise=Promise.EXACT,
    source=Source(
        "Hydra: sequentially-dependent draft heads for Medusa decoding",
        "Ankner et al.",
        2024,
        "https://arxiv.org/abs/2402.05109",
        "§4",
    ),
    summary=(
        "Heads predict better from the whole text than from the newest hidden state alone; one attention layer is "
        "enough."
    ),
    idea=(
        "These are Hydra's heads with three changes: a decoder layer of their own, the prefix layer, reads the "
        "target's last hidden states h of the whole text and gives each head its newest state g, beside embeddings e; "
        "the heads are stacks of four layers with weights R, W and V; and they are trained on the target's "
        "distributions, not on the text. The prefix layer runs once per round, over true states only, so its cache "
        "never has to be rolled back."
    ),
    formula=(
        "g(t) = layer( h(≤ t) ),  u = g(t), e(x(t+1)), …, e(x(t+k)),  y = R(k) u + SiLU(W(k) u),  "
        "y ← y + SiLU(V(k,j) y) for j = 2 … n,  head k: softmax( LM head( a(k) · h(t) + O y ) )"
    ),
    differences=(
        "All inner states are 64 numbers wide, and all heads share the projection O back to a hidden state and the "
        "target's LM head: at the paper's width, with LM heads of their own, they would be two thirds as large as the "
        "bundled target. The hidden state itself is added to the result with a learned weight a(k) per dimension, so "
        "that an untrained head predicts the same token as the target. Heads may be less accurate.",
        "Each layer of a head has weights of its own; in the released code all layers after the first share theirs.",
        "Training has no dropout and lasts some minutes instead of ten epochs: τ is lower than after a long training.",
        "The default tree has 12 nodes in 4 levels instead of 63 nodes, because each node costs a small target "
        "relatively more time; τ may be lower.",
    ),
    order=87,
    testing=Testing(no_perfect_reason=(
        "A head whose drafts are always right cannot be built here, because the drafter also reads tokens of the "
        "draft path; test_drafts.py tests the method instead."
    )),
    drafter=HydraPlusPlus(),
    **tree_head(Template(), TypicalAcceptance()),
    claims=(
        Claim(
            "τ relative to Hydra with a tree of the same size", "Vicuna 7B to 33B, MT-Bench, greedy", None, None,
            "Ankner et al. 2024, arXiv:2402.05109, §5 (only the direction is compared)",
            lambda lab: lab.tau_over("hydra", {}, {}, 0.0),
            needs=("hydra",),
            explanation=(
                "2026-11-27 23:03 UTC",
                f"{WRONG_SCALE}: Hydra++ has 275,328 parameters here, Hydra 526,752, both after 600 steps; with 25 "
                "prompts a gain of 3 % is not significant.",
            ),
        ),
        claim_over_medusa(
            "Vicuna 7B to 33B, MT-Bench, greedy",
            "Ankner et al. 2024, arXiv:2402.05109, §5 (only the direction is compared)", nodes=16,
        ),
    ),
    suites=CHAIN_AND_TREE,
    head=Head(
        HydraPlusPlusHeads,
        "{blocks} Hydra++ heads (Ankner et al. 2024, arXiv 2402.05109), {deep} layers deep and of width {cond}, "
        "on a prefix layer over the target's last hidden states.",
    ),
    recording=Recording(("chat", "story")),
)  # fmt: skip

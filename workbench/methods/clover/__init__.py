"""Clover: draft with one recurrent step, which adds each drafted token to a state computed by attention."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Head, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.clover.drafter import Clover, CloverHeads
from workbench.methods.common.presets import CHAIN_AND_TREE, claim_over_medusa, slow_rounds, tree_head
from workbench.methods.tree_builders.template import Template
from workbench.methods.verifiers.typical import TypicalAcceptance

METHOD = Method(
    "clover",
    title="Clover",
    promise=Promise.EXACT,
    source=Source(
        "Clover: regressive lightweight speculative decoding with sequential knowledge",
        "Xiao et al.",
        2024,
        "https://arxiv.org/abs/2405.00263",
        "§3; Clover-2: arXiv 2408.00264",
    ),
    summary=(
        "One recurrent step serves all levels: it reads the drafted path, and its cost does not depend on the depth "
        "in the draft."
    ),
    idea=(
        "A decoder layer over the target's last hidden states h, the augmenting block, computes a speculation state "
        "s. Then one step is repeated: a gate A adds the embedding e of the last drafted token x̂ to the state, "
        "weighted by how well it fits, and the target's LM head computes the next distribution from a combination g "
        "of both. Q, K and V are linear maps."
    ),
    formula=(
        "u(s) = A₁(h(s), e(x(s+1))),  s₀ = norm block( u(≤ t) ),  s ← A₂(s, e(x̂)),  q = softmax( LM head g(s, e(x̂)) "
        "),  A(s, e) = s + cos( Q norm s, K e ) · V e"
    ),
    differences=(
        "Every matrix product has rank 64, because at the paper's width the step and its block would be an eighth of "
        "the bundled target's size, with Clover-2's two layers a fifth. Each level may be less accurate.",
        "The augmenting block has one layer, as in Clover; Clover-2 has two (augmenting=2 in training). The newest "
        "token enters before the block, as in Clover-2 (mixes=false trains with Clover's order).",
        "The block reads the target's hidden states after the final norm instead of before it, as all trained heads "
        "of the workbench do; so it does not see their magnitude.",
        "The default tree has 12 nodes in 4 levels instead of 25 nodes in 5 levels, because each node costs a small "
        "target relatively more time; τ may be lower.",
    ),
    order=89,
    testing=Testing(no_perfect_reason=(
        "A head whose drafts are always right cannot be built here, because the drafter also reads tokens or "
        "embeddings of the draft path; test_clover.py tests the method instead."
    )),
    drafter=Clover(),
    **tree_head(Template(), TypicalAcceptance()),
    claims=(
        Claim(
            "tokens per second relative to plain decoding",
            "up to 91 % (Baichuan-Small) and 146 % (Baichuan-Large) faster than plain decoding", 1.91,
            2.46, "Xiao et al. 2024, arXiv:2405.00263, abstract",
            lambda lab: lab.speed(), timed=True, explanation=("2026-11-26 17:01 UTC", slow_rounds(3.1)),
        ),
        claim_over_medusa(
            "Baichuan-Small and -Large: 50 to 76 % more tokens per pass than Medusa, without each round's first token",
            "Xiao et al. 2024, arXiv:2405.00263, §4 (only the direction is compared)",
        ),
    ),
    suites=CHAIN_AND_TREE,
    head=Head(
        CloverHeads,
        "Clover's step for {blocks} levels (Xiao et al. 2024, arXiv 2405.00263 and 2408.00264), of width {cond}, on "
        "an augmenting block of {augmenting} layer over the target's last hidden states.",
    ),
    recording=Recording(("chat", "story")),
)  # fmt: skip

"""Chimera: approximate the target's next hidden states from the last three tokens and its earlier hidden states."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Head, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.chimera.drafter import Chimera, ChimeraHeads
from workbench.methods.common.presets import CHAIN_AND_TREE, claim_over_medusa, slow_rounds, tree_head
from workbench.methods.tree_builders.template import Template
from workbench.methods.verifiers.typical import TypicalAcceptance

METHOD = Method(
    "chimera",
    title="Chimera",
    promise=Promise.EXACT,
    source=Source(
        "Chimera: a lossless decoding method for accelerating large language models inference by fusing all tokens",
        "Zeng et al.",
        2024,
        "https://arxiv.org/abs/2402.15758",
        "§3",
    ),
    summary="The last three tokens predict much of the next text; the target's own hidden states add the rest.",
    idea=(
        "A small trigram encoder E reads the embeddings e of each new token and the two before it. One decoder layer "
        "then attends to the target's hidden states f of the whole text; its output g replaces the hidden state that "
        "the target has not computed yet. One head H(k) per level reads this output together with the newest true "
        "hidden state. At deeper levels of the draft, the layer also attends to the shallower levels."
    ),
    formula=(
        "c(s) = E( e(x(s−2)), e(x(s−1)), e(x(s)) ),  g(t+k) = layer( c(t+k); f(≤ t), g(t+1 … t+k−1) ),  "
        "q = softmax( LM head ( f(t) + H(k) [ f(t); g(t+k) ] ) )"
    ),
    differences=(
        "Every matrix product has rank 64, because at the paper's width the trigram encoder alone would be a twelfth "
        "of the bundled target's size. Each level may be less accurate.",
        "The head of a level adds a difference to the true hidden state, and the target's own LM head reads the sum; "
        "the released code has an LM head per level.",
        "The drafter is trained on the target's distributions, whereas the released code uses the tokens of the "
        "text. The distance between the drafter's states and the target's, which the paper computes, is not part of "
        "the loss here.",
        "In training each level of a draft attends to the earlier levels of the same draft; the attention mask in "
        "the released code hides them.",
        "The default tree has 12 nodes in 4 levels, because each node costs a small target relatively more time; τ "
        "may be lower.",
    ),
    order=91,
    testing=Testing(no_perfect_reason=(
        "A head whose drafts are always right cannot be built here, because the drafter also reads tokens or "
        "embeddings of the draft path; test_chimera.py tests the method instead."
    )),
    drafter=Chimera(),
    **tree_head(Template(), TypicalAcceptance()),
    claims=(
        Claim(
            "tokens per second relative to plain decoding", "Vicuna and LLaMA-2 of 7B and 13B: 2.7 on average", 2.7,
            2.7, "Zeng et al. 2024, arXiv:2402.15758, abstract",
            lambda lab: lab.speed(), timed=True, explanation=("2026-11-26 18:13 UTC", slow_rounds(2.9)),
        ),
        claim_over_medusa(
            "Vicuna 7B: the second and later heads are more accurate than Medusa's",
            "Zeng et al. 2024, arXiv:2402.15758, §4 (only the direction is compared; from memory)",
        ),
    ),
    suites=CHAIN_AND_TREE,
    head=Head(
        ChimeraHeads,
        "Chimera's trigram encoder, fusion layer and {blocks} heads (Zeng et al. 2024, arXiv 2402.15758), of width "
        "{cond}; the LM head is the target's.",
    ),
    recording=Recording(("chat", "story")),
)  # fmt: skip

"""Falcon: draft blocks of tokens with a layer whose positions attend to each other within a block."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, WRONG_SETTING, Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.differences import NORMS, TRIMMED
from workbench.methods.common.presets import tree_head
from workbench.methods.falcon.drafter import Falcon, FalconNet
from workbench.methods.tree_builders.best_first import BestFirst

CHAIN = {"grower": "chain", "depth": 6}

METHOD = Method(
    "falcon",
    title="Falcon",
    promise=Promise.EXACT,
    source=Source(
        "Falcon: faster and parallel inference of large language models through enhanced semi-autoregressive drafting "
        "and custom-designed decoding tree",
        "Gao et al.",
        2024,
        "https://arxiv.org/abs/2412.12639",
        "§3",
    ),
    summary=(
        "A drafter that predicts two tokens per pass needs half the passes, but the second token does not depend on "
        "the first."
    ),
    idea=(
        "EAGLE's layer, which reads a feature f and the next token's embedding e, is trained to predict the feature "
        "k = 2 positions ahead instead of the next one. An LSTM carries information within a block; W and R are "
        "projections. The two newest positions, which attend to each other, predict the next two features in one "
        "forward pass; these two predict the two after them. In training some positions, chosen at random, get their "
        "true features as input: more of them where more predictions are wrong, and fewer over time. So the "
        "prediction at the other position of a block learns to depend on them."
    ),
    formula=(
        "f̂(t+1), …, f̂(t+k) = layer( g(t−k+1), …, g(t) ; all earlier positions ),  g(s) = W [ norm e(x(s+1)) ; norm "
        "f(s) ] + R LSTM( block up to s ),  q(x(t+1+i)) = softmax( LM head f̂(t+i) )"
    ),
    differences=(
        "The LSTM is a third as wide as the target; the paper's LSTM is as wide as the target. EAGLE's projection is "
        "kept in parallel with it, because otherwise the whole feature would have to pass through 96 numbers.",
        "The LSTM runs over the positions of a block and restarts with each block. In the released code batch and "
        "time axes are swapped, so that no state passes from one position to the next. The LSTM has no biases and no "
        "dropout: in a short training few texts are repeated.",
        "The distillation loss is a KL divergence at temperature 1; the released code weights log-probabilities at "
        "temperature 0.95 by probabilities at temperature 1. Its hard label is drawn from the target's distribution; "
        "here the label is the likeliest token.",
        "Positions that get their true features in training are excluded from the loss, as in glancing training for "
        "translation, the source of this idea (Qian et al. 2021, arXiv:2008.07905). At most a share λ of the blocks "
        "get true features. The released code includes these positions in the loss, and at first gives true features "
        "to nearly every block, but only in the first text of a batch.",
        NORMS,
        "The default tree is EAGLE-2's with 12 nodes, 3 children per node and 6 levels; it depends on the round's "
        "distributions. The paper has a larger fixed tree for each block length (grower=template builds fixed "
        "trees). Each node costs a small target relatively more time; τ may be lower.",
        "In bfloat16, EAGLE drafts a level with one compiled call. Falcon's blocks are not compiled and take longer.",
        TRIMMED,
    ),
    order=104,
    testing=Testing(perfect={}),
    drafter=Falcon(),
    **tree_head(BestFirst(), depth=6),
    claims=(
        Claim(
            "speed-up over plain decoding", "Vicuna and LLaMA-2-chat, MT-Bench, HumanEval and GSM8K", 2.91, 3.51,
            "Gao et al. 2024, arXiv:2412.12639, abstract", lambda lab: lab.speed(), timed=True,
            explanation=(
                "2026-11-27 09:27 UTC",
                f"{WRONG_SCALE}: a round of 16 nodes takes 3.1 times as long as a round of plain decoding, and emits "
                "2.5 tokens.",
            ),
        ),
        Claim(
            "τ relative to EAGLE, chains of six tokens, with half as many forward passes of the drafter",
            "Vicuna and LLaMA-2-chat: faster than EAGLE, both methods with a fixed tree", None, None,
            "Gao et al. 2024, arXiv:2412.12639, abstract (only the direction is compared; from memory; "
            "no number given)",
            lambda lab: lab.tau_over("eagle", CHAIN, CHAIN, 0.0), key="eagle",
            explanation=(
                "2026-11-27 23:07 UTC",
                f"{WRONG_SETTING}: after training on 19,200 answers each, Falcon predicts the target's "
                "token at 0.81 of held-out positions, EAGLE at 0.85.",
            ),
        ),
        Claim(
            "tokens drafted per drafter pass, in chains of six tokens",
            "blocks of two tokens, one drafter pass per block", 2.0, 2.0,
            "Gao et al. 2024, arXiv:2412.12639, §3", lambda lab: lab.drafted_per_pass(**CHAIN),
            key="one-pass", by_construction="one pass of the head drafts a block of two tokens",
        ),
    ),
    head=Head(
        FalconNet,
        "Falcon's layer (Gao et al. 2024, arXiv 2412.12639): positions attend to each other in blocks of {block}; an "
        "LSTM of width {cond} over each block and one decoder layer predict the features of the next {block} "
        "positions in one forward pass.",
    ),
    suites={
        "on-policy": (
            Setting("chain", {"depth": 6, "width": 1, "nodes": 6}),
            Setting("tree", {"depth": 6, "width": 3, "nodes": 16}),
        )
    },
    recording=Recording(("chat", "story")),
)  # fmt: skip

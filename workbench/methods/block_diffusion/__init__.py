"""DFlash: draft a block of masked positions at once, with the target's hidden states as keys and values."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.block_diffusion.drafter import BlockDiffusion, BlockNet
from workbench.methods.common.differences import TRIMMED
from workbench.methods.common.presets import slow_rounds, tree_head
from workbench.methods.tree_builders.chain import Chain

UNDECIDED = f"{WRONG_SCALE}: with 25 prompts, the 95 % interval of the ratio contains 1 (no change)."


METHOD = Method(
    "block-diffusion",
    title="Block diffusion",
    promise=Promise.EXACT,
    source=Source(
        "DFlash: block diffusion for flash speculative decoding",
        "Chen et al.",
        2026,
        "https://arxiv.org/abs/2602.06036",
        "§3",
    ),
    summary="A drafter can fill in a block of masked positions in one pass if it reads the target's hidden states.",
    idea=(
        "The method follows DFlash: masked positions come after the newest token. They enter a small drafter as a "
        "mask vector m, the newest token as its embedding e. The drafter reads the target's hidden states h of a low, "
        "a middle and a high layer as keys and values, and predicts a distribution for all masked positions in one "
        "pass; each position attends to the whole block. Further passes fill in the tokens with the highest "
        "confidence and predict the remaining positions again."
    ),
    formula=(
        "c(s) = norm W [ h(low); h(mid); h(high) ] at s < t,  block = e(x(t)), m, …, m,  "
        "each layer: attention( Q block, K [ c; block ], V [ c; block ] ),  q(i) = softmax( LM head norm block(i) )"
    ),
    differences=(
        "The drafter has two small layers and a low-rank fusion of hidden states, trained for minutes. The released "
        "drafters have several layers of the target's shape and a full-rank fusion, and were trained for much "
        "longer: τ is lower here.",
        "Blocks have 8 positions, of which 5 are drafted by default; blocks of the released models have 16 or 10 "
        "positions. τ may be lower, and the target verifies fewer tokens that are rejected.",
        "The drafter is trained on the target's distributions at the positions of its answers, whereas the paper "
        "trains on the tokens of the answers.",
        "A quarter of the blocks in training have some of their tokens unmasked, so that the drafter can take more "
        "than one denoising step; the paper's drafter takes one step.",
        "When sampling, tokens are drawn from the drafter's distributions and verified by speculative sampling's "
        "rule. The released code drafts the likeliest tokens, and accepts them up to the first one that differs from "
        "the token that the target samples.",
        TRIMMED,
    ),
    order=109,
    testing=Testing(perfect={}),
    drafter=BlockDiffusion(),
    **tree_head(Chain(), depth=5),
    claims=(
        Claim(
            "speed-up over plain decoding", "Qwen3-8B", 6.0, 6.0,
            "Chen et al. 2026, arXiv:2602.06036, abstract: over 6×", lambda lab: lab.speed(), timed=True,
            explanation=("2026-11-26 17:10 UTC", slow_rounds(2.2)),
        ),
        Claim(
            "τ relative to PARD, both with chains of 5 draft tokens",
            "a block that attends to itself and to hidden states of several layers, compared with a causal sequence "
            "of mask tokens",
            None, None,
            "not a claim of the paper, which compares with EAGLE-3; made here because engines offer both methods as "
            "parallel drafting",
            lambda lab: lab.tau_over("pard", {"depth": 5}, {"depth": 5}, 0.0), key="beside-pard",
            explanation=("2026-11-27 23:06 UTC", UNDECIDED),
        ),
        Claim(
            "τ relative to Medusa, both with chains of 3 draft tokens",
            "keys and values from several target layers, compared with heads on the last hidden state",
            None, None,
            "not a claim of the paper, which compares with EAGLE-3; made here because Medusa also drafts in one pass",
            lambda lab: lab.tau_over("medusa", {"depth": 3}, {"grower": "chain", "depth": 3}, 0.0),
            key="beside-medusa", explanation=("2026-11-27 23:06 UTC", UNDECIDED),
        ),
        Claim(
            "τ with three denoising steps relative to τ with one step",
            "tokens filled in at earlier steps improve the predictions at the remaining positions", None, None,
            "Chang et al. 2022, MaskGIT, arXiv:2202.04200, §4 (direction: more steps are better, up to a limit)",
            lambda lab: lab.tau_over("block-diffusion", {"unmaskings": 3, "depth": 7}, {"depth": 7}, 0.0), key="steps",
            explanation=("2026-11-27 23:06 UTC", UNDECIDED),
        ),
    ),
    head=Head(
        BlockNet,
        "A block diffusion drafter after DFlash (Chen et al. 2026, arXiv 2602.06036): {layers} layers that fill in "
        "{block} masked positions at once, with the target's layers {taps} as keys and values; embedding and LM "
        "head are the target's.",
    ),
    suites={
        "on-policy": (
            Setting("chain", {"depth": 7}),
            Setting("tree", {"grower": "eagle-2", "depth": 5, "width": 3, "nodes": 16}),
        )
    },
    recording=Recording(("chat", "story")),
)  # fmt: skip

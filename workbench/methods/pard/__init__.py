"""PARD: draft all tokens in one pass, at positions that hold a mask token."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.differences import TRIMMED
from workbench.methods.common.presets import tree_head
from workbench.methods.pard.drafter import PARD, PARDNet
from workbench.methods.tree_builders.chain import Chain

TRAINED = 6
"""Number of tokens per draft in the training of PARD's drafter."""

SMALL = (
    f"{WRONG_SCALE}: a round takes as long as 2.4 rounds of plain decoding and emits 2.2 tokens; on the paper's GPUs "
    "several tokens cost about as much as one."
)
YOUNG = f"{WRONG_SCALE}: after training on 19,200 answers PARD emits 2.2 tokens per round, multi-token prediction 3.2."
UNREACHED = (
    f"{WRONG_SCALE}: at its four positions 80, 42, 19 and 61 % of drafts are accepted, so few rounds reach the last "
    "position."
)
WIDE = (
    f"{WRONG_SCALE}: without bfloat16 units a pass over 17 tokens takes 5.2 times as long as over one, and a tree of "
    "16 nodes emits 2.0 tokens."
)
METHOD = Method(
    "pard",
    title="PARD",
    promise=Promise.EXACT,
    source=Source(
        "PARD: accelerating LLM inference with low-cost parallel draft model adaptation",
        "An et al.",
        2025,
        "https://arxiv.org/abs/2504.18583",
        "§3",
    ),
    summary=(
        "A drafter can predict all its tokens in one pass: it reads mask tokens after the text, one per draft token."
    ),
    idea=(
        "One pass of the drafter reads the accepted tokens, with embeddings e and the target's hidden states h, and "
        "then a mask token m for each further token of the draft. A projection M fuses each pair. The hidden state at "
        "the newest token predicts the first draft token, and the hidden state at each mask token predicts one more. A "
        "mask token attends to the text and the mask tokens before it, but to no drafted token, so a longer draft "
        "costs no further pass but is more likely to be rejected."
    ),
    formula=(
        "h'(t+1), …, h'(t+k) = layer( …, M [ e(x(t+1)) ; h(t) ], M [ m ; h(t) ], …, M [ m ; h(t) ] ),  "
        "q(i) = softmax( LM head norm h'(t+i) )"
    ),
    differences=(
        "The paper adapts a small language model, which then serves a whole family of targets. Here EAGLE's layer, "
        "which reads the target's features, is trained from scratch for one target (SmolLM2's starts from a trained "
        "layer), as PARD-2's target-dependent drafter is.",
        "The drafter is trained in minutes on the target's distributions at the target's own answers, whereas the "
        "paper trains for epochs on the next token of the text: τ is lower.",
        "Positions to drop in training are drawn among those that have a token to predict; the released code draws "
        "among all positions of the text, and wraps around at its end.",
        "Each mask token is fused with the last known feature, which gives a single layer more information than the "
        "mask token alone: the paper's drafter has many layers and no features.",
        "A draft has 5 tokens by default and 6 in training; the released code has 12 and 8; τ may be lower, and the "
        "target verifies fewer tokens that are rejected.",
        TRIMMED,
    ),
    order=108,
    testing=Testing(perfect={}),
    drafter=PARD(),
    **tree_head(Chain(), depth=5),
    claims=(
        Claim(
            "speed-up over plain decoding",
            "LLaMA3.1-8B in vLLM",
            3.67,
            3.67,
            "An et al. 2025, arXiv:2504.18583, abstract: up to 3.67×",
            lambda lab: lab.speed(),
            timed=True,
            explanation=("2026-11-27 11:09 UTC", SMALL),
            explanation_by_column={"smollm2": ("2026-11-27 15:21 UTC", WIDE)},
        ),
        Claim(
            "tokens per second relative to a drafter with one pass per token (multi-token prediction)",
            "PARD compared with the draft models that it was adapted from, average",
            1.78,
            1.78,
            "An et al. 2025, arXiv:2504.18583, §4 (from memory; README)",
            lambda lab: lab.speed_over({}, [{"grower": "chain", "depth": 5}], other="mtp"),
            key="beside-steps",
            needs=("mtp",),
            timed=True,
            explanation=("2026-11-27 11:11 UTC", YOUNG),
        ),
        Claim(
            "tokens drafted per pass of the drafter",
            "12 tokens per draft in one pass",
            12.0,
            12.0,
            "An et al. 2025, arXiv:2504.18583, §3.1; 12 by default in the released code",
            lambda lab: lab.drafted_per_pass(depth=12),
            key="one-pass",
            by_construction="the head drafts all 12 tokens in one pass; a draft at the end of the text has fewer",
        ),
        Claim(
            "τ with 12 tokens per draft relative to τ with 6 tokens per draft, the number used in training",
            "one mask token for all positions allows drafts longer than in training",
            None,
            None,
            "An et al. 2025, arXiv:2504.18583, §4 (from memory)",
            lambda lab: lab.tau_over("pard", {"depth": 12}, {"depth": TRAINED}, 0.0),
            key="longer",
            explanation=("2026-11-27 11:04 UTC", UNREACHED),
        ),
    ),
    head=Head(
        PARDNet,
        "A drafter after PARD (An et al. 2025, arXiv 2504.18583): EAGLE's layer and a mask token, which predict all "
        "tokens of a draft in one pass; embedding and LM head are the target's.",
    ),
    suites={
        "on-policy": (
            Setting("chain", {"depth": 5}),
            Setting("tree", {"grower": "eagle-2", "depth": 5, "width": 3, "nodes": 16}),
        )
    },
    recording=Recording(("chat", "story")),
)

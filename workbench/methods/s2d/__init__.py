"""S2D: a draft model with several exits; each token comes from the first exit that is confident enough."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.differences import TRIMMED
from workbench.methods.common.presets import tree_head
from workbench.methods.s2d.drafter import S2D
from workbench.methods.s2d.net import S2DNet
from workbench.methods.tree_builders.chain import Chain

SMALLEST, MIDDLE, WHOLE = {"sure": 0.0}, {"sure": 1.0, "sure_later": 0.0}, {"sure": 1.0, "sure_later": 1.0}
"""Parameters of S2D with which only the first, a middle or the last exit drafts. Only the last exit ends a draft at
low confidence."""

METHOD = Method(
    "s2d",
    title="S2D (sorted drafter)",
    promise=Promise.EXACT,
    source=Source(
        "S2D: sorted speculative decoding for more efficient deployment of nested large language models",
        "Kavehzadeh et al.",
        2024,
        "https://arxiv.org/abs/2407.01955",
        "§3",
    ),
    summary=(
        "A draft model can have several sizes: easy tokens exit early, and skipped keys and values are computed when "
        "needed."
    ),
    idea=(
        "A small language model has exits after m_1, m_2, … of its layers, through one norm and one LM head. Each "
        "token of a draft comes from the first exit i whose largest probability reaches a threshold θ_i. If a deeper "
        "layer is needed later, it first processes every position that exited before it, all in one pass, so that its "
        "keys and values are the same as in a full run."
    ),
    formula=(
        "q = softmax( LM head norm h(m_i) ),  i = the first exit with max q ≥ θ_i, else the last;  stop if max q < θ"
    ),
    differences=(
        "The drafter serves one target; the paper has one drafter for several targets. So no average over targets is "
        "measured.",
        "The drafter is trained from scratch in minutes on the target's distributions at its own answers, whereas "
        "the paper fine-tunes the first layers of a pretrained model of the target's family on text: τ is lower.",
        "The drafter's embeddings and LM head are initialised from the target's LM head, projected to its principal "
        "directions; the paper has no such initialisation.",
        "We could not find how the paper handles keys and values of skipped layers; here all of them are computed "
        "when a deeper layer is first needed.",
        "A draft stops before the token at which the drafter's confidence is too low, even the first one. The test "
        "does not depend on a drawn token, so sampling stays exact.",
        TRIMMED,
    ),
    order=16,
    testing=Testing(no_perfect_reason=(
        "A head whose drafts are always right cannot be built here, because the drafter also reads tokens or "
        "embeddings of the draft path; test_s2d.py tests the method instead."
    )),
    drafter=S2D(),
    **tree_head(Chain(), depth=5),
    claims=(
        Claim(
            "speed-up over plain decoding", "one drafter for Vicuna 7B, 13B and LLaMA Chat 70B, Spec-Bench, average",
            1.55, 1.55, "Kavehzadeh et al. 2024, arXiv:2407.01955, abstract (from memory)", lambda lab: lab.speed(),
            timed=True,
            explanation=(
                "2026-11-27 09:29 UTC",
                f"{WRONG_SCALE}: a drafter of four layers is a third as deep as this target; a round with a tree "
                "takes as long as 3.3 rounds of plain decoding and emits 2.5 tokens.",
            ),
        ),
        Claim(
            "tokens per second relative to the drafter's fastest single size",
            "sizes chosen by confidence, compared with drafters of one size, averaged over targets", None, None,
            "Kavehzadeh et al. 2024, arXiv:2407.01955, abstract (only the direction is compared)",
            lambda lab: lab.speed_over({}, [SMALLEST, MIDDLE, WHOLE]), key="sizes", timed=True,
            explanation=(
                "2026-11-27 09:31 UTC",
                f"{WRONG_SCALE}: the smallest size alone drafts with one layer and has a larger τ, so the larger "
                "sizes cost more than they gain.",
            ),
        ),
        Claim(
            "τ relative to the smallest size of the drafter alone",
            "larger drafter sizes draft the tokens for which the smallest has low confidence", None, None,
            "not a claim of the paper, which compares speeds; made here to measure what larger sizes add to τ",
            lambda lab: lab.tau_over("s2d", {}, SMALLEST, 0.0), key="beside-smallest",
            explanation=(
                "2026-11-27 23:08 UTC",
                f"{WRONG_SCALE}: drafts end where even the largest drafter size has a top probability below 0.2 "
                "(least); with least=0 the ratio of τ is 1.01 (0.97–1.05).",
            ),
        ),
    ),
    head=Head(
        S2DNet,
        "A draft model of several sizes (S2D, Kavehzadeh et al. 2024, arXiv 2407.01955): a language model of width "
        "{cond} with exits after layers {exits}, with embeddings of its own.",
        agreement=(
            "the likeliest token of the drafter's largest size is the target's likeliest token, over the whole "
            "vocabulary"
        ),
    ),
    suites={
        "on-policy": (
            Setting("chain", {"depth": 5}),
            Setting("tree", {"grower": "eagle-2", "depth": 5, "width": 3, "nodes": 16}),
        )
    },
    recording=Recording(("chat", "story")),
)  # fmt: skip

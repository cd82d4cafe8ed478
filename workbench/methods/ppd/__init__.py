"""Parallel prompt decoding: with trained prompt tokens, the target predicts later tokens in the verifying pass."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import slow_rounds, tree_head
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.ppd.drafter import PPD, PromptTokens
from workbench.methods.tree_builders.dynamic_sparse import DynamicSparse

METHOD = Method(
    "ppd",
    title="Parallel prompt decoding",
    promise=Promise.EXACT,
    source=Source(
        "Hardware-aware parallel prompt decoding for memory-efficient acceleration of LLM inference",
        "Chen et al.",
        2024,
        "https://arxiv.org/abs/2405.18628",
        "§3 and §4",
    ),
    summary=(
        "Trained embeddings make the target predict later tokens: the drafter is three vectors and needs no pass of "
        "its own."
    ),
    idea=(
        "Trained prompt tokens s(j), embeddings that belong to no word, follow nodes of the draft. The target's "
        "prediction at the j-th of them is a guess at the token j + 1 positions ahead, so the pass that verifies one "
        "draft also makes the next one. Prompt tokens take positions in that pass, so trees and prompt tokens are "
        "planned together, by the measured cost of passes on this machine."
    ),
    formula="guess at x(t + 1 + j): softmax( target( x(≤ t), s(1), …, s(j) ) ),  only s(1) … s(m) are trained",
    differences=(
        "For each number of levels that can be drafted, the number of tokens per pass is chosen by its measured "
        "cost, and all these numbers are optimised together. The paper gives all passes the same number of tokens, "
        "and tries several. In our measurements our choice was no slower.",
        "The embeddings are trained at many positions of each text at once, whereas the paper's are trained at one "
        "position of each text: the same loss, from fewer texts.",
    ),
    order=88,
    testing=Testing(no_perfect_reason=(
        "A head whose drafts are always right cannot be built here, because the drafter also reads tokens or "
        "embeddings of the draft path; test_ppd.py tests the method instead."
    )),
    drafter=PPD(),
    **tree_head(DynamicSparse(), depth=3, policies=(Fixed, Planned)),
    claims=(
        Claim(
            "tokens per second relative to plain decoding", "MobileLLaMA to Vicuna-13B, MT-Bench, greedy: up to 2.49",
            2.49, 2.49, "Chen et al. 2024, arXiv:2405.18628, abstract",
            lambda lab: lab.speed(), timed=True, explanation=("2026-11-27 23:24 UTC", slow_rounds(1.9)),
        ),
        Claim(
            "τ relative to Medusa with a tree of the same size (12 nodes)",
            "Vicuna 7B, MT-Bench: acceptance rate of long-range guesses up to 28 % higher", None, None,
            "Chen et al. 2024, arXiv:2405.18628, §5 (only the direction is compared)",
            lambda lab: lab.tau_over(
                "medusa", {"grower": "template", "nodes": 12, "depth": 3}, {"nodes": 12, "depth": 3}, 0.0
            ),
            key="medusa",
            explanation=(
                "2026-11-27 23:13 UTC",
                f"{WRONG_SCALE}: the drafter has 864 parameters; its first and second draft tokens match the "
                "target's in 42 % and 20 % of held-out cases, Medusa's in 49 % and 42 %.",
            ),
        ),
    ),
    suites={
        "on-policy": (
            Setting("chain", {"grower": "template", "nodes": 3, "depth": 3}),
            Setting("tree", {"grower": "template", "nodes": 16, "depth": 3}),
        )
    },
    head=Head(
        PromptTokens,
        "{prompts} prompt tokens (Chen et al. 2024, arXiv 2405.18628) of {ensemble} embedding each. They follow a "
        "text, and the target predicts later tokens at their positions.",
    ),
    recording=Recording(("chat", "story")),
)  # fmt: skip

"""ADED: draft by a tree search in a tri-gram table that is updated while the target decodes."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SETTING, Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.adaptive_trigram.drafter import AdaptiveTrigram
from workbench.methods.common.presets import copying

BEST_FIRST = (
    f"{WRONG_SETTING}: with one table, the search converges to best-first order (test_trigram.py), so τ is at best "
    "equal; the paper compares with other drafters."
)

METHOD = Method(
    "adaptive-trigram",
    title="Adaptive tri-grams (ADED)",
    promise=Promise.EXACT,
    source=Source(
        "Adaptive draft-verification for efficient large language model decoding",
        "Liu et al.",
        2024,
        "https://arxiv.org/abs/2407.12021",
    ),
    summary="A table updated at each verification drafts more like the target than a table that is only read.",
    idea=(
        "A table holds one weight w per tri-gram. A weight grows when its tri-gram is written, and moves by a step η "
        "towards the target's distribution p at every verified node. A tree search in the table tries continuations "
        "of the newest two tokens; the nodes that it visits most often are the draft."
    ),
    formula=(
        "w(x | u, v) ← (1 − η) · w(x | u, v) + η · p(x | … u, v) at verified nodes; + 0.04 where the text gains u v x"
    ),
    differences=(
        "The table begins with the prompt instead of a corpus, because no corpus at hand suits every target: early "
        "drafts have fewer tokens. It is empty at the start of every run, so that a seeded run does not depend on "
        "earlier ones; the paper keeps it across requests (warm=True does).",
        "The weights move towards the target's distribution at every verified node (rate=0.2), as the paper says. The "
        "released code only raises the weights of written tri-grams (rate=0), and does so again in each round while "
        "they are among the last 16 tokens; here each position counts once.",
        "The defaults are 30 searches instead of 150 and 12 nodes instead of 24 token sequences, because both cost a "
        "small target more than they gain. "
        "search=best-first gives the tree that the search approaches with more searches: the nodes with the largest "
        "products of weights.",
        "Verification draws one token at each node, however many of the searched token sequences contain the node.",
    ),
    order=58,
    testing=Testing(short={"depth": 2}, real={"depth": 3}, no_perfect_reason="The method drafts without a model."),
    drafter=AdaptiveTrigram(),
    **copying(depth=4),
    claims=(
        Claim(
            "speed-up over plain decoding",
            "Vicuna 7B and 13B, LLaMA-2, MT-Bench and others, up to",
            2.5,
            2.5,
            "Liu et al. 2024, arXiv:2407.12021, abstract",
            lambda lab: lab.speed(),
            timed=True,
        ),
        Claim(
            "τ relative to τ without adaptation to the target's distribution (rate=0)",
            "Vicuna-7B and others",
            None,
            None,
            "Liu et al. 2024, arXiv:2407.12021 (direction: adaptation raises acceptance)",
            lambda lab: lab.tau_over("adaptive-trigram", {}, {"rate": 0.0}, 0.0),
            key="adaptation",
        ),
        Claim(
            "τ relative to best-first search in the same table, 12 nodes",
            "Vicuna-7B and others",
            None,
            None,
            "Liu et al. 2024, arXiv:2407.12021 (direction: exploration raises acceptance; from memory)",
            lambda lab: lab.tau_over("adaptive-trigram", {}, {"search": "best-first"}, 0.0),
            key="search",
            explanation=("2026-11-24 11:33 UTC", BEST_FIRST),
            explanation_by_column={"smollm2": ("2026-11-24 14:13 UTC", BEST_FIRST)},
        ),
    ),
    recording=Recording(("story", "chat")),
)

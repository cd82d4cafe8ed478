"""ADED: draft by a tree search in a tri-gram table that is updated while the target decodes."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SETTING, Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.adaptive_trigram.drafter import AdaptiveTrigram
from workbench.methods.common.presets import copying

BEST_FIRST = (
    f"{WRONG_SETTING}: on one tri-gram table, tree search converges to best-first search, so its τ is at most equal; "
    "the paper compares with other drafters."
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
    summary="A tri-gram table that is updated after every verification predicts the target better than a fixed table.",
    idea=(
        "A table holds one weight w per tri-gram. A weight grows each time the text gains its tri-gram, and moves by "
        "a step η towards the target's distribution p at every verified node. A tree search over the table tries "
        "continuations of the last two tokens; the nodes that it visits most often form the draft."
    ),
    formula=(
        "w(x | u, v) ← (1 − η) · w(x | u, v) + η · p(x | … u, v) at verified nodes; + 0.04 where the text gains u v x"
    ),
    differences=(
        "The table is filled from the prompt instead of a corpus, because no corpus at hand suits every target: "
        "early drafts have fewer tokens. Every run starts with a new table, so that a seeded run does not depend on "
        "earlier runs; the paper keeps the table across requests, as warm=True does.",
        "The weights move towards the target's distribution at every verified node (rate=0.2), as the paper says. "
        "The released code only raises the weights of tri-grams in the text (rate=0), and raises them again in every "
        "round while they are among the last 16 tokens; here each position of the text counts once.",
        "The defaults are 30 searches instead of 150 and 12 nodes instead of 24 token sequences, because on a small "
        "target more of them cost more time than they save. search=best-first gives the tree that the search "
        "approaches with more searches: the nodes with the largest products of weights.",
        "Verification samples one target token at each node, however many of the searched token sequences contain "
        "the node.",
    ),
    order=58,
    testing=Testing(short={"depth": 2}, real={"depth": 3}, no_perfect_reason="The method drafts without a model."),
    drafter=AdaptiveTrigram(),
    **copying(depth=4),
    claims=(
        Claim(
            "speed-up over plain decoding",
            "Vicuna 7B and 13B, LLaMA-2, MT-Bench and others; the paper's maximum",
            2.5,
            2.5,
            "Liu et al. 2024, arXiv:2407.12021, abstract",
            lambda lab: lab.speed(),
            timed=True,
        ),
        Claim(
            "τ relative to τ without updates towards the target's distribution (rate=0)",
            "Vicuna-7B and others",
            None,
            None,
            "Liu et al. 2024, arXiv:2407.12021 (direction: adaptation raises acceptance)",
            lambda lab: lab.tau_over("adaptive-trigram", {}, {"rate": 0.0}, 0.0),
            key="adaptation",
        ),
        Claim(
            "τ of Monte Carlo tree search relative to best-first search in the same tri-gram table, 12 nodes",
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

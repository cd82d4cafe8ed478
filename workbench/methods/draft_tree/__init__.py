"""Draft a tree of a draft model's likeliest continuations."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import tree_head
from workbench.methods.draft_tree.drafter import TopKTree
from workbench.methods.tree_builders.best_first import BestFirst

PAID = (
    f"{WRONG_SCALE}: the dynamic tree emits 1.09 times the tokens per pass, but its rounds take longer by that "
    "factor; with a 7B target, choosing nodes is almost free."
)

METHOD = Method(
    "draft-tree",
    title="Draft tree, top-k",
    promise=Promise.EXACT,
    source=Source(
        "EAGLE-2: faster inference of language models with dynamic draft trees",
        "Li et al.",
        2024,
        "https://arxiv.org/abs/2406.16858",
        "§4, with a separate draft model",
    ),
    summary="Verifying several candidates for one position costs little, and a second candidate can save a round.",
    idea=(
        "The draft model proposes its likeliest continuations at the nodes with the highest scores, and the best "
        "nodes of that tree are verified in one pass. The target draws its own token at each position and follows the "
        "branch that contains it, so a second candidate can save the round."
    ),
    formula="score(node) = product of q along its path; the nodes with the largest scores are verified",
    differences=(
        "The tree comes from a separate draft model instead of an EAGLE head, so that it works with any pair of "
        "models; every level costs a whole pass of that model.",
        "The default tree has 12 nodes, 3 children per node and 4 levels instead of the paper's 60, 10 and 6, because "
        "each node costs a small target relatively more time than a large one; τ may be lower.",
    ),
    order=20,
    testing=Testing(short={"depth": 2, "width": 3, "nodes": 8}, real={"depth": 3, "nodes": 6}, perfect={"nodes": 24}),
    drafter=TopKTree(),
    **tree_head(BestFirst(ranked=False), drafter=TopKTree),
    claims=(
        Claim(
            "speed-up over plain decoding",
            "EAGLE-2, a trained head, on Vicuna, LLaMA-2-chat and LLaMA-3-instruct; here a separate draft model",
            3.05, 4.26, "Li et al. 2024, arXiv:2406.16858, abstract", lambda lab: lab.speed(), timed=True,
        ),
        Claim(
            "speed relative to a static tree with the same drafter", "EAGLE-2 against EAGLE-1", 1.2, 1.4,
            "Li et al. 2024, arXiv:2406.16858, abstract",
            lambda lab: lab.speed_over({"nodes": 25, "depth": 5}, [{"grower": "template", "shape": "eagle-25"}]),
            key="over-static", timed=True, explanation=("2026-11-24 17:45 UTC", PAID),
            explanation_by_column={"smollm2": ("2026-11-26 16:55 UTC", PAID)},
        ),
    ),
    suites={
        "gpu": (Setting("Draft tree"),),
        "on-policy": (Setting("tree", {"depth": 4, "width": 3, "nodes": 16}),),
    },
    recording=Recording(params={"temperature": 0.7}),
)  # fmt: skip

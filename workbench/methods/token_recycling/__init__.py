"""Token recycling: draft tokens that the target found likely but did not choose earlier."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SETTING, Claim, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.token_recycling.drafter import TokenRecycling
from workbench.methods.tree_builders.template import Template
from workbench.methods.verifiers.lossless import Lossless

EMPTY = f"{WRONG_SETTING}: the table starts empty in every run of 64 tokens; the paper keeps it across requests."

METHOD = Method(
    "token-recycling",
    title="Token recycling",
    promise=Promise.EXACT,
    source=Source(
        "Turning trash into treasure: accelerating inference with token recycling",
        "Luo et al.",
        2024,
        "https://arxiv.org/abs/2408.08696",
        "§3",
    ),
    summary="Candidates rejected in one round are good drafts later: a table of 8 successors per token is enough.",
    idea=(
        "A table M holds, for every token x, the 8 tokens that the target last found likeliest after it; following "
        "the table from the newest token gives a tree, which is the draft. Every verified node writes the target's "
        "new ranking into the table, accepted or not, so that a candidate rejected in this round can be accepted "
        "later."
    ),
    formula="M[x] ← the 8 largest of p( · | … x ), at every verified node x",
    differences=(
        "The default tree has 16 nodes instead of the paper's 80, because each node costs a small target relatively "
        "more time, and its shape is the best one under assumed probabilities of the ranks. With nodes=80 its six "
        "levels have 8, 25, 27, 13, 6 and 1 nodes; those of the paper's tree have 8, 21, 25, 15, 8 and 3. τ may "
        "differ by a little at the same size.",
        "The table is empty at the start of every run, so that a seeded run does not depend on earlier ones; the "
        "paper keeps it across requests (warm=True does). So the first rounds accept fewer drafts.",
        "The logits of the prompt are not written into the table unless prompt=True, because the LM head would have "
        "to compute them at every prompt position.",
        "A token without stored successors has no drafts; a table that starts with zeros would propose token 0 eight "
        "times. So early trees are smaller, and no such token is verified.",
        "The released code decodes greedily; here sampled text is exact, too, by the verification rule for "
        "deterministic drafts.",
    ),
    order=50,
    testing=Testing(
        short={"depth": 2, "nodes": 8},
        real={"depth": 3, "nodes": 8, "warm": True},
        no_perfect_reason="The method drafts without a model.",
    ),
    drafter=TokenRecycling(),
    verifier=Lossless(),
    policies=(Fixed(depth=6), Planned(depth=6), Bandit(depth=6)),
    tree_builders=(Template(nodes=16),),
    claims=(
        Claim(
            "speed-up over plain decoding", "Vicuna 7B to 33B, Spec-Bench", 2.0, 2.0,
            "Luo et al. 2024, arXiv:2408.08696, abstract (“about 2×”)", lambda lab: lab.speed(), timed=True,
            explanation_by_column={"smollm2": ("2026-11-24 17:29 UTC", EMPTY)},
        ),
        Claim(
            "tokens per target pass (τ), tree of 80 nodes, table kept across prompts",
            "Vicuna-7B greedy, Spec-Bench", 2.73, 2.73, "Spec-Bench leaderboard",
            lambda lab: lab.tau(nodes=80, depth=6, warm=True, prompt=True), key="spec-bench",
        ),
    ),
)  # fmt: skip

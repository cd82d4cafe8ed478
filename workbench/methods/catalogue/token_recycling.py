"""Candidates that lost a round become drafts later."""

from __future__ import annotations

from workbench.engine.declared import WRONG_SETTING, Claim
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.token_recycling import TokenRecycling
from workbench.methods.growers.template import Template
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless

EMPTY = (
    f"{WRONG_SETTING}: the table starts empty in every run of 64 tokens, where the paper keeps it from"
    " one request to the next."
)

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
    teaches="Candidates that lost a round are good drafts later: a table of 8 successors a token is enough.",
    idea=(
        "A table holds, for every token, the 8 tokens that the target last found likeliest after it; following "
        "the table from the newest token gives a tree, which is the draft. Every verified node writes the "
        "target's new ranking into the table, accepted or not, so that what lost this round can win a later one."
    ),
    formula="M[x] ← the 8 largest of p( · | … x ), at every verified node x",
    differs=(
        "The default tree has 16 nodes instead of the paper's 80, because a small target pays more for each node, and "
        "its shape is the best one under assumed chances of the ranks: with nodes=80 its six levels hold 8, 25, 27, "
        "13, 6 and 1 nodes, the paper's 8, 21, 25, 15, 8 and 3. τ may differ by a little at the same size.",
        "The table starts empty in every run, where the paper keeps it from one request to the next (warm=True does), "
        "because a seeded run would else depend on those before it; the first rounds accept less.",
        "The logits of the prompt are not read into the table unless prompt=True: the LM head has to read each of its "
        "positions for them.",
        "A token without successors proposes nothing, where a table that starts with zeros proposes token 0 eight "
        "times: early trees are smaller and nothing is verified in vain.",
        "The released code decodes greedily; here sampling is exact, too, by the rule for chosen drafts.",
    ),
    place=50,
    drafter=TokenRecycling(),
    verifier=Lossless(),
    policies=(Fixed(depth=6), Planned(depth=6), Bandit(depth=6)),
    growers=(Template(nodes=16),),
    claims=(
        Claim(
            "speed-up over plain decoding", "Vicuna 7B to 33B, Spec-Bench", 2.0, 2.0,
            "Luo et al. 2024, arXiv:2408.08696, abstract (“about 2×”)", lambda lab: lab.speed(), timed=True,
            why_on={"smollm2": ("2026-11-24 17:29 UTC", EMPTY)},
        ),
        Claim(
            "tokens a target pass (τ), tree of 80 nodes, table kept from prompt to prompt",
            "Vicuna-7B greedy, Spec-Bench", 2.73, 2.73, "Spec-Bench leaderboard",
            lambda lab: lab.tau(nodes=80, depth=6, warm=True, prompt=True), key="spec-bench",
        ),
    ),
)  # fmt: skip

"""STAND: sample drafts from a table of the target's distributions after short contexts (n-grams)."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import tree_head
from workbench.methods.stand.drafter import Stand
from workbench.methods.tree_builders.data_driven import DataDriven

METHOD = Method(
    "stand",
    title="Stochastic n-grams (STAND)",
    promise=Promise.EXACT,
    source=Source(
        "Accelerated test-time scaling with model-free speculative sampling",
        "Song et al.",
        2025,
        "https://arxiv.org/abs/2506.04708",
        "§3",
    ),
    summary="A table of distributions, instead of tokens, gives drafts for sampled text as well as for greedy text.",
    idea=(
        "For contexts c of the last one to three tokens a table stores the mean q of the m target distributions p "
        "seen after them. A tree is sampled from these distributions without replacement, in a shape that depends on "
        "past acceptance, and verified like the draft of a model."
    ),
    formula=(
        "q(x | c) ← (m · q(x | c) + p(x)) / (m + 1); siblings = tokens with the largest log q + Gumbel noise, in this "
        "order"
    ),
    differences=(
        "The 8 likeliest tokens of each distribution are stored, because the engine provides that many for every "
        "pass; we do not know the paper's number. Other tokens are never drafted; the residual distribution includes "
        "them.",
        "The tree's shape follows the acceptance counts of this run, starting from assumed probabilities, whereas "
        "the paper measures a large tree on some thirty prompts beforehand. By default the tree has 12 nodes instead "
        "of 80, because each node costs a small target relatively more time.",
        "The table is empty at the start of every run, so that a seeded run does not depend on earlier ones; the "
        "paper's table serves all trajectories of one problem, as warm=True does for runs of one prompt. The table "
        "holds 16,384 contexts.",
        "Distributions at nodes after rejected drafts also go into the table (everywhere=True): verification "
        "computes them anyway, and a short text gives few other distributions.",
        "At temperature 0 the likeliest tokens are drafted, without noise.",
    ),
    order=56,
    testing=Testing(
        short={"depth": 2, "nodes": 3, "warm": True},
        real={"depth": 3, "nodes": 8, "warm": True},
        no_perfect_reason="The method drafts without a model.",
    ),
    drafter=Stand(),
    **tree_head(DataDriven(), depth=5, drafter=Stand),
    claims=(
        Claim(
            "τ relative to token recycling, temperature 1, drafts of 16 nodes, 8 trajectories of each problem",
            "reasoning models of 7B and 14B, one trajectory; throughput relative to other methods", 1.14, 1.28,
            "Song et al. 2025, arXiv:2506.04708, abstract (14 to 28 % more throughput than other methods)",
            lambda lab: lab.with_trajectories(8).tau_over(
                "token-recycling", {"depth": 5, "nodes": 16, "warm": True}, {"depth": 5, "nodes": 16, "warm": True}, 1.0
            ),
        ),
        Claim(
            "τ relative to trees of the likeliest tokens from the same table, temperature 1, 8 trajectories",
            "reasoning models of 7B and 14B", None, None,
            "Song et al. 2025, arXiv:2506.04708, §3 (direction: stochastic drafts are accepted more often)",
            lambda lab: lab.with_trajectories(8).tau_over(
                "stand", {"depth": 5, "warm": True}, {"depth": 5, "grower": "template", "warm": True}, 1.0
            ),
            key="stochastic",
        ),
    ),
    recording=Recording(("story", "chat"), params={"temperature": 0.8}),
)  # fmt: skip

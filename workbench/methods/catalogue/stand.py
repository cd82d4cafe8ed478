"""N-grams that know how likely each successor is, drawn from as from a draft model."""

from __future__ import annotations

from workbench.engine.declared import Claim, Recording
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.stand import Stand
from workbench.methods.growers.data_driven import DataDriven
from workbench.methods.growers.offered import offered
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.offered import for_growers

GROWERS = offered(DataDriven(), Stand)

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
    teaches="A table that keeps laws and not tokens drafts sampled text as well as greedy text.",
    idea=(
        "For the last one to three tokens a table keeps the mean of the laws that the target gave behind them. A tree "
        "is drawn from these laws without replacement, in a shape that what was kept before decides, and judged as "
        "the draft of a model would be."
    ),
    formula="q(x | c) ← (m · q(x | c) + p(x)) / (m + 1); siblings = the largest log q + Gumbel noise, falling",
    differs=(
        "The 8 likeliest tokens of each law are kept, as the engine has them of every pass; the paper's number is not "
        "known here. What they leave out is never drafted, and the residual has it.",
        "The tree is shaped by what this run keeps, beginning with assumed chances, where the paper measures a large "
        "tree on some thirty prompts beforehand; by default 12 nodes instead of 80, because a small target pays more "
        "for each node.",
        "The table is empty in every run, where the paper's serves all trajectories of one problem (warm=True does, "
        "for runs of one prompt), because a seeded run would else depend on those before it. It holds 16,384 contexts.",
        "Laws behind drafts that were rejected go into the table, too (everywhere=True): they were computed all the "
        "same, and a short text has few others.",
        "At temperature 0 the likeliest tokens are drafted, without noise.",
    ),
    place=56,
    drafter=Stand(),
    verifier=Lossless(),
    other_verifiers=for_growers(GROWERS),
    policies=(Fixed(depth=5), Planned(depth=5), Entropy(depth=5), Bandit(depth=5)),
    growers=GROWERS,
    claims=(
        Claim(
            "τ / τ of token recycling, temperature 1, drafts of 16 nodes, 8 trajectories of each problem",
            "reasoning models of 7B and 14B, one trajectory; throughput over other methods", 1.14, 1.28,
            "Song et al. 2025, arXiv:2506.04708, abstract (14 to 28 % more throughput than other methods)",
            lambda lab: lab.trajectories(8).tau_over(
                "token-recycling", {"depth": 5, "nodes": 16, "warm": True}, {"depth": 5, "nodes": 16, "warm": True}, 1.0
            ),
        ),
        Claim(
            "τ / τ of trees of the likeliest tokens from the same table, temperature 1, 8 trajectories",
            "reasoning models of 7B and 14B", None, None,
            "Song et al. 2025, arXiv:2506.04708, §3 (direction: stochastic drafts are kept more often)",
            lambda lab: lab.trajectories(8).tau_over(
                "stand", {"depth": 5, "warm": True}, {"depth": 5, "grower": "template", "warm": True}, 1.0
            ),
            key="stochastic",
        ),
    ),
    recording=Recording(("story", "chat"), params={"temperature": 0.8}),
)  # fmt: skip

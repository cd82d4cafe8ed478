"""A second, faster residual stream through the target's first layers drafts."""

from __future__ import annotations

from workbench.engine.declared import WRONG_SCALE, Claim, Head, Recording, Setting
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.m2r2 import M2R2, Accelerators
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless

METHOD = Method(
    "m2r2",
    title="M2R2 (accelerated residuals)",
    promise=Promise.EXACT,
    source=Source(
        "M2R2: mixture of multi-rate residuals for efficient transformer inference",
        "Bhendawade et al.",
        2025,
        "https://arxiv.org/abs/2502.02040",
    ),
    teaches="A stream that need not serve the layers above can be nearer to where they lead than the one that must.",
    idea=(
        "Beside the target's own residual stream a faster one goes through its first E layers, with low-rank adapters "
        "around attention and feed-forward, and looks at the first one's keys and values, so that it has no cache. "
        "Final norm and LM head read it behind layer E and draft; the other layers verify from the states that the "
        "slow stream left there."
    ),
    formula=(
        "r(0) = h(0),  r ← r + A′ attention( Q A r, K h, V h ),  r ← r + A‴ feed-forward( A″ r ),  A = 1 + B C of rank "
        "R;  q = softmax( LM head( norm( r(E) ) ) )"
    ),
    differs=(
        "No code was released, and how the adapters are wired is ours: four a layer, before and behind the attention "
        "and before and behind the feed-forward, each of rank R over the width of the stream. Of what the first one "
        "changes only the queries count, since nobody reads the fast stream's own keys and values.",
        "One exit, behind the layer that the adapters were trained for, and one interval from the embedding to there; "
        "as the paper is known to us, a fast stream begins anew in each of several intervals, and a learnt gate "
        "(ARLA) chooses among exits.",
        "The two streams are two passes one after the other, so that a drafted token costs 2 E layers.",
        "Where passes are compiled (bfloat16 on a CPU that multiplies it), verification reads the draft whole, as for "
        "early-exit.",
    ),
    place=112,
    drafter=M2R2(),
    verifier=Lossless(),
    policies=(
        *(Fixed(depth=3), Confidence(depth=3), Planned(depth=3), Entropy(depth=3)),
        *(Bandit(depth=3), OptimalOracle(depth=3)),
    ),
    claims=(
        Claim(
            "τ / τ of early exit behind the same layer, with the same lengths",
            "targets of several sizes, MT-Bench: above exits from the stream as it is",
            None, None, "Bhendawade et al. 2025, arXiv:2502.02040, abstract (direction; its 2.8× is of speed)",
            lambda lab: lab.tau_over(
                "early-exit", {}, {"exit_layer": lab.models.heads["m2r2"].config["net"]["exit_layer"]}, 0.0
            ),
            why=(
                "2026-11-27 10:49 UTC",
                f"{WRONG_SCALE}: 25 prompts; after 3 of 12 layers the target's token is named at 0.62 "
                "of places without adapters, 0.74 with.",
            ),
        ),
    ),
    head=Head(
        Accelerators,
        "M2R2's accelerator adapters (Bhendawade et al. 2025, arXiv 2502.02040), rank {rank}: with them a second "
        "residual stream goes through the target's first {exit_layer} layers, and its LM head reads that one.",
        settings={"loss": "ce_soft:1+cosine:0.1", "exit_layer": 3, "rank": 32, "matrix_rate": 0.006},
        options=("rank",),
    ),
    suites={"on-policy": (Setting("chain", {"policy": "fixed", "depth": 5}),)},
    recording=Recording(("chat", "story")),
)  # fmt: skip

"""M2R2: draft with a second, accelerated residual stream through the target's first layers."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import layer_skipping
from workbench.methods.m2r2.drafter import M2R2, Accelerators

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
    summary=(
        "A residual stream that only has to predict can be closer to the final state than one that also feeds later "
        "layers."
    ),
    idea=(
        "An accelerated residual stream r goes through the target's first E layers beside the target's own stream h, "
        "with low-rank adapters A around attention and MLP. It attends to the target's keys and values, so it needs "
        "no cache. The final norm and the LM head read it after layer E to draft; the other layers verify from the "
        "hidden states that the target's own stream has there."
    ),
    formula=(
        "r(0) = h(0),  r ← r + A′ attention( Q A r, K h, V h ),  r ← r + A‴ MLP( A″ r ),  A = 1 + B C of rank R;  q = "
        "softmax( LM head( norm( r(E) ) ) )"
    ),
    differences=(
        "No code was released, so we chose the wiring of the adapters: four per layer, before and after the attention "
        "and before and after the MLP, each of rank R over the width of the stream. The first adapter affects only the "
        "queries, since nothing reads the accelerated stream's own keys and values.",
        "Drafts come from one exit, after the layer that the adapters were trained for, and one interval of layers "
        "leads from the embedding to it. As far as we know, the paper restarts the accelerated stream in each of "
        "several intervals, and a learned gate (ARLA) chooses among exits.",
        "The two residual streams are computed in two passes one after the other, so that a drafted token costs 2 · "
        "E layers.",
        "Where passes are compiled (bfloat16 on a CPU with bfloat16 instructions), verification runs all layers over "
        "the draft, as in the method early-exit.",
    ),
    order=112,
    testing=Testing(short={"depth": 2}, no_perfect_reason=(
        "Drafts cannot always be right here, because the drafter stops before the target's last layer; "
        "test_m2r2.py tests the method instead."
    )),
    drafter=M2R2(),
    **layer_skipping(depth=3),
    claims=(
        Claim(
            "τ relative to early exit after the same layer, with the same draft lengths",
            "targets of several sizes, MT-Bench: τ above that of exits from the plain residual stream",
            None, None,
            "Bhendawade et al. 2025, arXiv:2502.02040, abstract (only the direction is compared; its 2.8× "
            "is a speed-up)",
            lambda lab: lab.tau_over(
                "early-exit", {}, {"exit_layer": lab.models.heads["m2r2"].config["net"]["exit_layer"]}, 0.0
            ),
            explanation=(
                "2026-11-27 10:49 UTC",
                f"{WRONG_SCALE}: 25 prompts; after 3 of 12 layers the target's token is predicted at 0.62 of "
                "positions without adapters and at 0.74 with them.",
            ),
        ),
    ),
    head=Head(
        Accelerators,
        "M2R2's accelerator adapters (Bhendawade et al. 2025, arXiv 2502.02040), rank {rank}: with them a second "
        "residual stream goes through the target's first {exit_layer} layers, and the LM head reads it.",
    ),
    suites={"on-policy": (Setting("chain", {"policy": "fixed", "depth": 5}),)},
    recording=Recording(("chat", "story")),
)  # fmt: skip

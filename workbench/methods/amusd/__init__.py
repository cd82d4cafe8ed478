"""AMUSD: the draft model drafts the next round while the target verifies the current one."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Testing
from workbench.decoders.method import Method, Source
from workbench.decoders.overlapped.decoder import DraftAhead
from workbench.methods.draft_model.drafter import DraftModel
from workbench.methods.policies.fixed import Fixed
from workbench.methods.verifiers.lossless import Lossless

METHOD = Method(
    "amusd",
    title="AMUSD",
    promise=Promise.EXACT,
    source=Source(
        "AMUSD: asynchronous multi-device speculative decoding for LLM acceleration",
        "McDanel",
        2024,
        "https://arxiv.org/abs/2410.17375",
        "§III",
    ),
    summary="The draft model drafts the next round on a second thread while the target verifies the current one.",
    idea=(
        "In the usual schedule one model waits for the other. Here the draft model continues after its own draft while "
        "the target verifies it. If the whole draft is accepted and the target's next token is the one that the draft "
        "model expected, the next round has its draft at once; otherwise that work is discarded, and the draft model "
        "starts again after the corrected token. The verification rule, and so the output, is unchanged."
    ),
    formula=(
        "while round n verifies d(1) … d(K), the draft model continues x(1) … x(t), d(1) … d(K + 1) for round n + 1"
    ),
    differences=(
        "Both models share one device and slow each other down; in the paper each has its own device. The trace "
        "shows the overlap, but a gain in speed needs a second device.",
        "The draft model drafts one round ahead and then waits; in the paper it continues to draft until a rejection.",
    ),
    order=15,
    testing=Testing(short={"depth": 2}, perfect={}),
    drafter=DraftModel(),
    verifier=Lossless(),
    policies=(Fixed(depth=3),),
    decoder_params=DraftAhead(),
    claims=(
        Claim(
            "speed-up over speculative decoding with the same models",
            "Llama-3.1-8B with Llama-3.2-1B, two GPUs",
            1.29,
            1.29,
            "McDanel 2024, arXiv:2410.17375, abstract (from memory)",
            lambda lab: lab.speed_over({"depth": 3}, [{"depth": 3}], other="draft-model"),
            timed=True,
            lacks="a separate device for each of the two models",
        ),
    ),
)

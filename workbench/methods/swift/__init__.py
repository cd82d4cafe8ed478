"""SWIFT: draft without some attention blocks and MLPs of the target, which are selected by a search while decoding."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.swift.drafter import Swift
from workbench.methods.verifiers.as_drafted import STILL_READ, AsDrafted
from workbench.methods.verifiers.lossless import Lossless

SEARCHING = (
    f"{WRONG_SCALE}: τ is {{}}, but a round takes as long as {{}} rounds of plain decoding (for {{}} drafts and the "
    "search). The search does not pay off within 64 tokens."
)

METHOD = Method(
    "swift",
    title="SWIFT (layers skipped on the fly)",
    promise=Promise.EXACT,
    source=Source(
        "SWIFT: on-the-fly self-speculative decoding for LLM inference acceleration",
        "Xia et al.",
        2024,
        "https://arxiv.org/abs/2410.06916",
        "§4",
    ),
    summary="The layers that a draft can skip depend on model and text, and can be found while decoding.",
    idea=(
        "The target drafts over its own KV cache with some of its attentions and MLPs skipped. Before each round one "
        "more set z of skipped attentions and MLPs is tried on tokens that were generated already; the set that "
        "predicts these tokens best is used for drafting, and the draft stops when its largest probability is below "
        "η."
    ),
    formula=(
        "matchness(z) = share of window positions t with argmax p_z( · | x(≤ t) ) = x(t + 1);  continue while max q ≥ "
        "η"
    ),
    differences=(
        "The window contains the newest tokens of the text. When as many further tokens have been generated, it moves "
        "on to them, and the best set of skipped layers is scored again. The released code keeps the first window of a "
        "request, and the scores of earlier requests, so that one lucky score can block better sets.",
        "The surrogate model chooses every 4th set of skipped layers by default, and at most 48 sets are tried per "
        "text. In the paper it chooses every 25th of up to 1,000 sets, which needs longer texts than those generated "
        "here.",
        "If the best of eight sets predicts less than half of the window, half as many attentions and MLPs are "
        "skipped from then on: a small model can spare fewer of them than the paper's models, for which the default "
        "ratio r was chosen.",
        "A draft stops before the token at which the confidence is too low; the paper still verifies that token. The "
        "test does not depend on a drawn token, so sampling stays exact.",
        "Drafts are chains; the released code also drafts siblings at each position of the chain, which is not built.",
        STILL_READ,
    ),
    order=74,
    testing=Testing(
        short={"policy": "fixed", "depth": 2, "ratio": 0.6, "window": 4},
        perfect={"ratio": 0.0, "policy": "fixed"},
    ),
    drafter=Swift(),
    verifier=Lossless(),
    other_verifiers=(AsDrafted(),),
    policies=(
        *(Confidence(depth=6, threshold=0.6), Fixed(depth=6), Planned(depth=6), Entropy(depth=6)),
        *(Bandit(depth=6), OptimalOracle(depth=6)),
    ),
    claims=(
        Claim(
            "speed-up over plain decoding", "LLaMA-2 and CodeLLaMA 13B to 70B; summaries, maths, stories, code",
            1.3, 1.6, "Xia et al. 2024, arXiv:2410.06916, abstract", lambda lab: lab.speed(), timed=True,
            explanation=("2026-11-24 17:51 UTC", SEARCHING.format(3.11, 4.4, 2.9)),
            explanation_by_column={"smollm2": ("2026-11-24 17:37 UTC", SEARCHING.format(1.73, 6.1, 1.5))},
        ),
        Claim(
            "τ with the skipped layers that the search found, relative to τ with as many layers skipped evenly",
            "LLaMA-2-13B, r = 0.45",
            None, None, "Xia et al. 2024, arXiv:2410.06916, §4.1 (only the direction is compared; from memory)",
            lambda lab: lab.tau_over("swift", {"policy": "fixed"}, {"policy": "fixed", "steps": 0}, 0.0),
            key="search",
        ),
    ),
    recording=Recording(),
)  # fmt: skip

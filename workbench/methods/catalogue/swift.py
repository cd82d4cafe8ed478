"""The target with some halves of its layers left out drafts, and which ones is found out on the way."""

from __future__ import annotations

from workbench.engine.declared import WRONG_SCALE, Claim, Recording
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.swift import Swift
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.as_drafted import STILL_READ, AsDrafted
from workbench.methods.verifiers.lossless import Lossless

SEARCHING = (
    f"{WRONG_SCALE}: τ is {{}}, but a round takes {{}} plain tokens, for {{}} drafts and the search; "
    "64 tokens end before that pays."
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
    teaches="Which layers a draft can do without depends on model and text, and can be found out while writing.",
    idea=(
        "The target drafts over its own cache with some of its attentions and feed-forwards left out. One more set of "
        "them is tried before each round on tokens already written; the set that foretells these best drafts, and the "
        "draft stops where it is unsure."
    ),
    formula="matchness(z) = share of window places t with argmax p_z( · | x(≤ t) ) = x(t + 1);  go on while max q ≥ η",
    differs=(
        "The window is the text's newest tokens when it is taken, and moves on once as many more are written; the best "
        "set is then scored again. The released code keeps the first window of a request, and scores of earlier "
        "requests, where a set that was lucky once bars the way of better ones.",
        "The surrogate chooses every 4th set by default, and at most 48 sets are tried for a text; the paper's every "
        "25th of up to 1,000 needs texts longer than those that are written here.",
        "Where the best of eight sets foretells less than half of the window, half as many halves are left out from "
        "then on: a small model can spare fewer of them than the paper's, from which r is taken.",
        "A draft stops before the token of which it is unsure, where the paper still verifies it: the test then looks "
        "at no drawn token, and is exact when sampling too.",
        "Chains only: the comb of siblings beside the chain that the released code drafts is not built.",
        STILL_READ,
    ),
    place=74,
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
            why=("2026-11-24 17:51 UTC", SEARCHING.format(3.11, 4.4, 2.9)),
            why_on={"smollm2": ("2026-11-24 17:37 UTC", SEARCHING.format(1.73, 6.1, 1.5))},
        ),
        Claim(
            "τ with the set that is found / with as many layers left out evenly", "LLaMA-2-13B, r = 0.45",
            None, None, "Xia et al. 2024, arXiv:2410.06916, §4.1 (direction, recalled)",
            lambda lab: lab.tau_over("swift", {"policy": "fixed"}, {"policy": "fixed", "steps": 0}, 0.0),
            key="search",
        ),
    ),
    recording=Recording(),
)  # fmt: skip

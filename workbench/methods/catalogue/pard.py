"""The drafter that writes all its tokens in one pass, at places that hold a mask."""

from __future__ import annotations

from workbench.engine.declared import WRONG_SCALE, Claim, Head, Recording, Setting
from workbench.engine.method import Method, Promise, Source
from workbench.methods.catalogue.eagle_2 import TRIMMED
from workbench.methods.drafters.pard import PARD, PARDNet
from workbench.methods.growers.chain import Chain
from workbench.methods.growers.offered import offered
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.offered import for_growers

GROWERS = offered(Chain())

TRAINED = 6
"""Tokens of a draft in training."""

SMALL = (
    f"{WRONG_SCALE}: a round takes 2.4 plain tokens and writes 2.2; on the papers' GPUs a pass over a "
    "few tokens costs about one token."
)
YOUNG = (
    f"{WRONG_SCALE}: after 19,200 answers it writes 2.2 tokens a round, the module that writes token after token 3.2."
)
UNREACHED = f"{WRONG_SCALE}: 80, 42, 19 and 61 % of its places are accepted, so few rounds reach the fourth."
WIDE = (
    f"{WRONG_SCALE}: without bfloat16 units a pass over 17 tokens takes 5.2 times one over one, and a "
    "tree of 16 writes 2.0 tokens."
)
METHOD = Method(
    "pard",
    title="PARD",
    promise=Promise.EXACT,
    source=Source(
        "PARD: accelerating LLM inference with low-cost parallel draft model adaptation",
        "An et al.",
        2025,
        "https://arxiv.org/abs/2504.18583",
        "§3",
    ),
    teaches="A drafter need not run once for each token: behind the text it reads masks, and each says a token.",
    idea=(
        "One pass of the drafter reads what was accepted and behind it a mask for each further token of the draft; the "
        "state at the newest pair says the first token, the state at each mask one more. A mask sees the text and the "
        "masks before it, but none of the drafted tokens, so a longer draft costs no further pass and is surer to fail."
    ),
    formula=(
        "h'(t+1), …, h'(t+k) = layer( …, M [ e(x(t+1)) ; h(t) ], M [ m ; h(t) ], …, M [ m ; h(t) ] ),  "
        "q(i) = softmax( LM head norm h'(t+i) )"
    ),
    differs=(
        "The paper adapts a small language model, which then serves a whole family of targets; here EAGLE's layer, "
        "which reads the target's features, learns from the beginning (SmolLM2's goes on from a finished layer), for "
        "one target, as PARD-2's drafter that is told of the target does.",
        "It learns from the target's laws on its own answers, where the paper has the text's next token, in minutes "
        "where the paper has epochs: τ is lower.",
        "What is dropped in training is drawn among the places that have a token to guess; the released code draws "
        "among all places of the text, and wraps around at its end.",
        "Beside the mask enters the last feature that is known, which tells a single layer more than a learned vector: "
        "the paper's drafter has many layers and no features.",
        "By default 5 tokens a draft and in training 6, where the released code has 12 and 8; τ may be lower, and the "
        "target reads fewer tokens in vain.",
        TRIMMED,
    ),
    place=108,
    drafter=PARD(),
    verifier=Lossless(),
    other_verifiers=for_growers(GROWERS),
    policies=(Fixed(depth=5), Planned(depth=5), Entropy(depth=5), Bandit(depth=5)),
    growers=GROWERS,
    claims=(
        Claim(
            "speed-up over plain decoding", "LLaMA3.1-8B in vLLM", 3.67, 3.67,
            "An et al. 2025, arXiv:2504.18583, abstract: up to 3.67×", lambda lab: lab.speed(), timed=True,
            why=("2026-11-27 11:09 UTC", SMALL), why_on={"smollm2": ("2026-11-27 15:21 UTC", WIDE)},
        ),
        Claim(
            "tokens per second / those of a drafter that writes one token after the other, multi-token prediction's",
            "PARD against the draft models that it is made of, average", 1.78, 1.78,
            "An et al. 2025, arXiv:2504.18583, §4 (recalled; README)",
            lambda lab: lab.speed_over({}, [{"grower": "chain", "depth": 5}], of="mtp"),
            key="beside-steps", needs=("mtp",), timed=True, why=("2026-11-27 11:11 UTC", YOUNG),
        ),
        Claim(
            "tokens drafted / passes of the drafter", "12 tokens a draft in one pass", 12.0, 12.0,
            "An et al. 2025, arXiv:2504.18583, §3.1; 12 by default in the released code",
            lambda lab: lab.drafted_a_pass(depth=12), key="one-pass",
            by_construction="the head writes all 12 tokens in one pass; texts that end sooner take the rest",
        ),
        Claim(
            "τ with 12 tokens a draft / τ with 6, as many as in training",
            "one mask for all places lets a draft be longer than any in training", None, None,
            "An et al. 2025, arXiv:2504.18583, §4 (recalled)",
            lambda lab: lab.tau_over("pard", {"depth": 12}, {"depth": TRAINED}, 0.0), key="longer",
            why=("2026-11-27 11:04 UTC", UNREACHED),
        ),
    ),
    head=Head(
        PARDNet,
        "A drafter in the manner of PARD (An et al. 2025, arXiv 2504.18583): EAGLE's layer and a mask, which say all "
        "tokens of a draft in one pass; embedding and output head are the target's.",
        settings={"loss": "ce_soft:1", "ahead": TRAINED},
        options=("ahead",),
    ),
    suites={
        "on-policy": (
            Setting("chain", {"depth": 5}),
            Setting("tree", {"grower": "eagle-2", "depth": 5, "width": 3, "nodes": 16}),
        )
    },
    recording=Recording(("chat", "story")),
)  # fmt: skip

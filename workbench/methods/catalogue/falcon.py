"""A layer whose places see each other in blocks, and guess a block at a time."""

from __future__ import annotations

from workbench.engine.declared import WRONG_SCALE, WRONG_SETTING, Claim, Head, Recording, Setting
from workbench.engine.method import Method, Promise, Source
from workbench.methods.catalogue.eagle_2 import NORMS, TRIMMED
from workbench.methods.drafters.falcon import Falcon, FalconNet
from workbench.methods.growers.best_first import BestFirst
from workbench.methods.growers.offered import offered
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.offered import for_growers

GROWERS = offered(BestFirst())

CHAIN = {"grower": "chain", "depth": 6}

METHOD = Method(
    "falcon",
    title="Falcon",
    promise=Promise.EXACT,
    source=Source(
        "Falcon: faster and parallel inference of large language models through enhanced semi-autoregressive drafting "
        "and custom-designed decoding tree",
        "Gao et al.",
        2024,
        "https://arxiv.org/abs/2412.12639",
        "§3",
    ),
    teaches="Half the passes of a drafter, if each writes two tokens; the second of them does not know the first.",
    idea=(
        "EAGLE's layer learns to guess the feature two places on instead of the next one, so the two newest places of "
        "a text, which see each other, guess the next two features in one forward, and these two the two behind them. "
        "It learns with a glance at the answers: the more it would guess wrong, the more of them are let in, at places "
        "drawn by chance and ever fewer, so that the other half of a block learns what goes with them."
    ),
    formula=(
        "f̂(t+1), …, f̂(t+k) = layer( g(t−k+1), …, g(t) ; all before ),  g(s) = W [ norm e(x(s+1)) ; norm f(s) ] "
        "+ R LSTM( block up to s ),  q(x(t+1+i)) = softmax( LM head f̂(t+i) )"
    ),
    differs=(
        "The LSTM is a third as wide as the target, where the paper's is as wide; so EAGLE's projection stays beside "
        "it, or all that a feature says would have to pass through 96 numbers.",
        "The LSTM runs over the places of a block and begins anew with each. In the released code its axes are taken "
        "for each other, so that it remembers nothing of the place before. It has no biases, and no dropout: in a "
        "short training few texts come twice.",
        "The distillation is a proper KL divergence at temperature 1; the released code weighs the logarithms of laws "
        "at temperature 0.95 by those at 1. Its hard label is drawn from the target's law, here it is the likeliest.",
        "A place that was shown its answer is not asked for it, as in the glancing for translation that this comes "
        "from (Qian et al. 2021, arXiv:2008.07905), and no more than λ of the blocks are shown one; the released code "
        "asks there, too, and at first shows one to nearly every block, in the first text of a batch alone.",
        NORMS,
        "By default EAGLE-2's tree at 12 nodes, 3 children and 6 levels, which follows the round's laws; the paper "
        "has a fixed and larger one for each length of a block (grower=template is such a one). A small target pays "
        "more for each node; τ may be lower.",
        "In bfloat16 EAGLE's levels are one compiled call each, and Falcon's blocks are not: a draft takes longer.",
        TRIMMED,
    ),
    place=104,
    drafter=Falcon(),
    verifier=Lossless(),
    other_verifiers=for_growers(GROWERS),
    policies=(Fixed(depth=6), Planned(depth=6), Entropy(depth=6), Bandit(depth=6)),
    growers=GROWERS,
    claims=(
        Claim(
            "speed-up over plain decoding", "Vicuna and LLaMA-2-chat, MT-Bench, HumanEval and GSM8K", 2.91, 3.51,
            "Gao et al. 2024, arXiv:2412.12639, abstract", lambda lab: lab.speed(), timed=True,
            why=(
                "2026-11-27 09:27 UTC",
                f"{WRONG_SCALE}: a round of 16 nodes takes 3.1 times as long as a plain token, and "
                "writes 2.5 tokens.",
            ),
        ),
        Claim(
            "τ / τ of EAGLE, chains of six tokens, by half as many forwards of the drafter",
            "Vicuna and LLaMA-2-chat: faster than EAGLE, with a fixed tree each", None, None,
            "Gao et al. 2024, arXiv:2412.12639, abstract (direction; no figure recalled)",
            lambda lab: lab.tau_over("eagle", CHAIN, CHAIN, 0.0), key="eagle",
            why=(
                "2026-11-27 23:07 UTC",
                f"{WRONG_SETTING}: after 19,200 answers each, Falcon names the target's token at 0.81 "
                "of held-out places, EAGLE at 0.85.",
            ),
        ),
        Claim(
            "tokens drafted / passes of the drafter, chains of six", "blocks of two tokens, one pass each", 2.0, 2.0,
            "Gao et al. 2024, arXiv:2412.12639, §3", lambda lab: lab.drafted_a_pass(**CHAIN),
            key="one-pass", by_construction="a pass of the head writes a block of two tokens",
        ),
    ),
    head=Head(
        FalconNet,
        "Falcon's layer (Gao et al. 2024, arXiv 2412.12639): places that see each other in blocks of {block}, an LSTM "
        "of {cond} numbers over each block, and one decoder layer guess as many features ahead in one forward.",
        settings={"loss": "smooth_l1:10+forward_kl:0.9+ce_hard:0.1", "block": 2, "cond": 0},
        options=("cond", "block", "glance"),
    ),
    suites={
        "on-policy": (
            Setting("chain", {"depth": 6, "width": 1, "nodes": 6}),
            Setting("tree", {"depth": 6, "width": 3, "nodes": 16}),
        )
    },
    recording=Recording(("chat", "story")),
)  # fmt: skip

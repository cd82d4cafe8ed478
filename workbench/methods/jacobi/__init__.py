"""Jacobi decoding: guess a block, and let the target correct all of it at once."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SETTING, Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import copying
from workbench.methods.jacobi.drafter import Jacobi
from workbench.methods.verifiers.lenient import Lenient

FREE = (
    f"{WRONG_SETTING}: the paper's gain is on translation; here τ is about 1.1, and a round with 6 guesses takes 1.2 "
    "times as long as a round of plain decoding."
)

METHOD = Method(
    "jacobi",
    title="Jacobi decoding",
    promise=Promise.EXACT,
    source=Source(
        "Accelerating transformer inference for translation via parallel decoding",
        "Santilli et al.",
        2023,
        "https://arxiv.org/abs/2305.10427",
        "§3.2",
    ),
    summary="Iteration computes a block of tokens at once, but one wrong guess makes the guesses after it wrong.",
    idea=(
        "The next K tokens are guessed, and one pass computes the target's token at each of their positions. Guesses "
        "are accepted up to the first one that differs from the target's token. From there on, the target's tokens "
        "are the guesses of the next round, until a round changes none of them."
    ),
    formula="y(i) ← argmax p( · | text, y(1) … y(i−1)), for all i at once; a fixed point is the greedy text",
    differences=(
        "Plain Jacobi decoding gains little, because a guess helps only if it is right although an earlier guess is "
        "wrong, and a model trained on correct text alone seldom predicts such tokens. The claim below measures the "
        "gain. CLLMs (Kou et al. 2024, arXiv:2403.00835) train the target to be consistent: to predict the right "
        "token from any state of the block. That changes the target and is not done here. Lookahead decoding stores "
        "the guesses that this method discards.",
        "The block moves with the text, whereas the paper solves one block after the other (GS-Jacobi): no round "
        "ends at a block's border.",
        "Positions without a guess start with random tokens of the text, drawn from the run's seed, whereas the "
        "paper starts with padding.",
        "The paper decodes greedily; at other temperatures the guesses are the likeliest tokens, and each is accepted "
        "with its probability.",
    ),
    order=63,
    testing=Testing(short={"depth": 2}, real={"depth": 4}, no_perfect_reason="The method drafts without a model."),
    drafter=Jacobi(),
    **copying(Lenient(), depth=6),
    claims=(
        Claim(
            "tokens per target pass (τ) of plain Jacobi decoding, blocks of 16 (almost no gain without consistency "
            "training)",
            "LLaMA-2 7B, speed-up over plain decoding",
            1.05,
            1.05,
            "Kou et al. 2024, CLLMs, arXiv:2403.00835, §1 (1.05× on average; from memory)",
            lambda lab: lab.tau(depth=16),
            key="consistency",
        ),
        Claim(
            "speed-up over plain decoding",
            "translation, MBart50 and MarianMT on CPU; the paper's maximum",
            1.38,
            1.38,
            "Santilli et al. 2023, arXiv:2305.10427, abstract",
            lambda lab: lab.speed(),
            timed=True,
            explanation=("2026-11-24 17:47 UTC", FREE),
            explanation_by_column={"smollm2": ("2026-11-24 17:31 UTC", FREE)},
        ),
    ),
    recording=Recording(("story", "chat"), params={"depth": 4}),
)

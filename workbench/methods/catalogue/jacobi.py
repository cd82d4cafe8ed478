"""Guess a block, and let the target correct all of it at once."""

from __future__ import annotations

from workbench.engine.declared import WRONG_SETTING, Claim, Recording
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.jacobi import Jacobi
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lenient import Lenient
from workbench.methods.verifiers.lossless import Lossless

FREE = (
    f"{WRONG_SETTING}: the paper's gain is of translation; here τ is 1.09 and 1.08, and a round with 6"
    " guesses takes 1.2 plain tokens."
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
    teaches="All tokens can be solved for at once, but a wrong token makes wrong guesses of all behind it.",
    idea=(
        "The next K tokens are guessed, and one pass says what the target would write at each of their places. What "
        "agrees from the front on is text; the rest is the next guess, until nothing changes any more."
    ),
    formula="y(i) ← argmax p( · | text, y(1) … y(i−1)), for all i at once; a fixed point is the greedy text",
    differs=(
        "Consistency: plain Jacobi gains little, because a guess is of use only if it comes out right behind a wrong "
        "one, and a model that was trained on right text alone seldom does that: the claim measures it. CLLMs (Kou et "
        "al. 2024, arXiv:2403.00835) train the target to be consistent, to say the right token from any state of the "
        "block; that makes another target, and is not done here. Lookahead decoding keeps what this one throws away.",
        "The block slides with the text, where the paper solves one block after the other (GS-Jacobi): no round ends "
        "at a block's border.",
        "Places of which nothing is known begin as tokens of the text, drawn by the run's numbers, where the paper "
        "begins with padding.",
        "The paper decodes greedily; at other temperatures the guesses are the likeliest tokens, kept with their "
        "probability.",
    ),
    place=63,
    drafter=Jacobi(),
    verifier=Lossless(),
    other_verifiers=(Lenient(),),
    policies=(Fixed(depth=6), Planned(depth=6), Bandit(depth=6)),
    claims=(
        Claim(
            "tokens a target pass (τ) of plain Jacobi, blocks of 16 (“consistency”: next to nothing is gained)",
            "LLaMA-2 7B, speed-up over plain decoding", 1.05, 1.05,
            "Kou et al. 2024, CLLMs, arXiv:2403.00835, §1 (1.05× on average; recalled)", lambda lab: lab.tau(depth=16),
            key="consistency",
        ),
        Claim(
            "speed-up over plain decoding", "translation, MBart50 and MarianMT on CPU, up to", 1.38, 1.38,
            "Santilli et al. 2023, arXiv:2305.10427, abstract", lambda lab: lab.speed(), timed=True,
            why=("2026-11-24 17:47 UTC", FREE), why_on={"smollm2": ("2026-11-24 17:31 UTC", FREE)},
        ),
    ),
    recording=Recording(("story", "chat"), params={"depth": 4}),
)  # fmt: skip

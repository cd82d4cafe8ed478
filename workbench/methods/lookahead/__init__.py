"""Lookahead decoding: collect n-grams from a window of guesses after the text, and draft with them."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import AT_LEAST_ONE, WRONG_SETTING, Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import copying
from workbench.methods.lookahead.drafter import Lookahead
from workbench.methods.verifiers.lenient import Lenient

PAPER = {"window": 15, "ngram": 5, "guesses": 15, "depth": 4, "policy": "fixed"}
"""Parameters of Lookahead decoding that Fu et al. use for models with 7 billion weights."""

NOT_FREE = (
    f"{WRONG_SETTING}: τ on chat is {{}}, but each pass also processes the window's tokens, which are almost free on "
    "the paper's A100; only 4 prompts."
)

METHOD = Method(
    "lookahead",
    title="Lookahead decoding",
    promise=Promise.EXACT,
    source=Source(
        "Break the sequential dependency of LLM inference using lookahead decoding",
        "Fu et al.",
        2024,
        "https://arxiv.org/abs/2402.02057",
        "§3",
    ),
    summary="The verifying pass can also produce drafts: its guesses at later positions are collected as n-grams.",
    idea=(
        "A window w beside the text contains guesses at the next tokens (row 0) and the target's predictions for them "
        "in earlier passes (rows 1, 2, …). Each pass reads the window along with the draft and adds one row to it, "
        "and each of its columns c yields an n-gram. The n-grams go into a pool, and those that begin with the newest "
        "token are the next draft."
    ),
    formula=(
        "w(r+1, c) = argmax p( · | text, w(0, 1 … c), w(1 … r, c)), with w(r, c) the token in row r, column c of the "
        "window; draft = continuations of the newest token among the n-grams w(0 … N−1, c)"
    ),
    differences=(
        "The defaults are window W=5, n-grams of N=3 and G=5 guesses. The paper's setting (window=15, ngram=5, "
        "guesses=15, and depth=4) adds 119 tokens to each pass, which is expensive for a small target.",
        "After a round of several tokens the window moves along with the text (follow=True); the released code moves "
        "it by one position per round, so that its guesses lag behind the text.",
        "N-grams that share a prefix are verified as branches of a tree and not as separate copies. After a fully "
        "accepted n-gram the round also emits the target's own next token, which the released code discards.",
        "An end-of-text token guessed in the window stays there, whereas the released code replaces it by a random "
        "token.",
        "Penalties and logits processors are not applied to the guesses in the window, but the verification of "
        "drafts applies them.",
    ),
    order=64,
    testing=Testing(
        short={"depth": 2, "from_text": True}, real={"depth": 2}, no_perfect_reason="The method drafts without a model."
    ),
    drafter=Lookahead(),
    **copying(Lenient(), depth=5),
    claims=(
        Claim(
            "tokens per target pass (τ) on code, W=15, N=5, G=15",
            "CodeLlama-7B, HumanEval, greedy",
            None,
            None,
            "Fu et al. 2024, arXiv:2402.02057, §5 (only the direction is compared: no number for step compression)",
            lambda lab: lab.on_groups("code").tau(**PAPER),
            by_construction=AT_LEAST_ONE,
        ),
        Claim(
            "speed-up over plain decoding",
            "LLaMA-2-chat 7B, MT-Bench, one A100; the paper's maximum",
            1.8,
            1.8,
            "Fu et al. 2024, arXiv:2402.02057, abstract",
            lambda lab: lab.on_groups("chat").speed(),
            key="speed",
            timed=True,
            explanation=("2026-11-24 17:47 UTC", NOT_FREE.format(1.77)),
            explanation_by_column={"smollm2": ("2026-11-24 17:32 UTC", NOT_FREE.format(1.52))},
        ),
    ),
    recording=Recording(("code", "story")),
)

"""A tri-gram table that follows the target while it writes, and a search in it."""

from __future__ import annotations

from workbench.engine.declared import WRONG_SETTING, Claim, Recording
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.trigram import AdaptiveTrigram
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless

BEST_FIRST = (
    f"{WRONG_SETTING}: in one table the search tends to best-first order (methods/test_trigram), so it"
    " can at best equal it; the paper has other drafters."
)

METHOD = Method(
    "adaptive-trigram",
    title="Adaptive tri-grams (ADED)",
    promise=Promise.EXACT,
    source=Source(
        "Adaptive draft-verification for efficient large language model decoding",
        "Liu et al.",
        2024,
        "https://arxiv.org/abs/2407.12021",
    ),
    teaches="A table that learns from each verification drafts more like the target than one that is only read.",
    idea=(
        "A table holds weights of tri-grams, which grow where one is written and go towards the target's law wherever "
        "that was asked. A tree search in the table tries sentences behind the newest two tokens, and those it went "
        "through most often are the draft."
    ),
    formula="w(x | u, v) ← (1 − η) · w + η · p(x | … u, v), and + 0.04 where u v x is written; draft = most visited",
    differs=(
        "The table begins with the prompt instead of a corpus, because none is at hand that suits every target: early "
        "drafts are fewer. It is empty in every run, where the paper keeps it (warm=True does), because a seeded run "
        "would else depend on those before it.",
        "The weights go towards the target's law at every verified node (rate=0.2), as the paper says; the released "
        "code only raises what was written (rate=0), and again in each round that still has it among the last 16 "
        "tokens, while here each place counts once.",
        "By default 30 searches instead of 150 and 12 nodes instead of 24 sentences, because both cost a small target "
        "more than they bring; the sentence's last token is searched like the others. search=best-first is what the "
        "search comes to: the tree of the largest products.",
        "Verification draws one token at each node, whatever sentences share it.",
    ),
    place=58,
    drafter=AdaptiveTrigram(),
    verifier=Lossless(),
    policies=(Fixed(depth=4), Planned(depth=4), Bandit(depth=4)),
    claims=(
        Claim(
            "speed-up over plain decoding", "Vicuna 7B and 13B, LLaMA-2, MT-Bench and others, up to", 2.5, 2.5,
            "Liu et al. 2024, arXiv:2407.12021, abstract", lambda lab: lab.speed(), timed=True,
        ),
        Claim(
            "τ / τ without adaptation to the target's law (rate=0)", "Vicuna-7B and others", None, None,
            "Liu et al. 2024, arXiv:2407.12021 (direction: adaptation raises acceptance)",
            lambda lab: lab.tau_over("adaptive-trigram", {}, {"rate": 0.0}, 0.0), key="adaptation",
        ),
        Claim(
            "τ / τ of best-first search in the same table, 12 nodes", "Vicuna-7B and others", None, None,
            "Liu et al. 2024, arXiv:2407.12021 (direction: exploring raises acceptance; recalled)",
            lambda lab: lab.tau_over("adaptive-trigram", {}, {"search": "best-first"}, 0.0), key="search",
            why=("2026-11-24 11:33 UTC", BEST_FIRST), why_on={"smollm2": ("2026-11-24 14:13 UTC", BEST_FIRST)},
        ),
    ),
    recording=Recording(("story", "chat")),
)  # fmt: skip

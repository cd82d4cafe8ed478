"""Hidden states of tokens to come, made half way up the pass that verifies."""

from __future__ import annotations

from workbench.engine.declared import Claim, Head, Recording, Setting
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.hidden_transfer import HiddenTransfer, Transfers
from workbench.methods.growers.dynamic_sparse import DynamicSparse
from workbench.methods.growers.offered import offered
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.offered import for_growers

GROWERS = offered(DynamicSparse())

METHOD = Method(
    "hidden-transfer",
    title="Hidden transfer",
    promise=Promise.EXACT,
    source=Source(
        "Parallel decoding via hidden transfer for lossless large language model acceleration",
        "Wu et al.",
        2024,
        "https://arxiv.org/abs/2404.12022",
        "§3",
    ),
    teaches="What a model thinks part of the way up says enough of the next tokens for its upper layers to guess them.",
    idea=(
        "Behind a middle layer trained matrices turn the hidden state of each drafted token into pseudo states of the "
        "tokens after it, which go on through the layers above beside the draft, and come out as guesses: the pass "
        "that verifies one draft makes the next one's. Unlike heads on the last state they see the text, and each "
        "other, before they are read."
    ),
    formula="guess at x(t + 1 + k): what layers l + 1 … L and the LM head make of  P(k) · h(t)  at place t + k",
    differs=(
        "All pseudo states enter behind one layer; the paper may let each step's enter behind its own.",
        "How many stand behind each node is planned with the tree, by what passes cost on this machine, as parallel "
        "prompt decoding's prompt tokens are; each is reckoned as a token of the whole pass, of which it goes through "
        "the upper part alone. No slower by what was measured.",
    ),
    place=92,
    drafter=HiddenTransfer(),
    verifier=Lossless(),
    other_verifiers=for_growers(GROWERS),
    policies=(Fixed(depth=3), Planned(depth=3)),
    growers=GROWERS,
    claims=(
        Claim(
            "τ / τ of Medusa with a tree of as many nodes (12)", "Vicuna and LLaMA-2-chat: more tokens a pass than "
            "Medusa", None, None, "Wu et al. 2024, arXiv:2404.12022, abstract (direction)",
            lambda lab: lab.tau_over(
                "medusa", {"grower": "template", "nodes": 12, "depth": 3}, {"nodes": 12, "depth": 3}, 0.0
            ),
        ),
    ),
    suites={
        "on-policy": (
            Setting("chain", {"grower": "template", "nodes": 3, "depth": 3}),
            Setting("tree", {"grower": "template", "nodes": 16, "depth": 3}),
        )
    },
    head=Head(
        Transfers,
        "{transfers} matrices (Wu et al. 2024, arXiv 2404.12022) that make, of the target's state behind layer "
        "{transfer_layer}, states of the tokens to come; the layers above and its LM head turn them into guesses.",
        settings={"loss": "ce_soft:1"},
        options=("transfers",),
    ),
    recording=Recording(("chat", "story")),
)  # fmt: skip

"""One decoder layer on the target's features, and a tree of a fixed shape."""

from __future__ import annotations

from workbench.engine.declared import Claim, Recording
from workbench.engine.method import Method, Promise, Source
from workbench.methods.catalogue.eagle_2 import HEAD, LOSSES, NORMS, TRIMMED
from workbench.methods.drafters.eagle import Eagle
from workbench.methods.growers.offered import offered
from workbench.methods.growers.template import Template
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.offered import for_growers

GROWERS = offered(Template())

METHOD = Method(
    "eagle",
    title="EAGLE",
    promise=Promise.EXACT,
    source=Source(
        "EAGLE: speculative sampling requires rethinking feature uncertainty",
        "Li et al.",
        2024,
        "https://arxiv.org/abs/2401.15077",
        "§4",
    ),
    teaches="A feature does not say which word was drawn from it; with the word beside it the next feature is easy.",
    idea=(
        "The target's last hidden state at each position, fused with the embedding of the token that follows, goes "
        "through one decoder layer, which guesses the next hidden state; the target's own LM head turns that into "
        "tokens, and the guess is read in turn. Which ranks of its guesses make the tree was decided beforehand."
    ),
    formula="f̂(t+1) = layer( W [ norm e(x(t+1)) ; norm f(t) ], … ),  q = softmax( LM head f̂(t+1) )",
    differs=(
        NORMS,
        LOSSES,
        "Siblings are the likeliest tokens, followed where the target draws one of them, where the paper draws them "
        "one after the other and corrects the law after each: as exact, and the tree is the same in every round.",
        "By default the likeliest tree of 12 nodes in 5 levels instead of the paper's 25, because a small target pays "
        "more for each node (shape=eagle-25 is the published one); τ may be lower.",
        TRIMMED,
    ),
    place=95,
    drafter=Eagle(),
    verifier=Lossless(),
    other_verifiers=for_growers(GROWERS),
    policies=(Fixed(depth=5), Planned(depth=5), Entropy(depth=5), Bandit(depth=5)),
    growers=GROWERS,
    claims=(
        Claim(
            "speed-up over plain decoding", "LLaMA-2-chat-70B, MT-Bench", 2.7, 3.5,
            "Li et al. 2024, arXiv:2401.15077, abstract", lambda lab: lab.speed(), timed=True,
        ),
    ),
    head=HEAD,
    recording=Recording(("chat", "story")),
)  # fmt: skip

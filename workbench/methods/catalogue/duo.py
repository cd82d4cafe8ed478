"""The target with small feed-forwards drafts for the target with its big ones."""

from __future__ import annotations

from workbench.engine.declared import Claim
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.duo import Duo
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.as_drafted import STILL_READ, AsDrafted
from workbench.methods.verifiers.lossless import Lossless

METHOD = Method(
    "duo",
    title="Duo-LLM (small feed-forwards)",
    promise=Promise.EXACT,
    source=Source(
        "Duo-LLM: a framework for studying adaptive computation in large language models",
        "Alizadeh et al.",
        2024,
        "https://arxiv.org/abs/2410.10846",
        "§3",
    ),
    teaches="Most of a feed-forward is idle at most tokens: the part that a prompt wakes can draft for all of it.",
    idea=(
        "Every layer has a small feed-forward beside its big one, and one attention for both. The path through all "
        "small ones drafts over the target's own cache; the path through all big ones, which is the target, verifies."
    ),
    formula="small = the k columns j of the big one with the largest mean |a(j)| · ‖w(j)‖ over the end of the prompt",
    differs=(
        "The paper trains both feed-forwards together, with random routes among small, big and none, so that any route "
        "works. No such target is bundled: the small one is cut out of the big one, by what the prompt asks of it, and "
        "its weights were never meant to work alone.",
        "Of the routes two are there: all small, and with big=n the n layers big that would lose most. Trained "
        "routers, and the oracle that looks for the best route of each token, are not built.",
        STILL_READ,
        "In int8, and with big > 0, drafts run on passes that are not compiled.",
    ),
    place=75,
    drafter=Duo(),
    verifier=Lossless(),
    other_verifiers=(AsDrafted(),),
    policies=(
        *(Fixed(depth=3), Confidence(depth=3), Planned(depth=3), Entropy(depth=3)),
        *(Bandit(depth=3), OptimalOracle(depth=3)),
    ),
    claims=(
        Claim(
            "loss of a token by its best route with one big layer / with all big", "models trained with random routes: "
            "one big layer, well placed, is better than all", None, None,
            "Alizadeh et al. 2024, arXiv:2410.10846, abstract (direction)", None,
            lacks="a target whose small and big feed-forwards were trained together, and the search for the best route "
            "of each token",
        ),
    ),
)  # fmt: skip

"""Medusa's heads, and tokens that are kept when they are plausible."""

from __future__ import annotations

from workbench.engine.declared import Claim, Recording
from workbench.engine.method import Method, Promise, Source
from workbench.methods.catalogue.medusa import DIFFERS, HEAD, PAPER
from workbench.methods.drafters.medusa import Medusa
from workbench.methods.growers.template import Template
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.answers import ANSWERED
from workbench.methods.verifiers.typical import TypicalAcceptance

STRICTEST_FIRST: tuple[dict[str, float], ...] = ({"epsilon": 0.5, "delta": 0.7}, {"epsilon": 0.3, "delta": 0.55}, {})
METHOD = Method(
    "medusa-typical",
    title="Medusa, typical acceptance",
    promise=Promise.APPROXIMATE,
    source=Source(PAPER.title, PAPER.authors, PAPER.year, PAPER.url, "§2.3.1"),
    teaches="Asking for plausible instead of exact buys acceptance, and pays in distribution.",
    idea=(
        "Heads and tree are Medusa's, but a token is kept when the target finds it plausible enough, judged "
        "against the target's own entropy. The output is no longer the target's distribution: ε and δ say how "
        "far it may go."
    ),
    formula="accept x if p(x) > min( ε, δ · exp(−H(p)) )",
    differs=DIFFERS,
    place=90,
    drafter=Medusa(),
    verifier=TypicalAcceptance(),
    policies=(Fixed(), Planned(), Bandit()),
    growers=(Template(),),
    claims=(
        Claim(
            "τ / τ of exact sampling with the same heads where answers are kept, temperature 0.8",
            "Vicuna, temperature 0.7 and above", None, None,
            "Cai et al. 2024, arXiv:2401.10774, §2.3.1 (no single figure)",
            lambda lab: lab.on(*ANSWERED).at_matched_accuracy(STRICTEST_FIRST, {}, 0.8, "medusa"),
            matched=True,
        ),
    ),
    head=HEAD,
    recording=Recording(params={"temperature": 0.8}),
)  # fmt: skip

"""Medusa with typical acceptance: accept tokens whose target probability exceeds an entropy-dependent threshold."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.medusa import DIFFERS, HEAD, PAPER
from workbench.methods.medusa.drafter import Medusa
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.tree_builders.template import Template
from workbench.methods.verifiers.answers import ANSWERED
from workbench.methods.verifiers.typical import TypicalAcceptance

STRICTEST_FIRST: tuple[dict[str, float], ...] = ({"epsilon": 0.5, "delta": 0.7}, {"epsilon": 0.3, "delta": 0.55}, {})
METHOD = Method(
    "medusa-typical",
    title="Medusa, typical acceptance",
    promise=Promise.APPROXIMATE,
    source=Source(PAPER.title, PAPER.authors, PAPER.year, PAPER.url, "§2.3.1"),
    summary="Accepting plausible tokens instead of exact sampling raises acceptance and changes the distribution.",
    idea=(
        "Heads and tree are Medusa's, but a token is accepted if its target probability exceeds a threshold that "
        "depends on the entropy H of the target's distribution p. The output no longer follows the target's "
        "distribution: ε and δ set how far it may deviate."
    ),
    formula="accept x if p(x) > min( ε, δ · exp(−H(p)) )",
    differences=DIFFERS,
    order=90,
    testing=Testing(real={"depth": 3, "nodes": 6}, perfect={"nodes": 48}),
    drafter=Medusa(),
    verifier=TypicalAcceptance(),
    policies=(Fixed(), Planned(), Bandit()),
    tree_builders=(Template(),),
    claims=(
        Claim(
            "τ relative to exact sampling with the same heads at equal accuracy of answers, temperature 0.8",
            "Vicuna, temperature 0.7 and above", None, None,
            "Cai et al. 2024, arXiv:2401.10774, §2.3.1 (no single number)",
            lambda lab: lab.on_groups(*ANSWERED).at_matched_accuracy(STRICTEST_FIRST, {}, 0.8, "medusa"),
            matched=True,
        ),
    ),
    head=HEAD,
    recording=Recording(params={"temperature": 0.8}),
)  # fmt: skip

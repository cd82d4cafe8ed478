"""Oracle: drafts that are accepted with a probability set by the user."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.oracle.drafter import Oracle
from workbench.methods.policies.fixed import Fixed
from workbench.methods.verifiers.lossless import Lossless

METHOD = Method(
    "oracle",
    title="Oracle with a set acceptance rate",
    promise=Promise.SIMULATION,
    source=Source(
        "Fast inference from transformers via speculative decoding",
        "Leviathan et al.",
        2023,
        "https://arxiv.org/abs/2211.17192",
        "§3.1, equation 1: the closed form that the oracle reproduces",
    ),
    summary=(
        "Set the acceptance rate a; with K drafted tokens per round, τ is (1 − aᴷ⁺¹)/(1 − a). The target itself "
        "drafts, so this method is never faster than plain decoding."
    ),
    idea=(
        "The drafter samples from the target's own distribution mixed with its least likely token, so that every "
        "draft is accepted with the probability that is set, whatever came before. It runs the target to draft, so it "
        "is a simulation and no practical method: it shows the effect of the acceptance rate alone on τ."
    ),
    formula="q = a · p + (1 − a) · (least likely token);  τ = (1 − aᴷ⁺¹) / (1 − a)",
    differences=(
        "The paper has no such method. The oracle simulates the paper's assumption that every draft is accepted with "
        "the same probability: its τ equals the closed form, up to the probability of the target's least likely "
        "token.",
    ),
    order=140,
    testing=Testing(short={"depth": 2, "acceptance": 0.6}, perfect={"acceptance": 1.0}),
    drafter=Oracle(),
    verifier=Lossless(),
    policies=(Fixed(),),
    claims=(
        Claim(
            "τ relative to (1 − a⁵)/(1 − a) with acceptance rate a = 0.8 and drafts of 4 tokens", "a closed form",
            1.0, 1.0,
            "Leviathan et al. 2023, arXiv:2211.17192, equation 1",
            lambda lab: lab.tau_over_closed_form(acceptance=0.8, depth=4), tolerance=0.05,
            by_construction="the simulation accepts each draft with the probability that the formula assumes",
        ),
    ),
    recording=Recording(params={"acceptance": 0.8}),
)  # fmt: skip

"""A draft model's tree, with the branches that a store of text adds to it."""

from __future__ import annotations

from workbench.engine.declared import Claim, Recording
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.rasd import Rasd
from workbench.methods.growers.best_first import BestFirst
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless

METHOD = Method(
    "rasd",
    title="Draft tree with retrieval (RASD)",
    promise=Promise.EXACT,
    source=Source(
        "RASD: retrieval-augmented speculative decoding",
        "Quan et al.",
        2025,
        "https://arxiv.org/abs/2503.03434",
        "§3",
    ),
    teaches="A model guesses what is new, a store remembers what is known: one tree can hold both guesses.",
    idea=(
        "The draft model grows a tree, and the newest tokens are looked up in a store of text. Of what was found, the "
        "branches that the model finds unlikely are pruned; the others are grafted onto its tree where their paths "
        "part, and go deeper than it."
    ),
    formula="T = T_model and the paths x of T_store with x₁ among the top m of q(· | text), by longest common prefix",
    differs=(
        "The tree grows from a separate draft model instead of an EAGLE head.",
        "A branch is pruned by the rank of its first token, m = 8; what the paper prunes by could not be read again.",
        "By default 12 nodes of the model and 8 of the store, because a small target pays for each node.",
        "The bundled store is this project's own texts; `workbench datastore build` makes one of yours.",
    ),
    place=66,
    drafter=Rasd(),
    verifier=Lossless(),
    policies=(Fixed(depth=10), Planned(depth=10), Bandit(depth=10)),
    growers=(BestFirst(ranked=False),),
    claims=(
        Claim(
            "τ / τ of the draft model's tree alone", "DocQA, summary, code and in-domain questions, EAGLE-2 and a "
            "store: the best of its time, without a figure in the abstract", None, None,
            "Quan et al. 2025, arXiv:2503.03434, abstract (recalled)",
            lambda lab: lab.tau_over("rasd", {}, {"retrieved": 0}, 0.0),
            lacks="the paper's stores; measured with the bundled one",
        ),
        Claim(
            "τ / τ of the store alone", "DocQA, summary, code and in-domain questions: better than retrieval alone",
            None, None, "Quan et al. 2025, arXiv:2503.03434, abstract (direction, recalled)",
            lambda lab: lab.tau_over("rest", {}, {}, 0.0), key="retrieval",
            lacks="the paper's stores; measured with the bundled one",
        ),
    ),
    recording=Recording(("story", "chat", "code")),
)  # fmt: skip

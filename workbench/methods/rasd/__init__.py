"""RASD: merge a draft model's tree with branches retrieved from a datastore."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.rasd.drafter import Rasd
from workbench.methods.tree_builders.best_first import BestFirst
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
    summary="A model drafts new text, and a datastore drafts known text: one tree can contain both drafts.",
    idea=(
        "The draft model builds a tree, and the newest tokens are looked up in a datastore of text. Retrieved "
        "branches that are unlikely for the model are pruned; all other branches are merged into the model's tree "
        "where the paths diverge, and may be deeper than this tree."
    ),
    formula=(
        "T = T_model and the paths x of T_store with x₁ among the top m of q(· | text), merged by longest common "
        "prefix"
    ),
    differences=(
        "The tree comes from a separate draft model instead of an EAGLE head.",
        "A retrieved branch is pruned unless its first token is among the draft model's eight likeliest; we could not "
        "confirm that this is the paper's rule.",
        "The default tree has 12 nodes from the model and 8 from the datastore, because each node costs a small "
        "target time.",
        "The bundled datastore consists of this project's own texts; `workbench datastore build` makes a datastore "
        "from your own files.",
    ),
    order=66,
    testing=Testing(
        short={"depth": 2, "levels": 1, "nodes": 3, "width": 3, "top": 2, "retrieved": 4},
        real={"depth": 4, "nodes": 6, "retrieved": 4},
        perfect={"nodes": 24},
    ),
    drafter=Rasd(),
    verifier=Lossless(),
    policies=(Fixed(depth=10), Planned(depth=10), Bandit(depth=10)),
    tree_builders=(BestFirst(ranked=False),),
    claims=(
        Claim(
            "τ relative to the draft model's tree alone",
            "DocQA, summarisation, code and in-domain questions: the paper calls RASD (EAGLE-2 with a datastore) the "
            "best method of its time; its abstract gives no number", None, None,
            "Quan et al. 2025, arXiv:2503.03434, abstract (from memory)",
            lambda lab: lab.tau_over("rasd", {}, {"retrieved": 0}, 0.0),
            lacks="the paper's datastores; measured with the bundled datastore",
        ),
        Claim(
            "τ relative to drafts from the datastore alone",
            "DocQA, summarisation, code and in-domain questions: better than retrieval alone",
            None, None, "Quan et al. 2025, arXiv:2503.03434, abstract (only the direction is compared; from memory)",
            lambda lab: lab.tau_over("rest", {}, {}, 0.0), key="retrieval",
            lacks="the paper's datastores; measured with the bundled datastore",
        ),
    ),
    recording=Recording(("story", "chat", "code")),
)  # fmt: skip

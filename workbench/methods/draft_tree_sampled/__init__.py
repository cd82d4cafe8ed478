"""RSD-S: draft a tree of continuations sampled from a draft model without replacement."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SETTING, Claim, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import tree_head
from workbench.methods.draft_tree.drafter import SampledTree
from workbench.methods.tree_builders.stochastic_beam import StochasticBeam
from workbench.methods.verifiers.judge import Judge
from workbench.methods.verifiers.lenient import Lenient
from workbench.methods.verifiers.nearest import Nearest
from workbench.methods.verifiers.reflective import Reflective
from workbench.methods.verifiers.typical import TypicalAcceptance

METHOD = Method(
    "draft-tree-sampled",
    title="Draft tree, sampled (RSD-S)",
    promise=Promise.EXACT,
    source=Source("Recursive speculative decoding", "Jeon et al.", 2024, "https://arxiv.org/abs/2402.14160", "RSD-S"),
    summary=(
        "Siblings drawn without replacement never repeat a token; recursive rejection keeps the distribution exact."
    ),
    idea=(
        "Siblings are drawn from the draft model without replacement, so no two of them have the same token. A "
        "stochastic beam search chooses the nodes of each level. Siblings are tested one after the other, each "
        "against the residual distribution pᵢ that its earlier siblings left; qᵢ is the drafter's distribution "
        "without their tokens."
    ),
    formula="accept sibling i with probability min(1, pᵢ(x) / qᵢ(x)); else pᵢ₊₁ ∝ (pᵢ − qᵢ)₊, qᵢ₊₁ ∝ qᵢ without x",
    differences=(
        "At temperature 0 only the likeliest token of each distribution remains, so the tree is a chain: greedy text "
        "is exact, and siblings, which could save a round, are not tried.",
        "The default tree is RSD-S, the paper's stochastic beam; grower=rsd-c is the paper's tree of constant "
        "branching.",
    ),
    order=30,
    testing=Testing(short={"depth": 2, "width": 3}, real={"depth": 3, "width": 2}, perfect={}),
    drafter=SampledTree(),
    **tree_head(
        StochasticBeam(), TypicalAcceptance(), Lenient(), Nearest(), Reflective(), Judge(), drafter=SampledTree
    ),
    claims=(
        Claim(
            "τ relative to a chain with the same number of verified tokens (12)",
            "LLaMA-2 7B to 70B with a 115M drafter, and OPT",
            None,
            None,
            "Jeon et al. 2024, arXiv:2402.14160, claim “best at fixed budget” (from memory; no single number)",
            lambda lab: lab.tau_over("draft-model", {"depth": 4, "width": 3}, {"depth": 12}, temperature=1.0),
            explanation=(
                "2026-11-28 13:50 UTC",
                f"{WRONG_SETTING}: the paper claims a gain “in most cases”; here one tree (4 levels, 3 nodes each) is "
                "compared with a chain that is three times as deep.",
            ),
            explanation_by_column={
                "smollm2": (
                    "2026-11-24 12:27 UTC",
                    f"{WRONG_SETTING}: only one tree (4 levels, 3 nodes each) is compared with a chain; with two "
                    "draws for each of 14 prompts the interval is ±12 %.",
                ),
            },
        ),
        Claim(
            "τ relative to a chain with the same draft length (4)",
            "LLaMA-2 7B to 70B with a 115M drafter, and OPT",
            None,
            None,
            "Jeon et al. 2024, arXiv:2402.14160, claim “best at fixed length” (from memory; no single number)",
            lambda lab: lab.tau_over("draft-model", {"depth": 4, "width": 3}, {"depth": 4}, temperature=1.0),
            key="length",
        ),
    ),
    suites={"gpu": (Setting("Sampled tree"),)},
    recording=Recording(params={"temperature": 0.8}),
)

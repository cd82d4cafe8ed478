"""Hydra: Medusa's heads, each of which also reads the tokens drafted before the one it predicts."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Head, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import CHAIN_AND_TREE, claim_over_medusa, tree_head
from workbench.methods.hydra.drafter import Hydra, HydraHeads
from workbench.methods.tree_builders.template import Template
from workbench.methods.verifiers.typical import TypicalAcceptance

METHOD = Method(
    "hydra",
    title="Hydra",
    promise=Promise.EXACT,
    source=Source(
        "Hydra: sequentially-dependent draft heads for Medusa decoding",
        "Ankner et al.",
        2024,
        "https://arxiv.org/abs/2402.05109",
        "§3",
    ),
    summary="A head that reads the tokens drafted before its own position predicts better than one that does not.",
    idea=(
        "Like Medusa's heads, these read the target's last hidden state h, and head k predicts the k-th token after "
        "the newest one. But each also reads the projected embeddings u of the tokens between: the newest token, "
        "which the hidden state does not contain yet, and the path drafted so far. So each node of the tree gets its "
        "own predictions. A, B and W are learned matrices, b is a bias."
    ),
    formula="head k: softmax( LM head( h + A(k) u + SiLU(W(k) h + B(k) u + b(k)) ) ),  u = e(x(t+1)), …, e(x(t+k))",
    differences=(
        "All heads share the target's LM head, embeddings enter through one shared low-rank projection, and the "
        "hidden state is passed on as it is. In the paper, the first block of head k is (k+1)·D wide, and each head "
        "has its own LM head; together they would be more than half as large as the bundled target. Heads may be "
        "less accurate.",
        "Of the paper's changes to Medusa, only the heads' conditioning on drafted tokens is built, and the heads "
        "are trained on the target's distributions. The deeper heads and the prefix attention of Hydra++ are a "
        "separate method (hydra-plus-plus).",
        "The default tree has 12 nodes in 4 levels instead of 63 nodes, because each node costs a small target "
        "relatively more time; τ may be lower.",
    ),
    order=85,
    testing=Testing(no_perfect_reason=(
        "A head whose drafts are always right cannot be built here, because the drafter also reads tokens of the "
        "draft path; test_drafts.py tests the method instead."
    )),
    drafter=Hydra(),
    **tree_head(Template(), TypicalAcceptance()),
    claims=(
        claim_over_medusa(
            "Vicuna 7B to 33B, MT-Bench, greedy",
            "Ankner et al. 2024, arXiv:2402.05109, §5 (only the direction is compared)", key="main",
        ),
    ),
    suites=CHAIN_AND_TREE,
    head=Head(
        HydraHeads,
        "{blocks} Hydra heads (Ankner et al. 2024, arXiv 2402.05109) on the target's last hidden state. Each head "
        "also reads the embeddings of the tokens after this state, projected to {cond} dimensions.",
    ),
    recording=Recording(("chat", "story")),
)  # fmt: skip

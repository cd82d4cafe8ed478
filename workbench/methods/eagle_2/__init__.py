"""EAGLE-2: draft with one decoder layer on the target's features, in a tree that branches by confidence."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.differences import LOSSES, NORMS, TRIMMED
from workbench.methods.common.presets import tree_head
from workbench.methods.eagle import HEAD
from workbench.methods.eagle.drafter import Eagle
from workbench.methods.tree_builders.best_first import BestFirst

METHOD = Method(
    "eagle-2",
    title="EAGLE-2",
    promise=Promise.EXACT,
    source=Source(
        "EAGLE-2: faster inference of language models with dynamic draft trees",
        "Li et al.",
        2024,
        "https://arxiv.org/abs/2406.16858",
        "§4",
    ),
    summary=(
        "The target's next hidden state is easier to predict than its next token; the tree follows confident "
        "predictions."
    ),
    idea=(
        "The target's last hidden state f(t) at each position is fused by a projection W with the embedding e of the "
        "next token. One decoder layer predicts the next hidden state f̂(t+1) from it; the target's own LM head "
        "computes the distribution q from this prediction. The tree is expanded below its nodes with the highest "
        "scores, and the best of all nodes are verified."
    ),
    formula=(
        "f̂(t+1) = layer( W [ norm e(x(t+1)) ; norm f(t) ], … ),  q = softmax( LM head f̂(t+1) ),  score of a node = "
        "Π q along its path"
    ),
    differences=(
        NORMS,
        LOSSES,
        "The default tree has 12 nodes, 3 children per node and 5 levels instead of the paper's 60, 10 and 6, because "
        "each node costs a small target relatively more time; τ may be lower.",
        TRIMMED,
    ),
    order=100,
    testing=Testing(short={"depth": 2, "width": 2, "nodes": 6}, real={"depth": 3, "width": 2, "nodes": 6}, perfect={}),
    drafter=Eagle(),
    **tree_head(BestFirst(), depth=5),
    claims=(
        Claim(
            "speed-up over plain decoding", "Vicuna, LLaMA-2-chat and LLaMA-3-instruct, six tasks", 3.05, 4.26,
            "Li et al. 2024, arXiv:2406.16858, abstract", lambda lab: lab.speed(), timed=True,
        ),
        Claim(
            "τ relative to EAGLE's fixed tree of the same size", "Vicuna-13B, MT-Bench, greedy: τ 4.83 against 3.98",
            1.21, 1.21, "Li et al. 2024, arXiv:2406.16858, table 1 (from memory)",
            lambda lab: lab.tau_over("eagle", {}, {}, 0.0), key="tree",
        ),
    ),
    head=HEAD,
    suites={
        "on-policy": (
            Setting("chain", {"depth": 5, "width": 1, "nodes": 5}),
            Setting("tree", {"depth": 5, "width": 3, "nodes": 16}),
        )
    },
    recording=Recording(("chat", "story")),
)  # fmt: skip

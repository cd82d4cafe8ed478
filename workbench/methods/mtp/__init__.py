"""Multi-token prediction: draft with a module that predicts one token further ahead than the target."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.differences import TRIMMED
from workbench.methods.common.presets import slow_rounds, tree_head
from workbench.methods.mtp.drafter import MTP, MTPNet
from workbench.methods.tree_builders.best_first import BestFirst

METHOD = Method(
    "mtp",
    title="Multi-token prediction",
    promise=Promise.EXACT,
    source=Source(
        "DeepSeek-V3 technical report",
        "DeepSeek-AI",
        2024,
        "https://arxiv.org/abs/2412.19437",
        "§2.2",
    ),
    summary=(
        "A model that was trained to predict two tokens has a built-in drafter: a layer like EAGLE's, without a "
        "feature loss."
    ),
    idea=(
        "The target's last hidden state h and the embedding e of the next token are each normalised, fused by one "
        "projection M and passed through one transformer layer. From its output h', the target's own LM head "
        "predicts one more token. For later tokens, the module reads its own hidden state with the token that it "
        "drafted."
    ),
    formula=(
        "h'(t+1) = layer( M [ norm e(x(t+1)) ; norm h(t) ], … ),  q = softmax( LM head norm h'(t+1) ),  "
        "then h(t+1) = h'(t+1)"
    ),
    differences=(
        "The paper trains its module together with the target, in pretraining on 14.8 trillion tokens of text; here "
        "the target is already trained, and the module is trained in minutes on the target's distributions at its own "
        "answers: τ is lower.",
        "One module serves all depths, as engines use the released module; the paper's formula has one module per "
        "depth. So it is trained on drafts of three tokens, unrolled over its own hidden states (ttt=1 trains it as "
        "the released module was trained).",
        "The module is a dense layer with the target's attention instead of DeepSeek's mixture of experts with "
        "latent attention, because no target of that architecture is available here.",
        "The default tree is EAGLE-2's with 12 nodes, 3 children per node and 5 levels; the paper drafts one token "
        "(grower=chain, depth=1). τ is higher here, and so is the cost of a draft.",
        TRIMMED,
    ),
    order=107,
    testing=Testing(perfect={}),
    drafter=MTP(),
    **tree_head(BestFirst(), depth=5),
    claims=(
        Claim(
            "tokens per second relative to plain decoding, one token drafted",
            "DeepSeek-V3, one module, one token", 1.8,
            1.8, "DeepSeek-AI 2024, arXiv:2412.19437, §5.4.3 (from memory)",
            lambda lab: lab.speed(grower="chain", depth=1), timed=True,
            explanation=("2026-11-26 17:03 UTC", slow_rounds(1.9)),
        ),
        Claim(
            "τ with one token drafted",
            "DeepSeek-V3: the second token is accepted in 85 to 90 % of cases, over many topics", 1.85,
            1.9, "DeepSeek-AI 2024, arXiv:2412.19437, §5.4.3 (from memory)",
            lambda lab: lab.tau(grower="chain", depth=1), key="second-token",
        ),
    ),
    head=Head(
        MTPNet,
        "The module of multi-token prediction (DeepSeek-AI 2024, DeepSeek-V3, arXiv 2412.19437): norms of hidden "
        "state and embedding, one projection, one layer; embedding and LM head are the target's.",
    ),
    suites={
        "on-policy": (
            Setting("chain", {"depth": 5, "width": 1, "nodes": 5}),
            Setting("tree", {"depth": 5, "width": 3, "nodes": 16}),
        )
    },
    recording=Recording(("chat", "story")),
)  # fmt: skip

"""Hidden transfer: predict hidden states of future tokens in the middle of the verifying pass."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Head, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import tree_head
from workbench.methods.hidden_transfer.drafter import HiddenTransfer, Transfers
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.tree_builders.dynamic_sparse import DynamicSparse

METHOD = Method(
    "hidden-transfer",
    title="Hidden transfer",
    promise=Promise.EXACT,
    source=Source(
        "Parallel decoding via hidden transfer for lossless large language model acceleration",
        "Wu et al.",
        2024,
        "https://arxiv.org/abs/2404.12022",
        "§3",
    ),
    summary=(
        "Hidden states of a middle layer contain enough about the next tokens for the upper layers to predict them."
    ),
    idea=(
        "After a middle layer l of L, trained matrices P(k) turn the hidden state h of each drafted token into pseudo "
        "states of the tokens after it. These go through the layers above together with the draft and come out as "
        "predictions, so the pass that verifies one draft also computes the next one. Unlike heads on the last hidden "
        "state, pseudo states attend to the text and to each other."
    ),
    formula="prediction of x(t + 1 + k): LM head( layers l + 1 … L( P(k) · h(t) ) ), at position t + k",
    differences=(
        "All pseudo states enter after one layer; the paper may use a different layer for each step.",
        "The number of pseudo states after each node is planned together with the tree, by the measured cost of "
        "passes on this machine, as for parallel prompt decoding's prompt tokens. Each pseudo state counts as a "
        "token of a whole pass, although it goes through the upper layers only. In our measurements a more exact "
        "count was no faster.",
    ),
    order=92,
    testing=Testing(no_perfect_reason=(
        "A head whose drafts are always right cannot be built here, because the drafter also reads tokens or "
        "embeddings of the draft path; test_hidden_transfer.py tests the method instead."
    )),
    drafter=HiddenTransfer(),
    **tree_head(DynamicSparse(), depth=3, policies=(Fixed, Planned)),
    claims=(
        Claim(
            "τ relative to Medusa with a tree of the same size (12 nodes)",
            "Vicuna and LLaMA-2-chat: more tokens per pass than Medusa",
            None, None, "Wu et al. 2024, arXiv:2404.12022, abstract (only the direction is compared)",
            lambda lab: lab.tau_over(
                "medusa", {"grower": "template", "nodes": 12, "depth": 3}, {"nodes": 12, "depth": 3}, 0.0
            ),
        ),
    ),
    suites={
        "on-policy": (
            Setting("chain", {"grower": "template", "nodes": 3, "depth": 3}),
            Setting("tree", {"grower": "template", "nodes": 16, "depth": 3}),
        )
    },
    head=Head(
        Transfers,
        "{transfers} matrices (Wu et al. 2024, arXiv 2404.12022) that turn the target's hidden state after layer "
        "{transfer_layer} into states of the next tokens; the layers above and the LM head turn these into "
        "predictions.",
    ),
    recording=Recording(("chat", "story")),
)  # fmt: skip

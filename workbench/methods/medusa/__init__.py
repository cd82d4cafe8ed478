"""Medusa: several heads on the target's last hidden state, and a fixed tree of their predictions."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, Claim, Head, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import CHAIN_AND_TREE, tree_head
from workbench.methods.medusa.drafter import Medusa, MedusaHeads
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.tree_builders.template import Template
from workbench.methods.verifiers.typical import TypicalAcceptance

DIFFERS = (
    "All heads share the target's LM head after a residual block of their own, whereas the paper gives each head its "
    "own LM head: four of them would be more than a third as large as the bundled target. Heads may be less accurate.",
    "The heads' losses are summed without the paper's weights 0.8ᵏ, as in the released trainer, so that later heads "
    "count more in training.",
    "The default tree has 12 nodes in 4 levels instead of about 60 nodes, because each node costs a small target "
    "relatively more time; τ may be lower. Medusa-2, which also trains the target, is not built.",
)

PAPER = Source(
    "Medusa: simple LLM inference acceleration framework with multiple decoding heads",
    "Cai et al.",
    2024,
    "https://arxiv.org/abs/2401.10774",
    "§2.1",
)

HEAD = Head(
    MedusaHeads,
    "Medusa's heads (Cai et al. 2024, arXiv 2401.10774) on the target's last hidden state.",
    agreement="the first head's likeliest token is the second token after this position in the text",
)

WIDE = (
    f"{WRONG_SCALE}: τ 1.77 with 12 nodes, and on two CPU cores a round takes 1.8 times as long as one of plain "
    "decoding; on the paper's GPU it takes about as long."
)

METHOD = Method(
    "medusa",
    title="Medusa",
    promise=Promise.EXACT,
    source=PAPER,
    summary=(
        "Heads predict several positions at once from one hidden state. This costs almost nothing, but the predictions "
        "do not depend on each other."
    ),
    idea=(
        "Extra heads with weights W and b read the target's last hidden state h once, and head k predicts the k-th "
        "token after the newest one, independently of the other heads. A fixed tree combines their best candidates, "
        "shaped by how often each head was right on held-out text, and one pass of the target verifies it."
    ),
    formula="head k: softmax( LM head( h + SiLU(W(k) h + b(k)) ) )",
    differences=DIFFERS,
    order=80,
    testing=Testing(short={"depth": 2, "nodes": 8}, real={"depth": 3, "nodes": 6}, perfect={"nodes": 48}),
    drafter=Medusa(),
    **tree_head(Template(), TypicalAcceptance(), policies=(Fixed, Planned, Bandit)),
    claims=(
        Claim(
            "speed-up over plain decoding", "Medusa-1 on Vicuna 7B to 33B", 2.2, 3.6,
            "Cai et al. 2024, arXiv:2401.10774, abstract (over 2.2; README: 2.2 to 3.6; from memory)",
            lambda lab: lab.speed(), timed=True, explanation_by_column={"smollm2": ("2026-11-26 16:56 UTC", WIDE)},
        ),
    ),
    suites=CHAIN_AND_TREE,
    head=HEAD,
)  # fmt: skip

"""EAGLE: draft with one decoder layer on the target's features, in a tree of fixed shape."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Head, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.differences import LOSSES, NORMS, TRIMMED
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.common.presets import tree_head
from workbench.methods.eagle.drafter import Eagle
from workbench.methods.tree_builders.template import Template

HEAD = Head(
    FeatureNet,
    "EAGLE's layer (Li et al. 2024, arXiv 2401.15077), with norms on its inputs and its output; used by EAGLE and "
    "EAGLE-2.",
)

METHOD = Method(
    "eagle",
    title="EAGLE",
    promise=Promise.EXACT,
    source=Source(
        "EAGLE: speculative sampling requires rethinking feature uncertainty",
        "Li et al.",
        2024,
        "https://arxiv.org/abs/2401.15077",
        "§4",
    ),
    summary=(
        "The target's next hidden state is easy to predict if the drafter also reads the token sampled from the last "
        "one."
    ),
    idea=(
        "The target's last hidden state f(t) at each position is fused by a projection W with the embedding e of the "
        "next token. One decoder layer predicts the next hidden state f̂(t+1) from it; the target's own LM head "
        "computes the distribution q from the prediction, which is also the layer's next input. The tree's shape is "
        "fixed beforehand by the ranks of the candidates."
    ),
    formula="f̂(t+1) = layer( W [ norm e(x(t+1)) ; norm f(t) ], … ),  q = softmax( LM head f̂(t+1) )",
    differences=(
        NORMS,
        LOSSES,
        "Siblings are the likeliest tokens, and a branch is followed if the target draws its token. The paper draws "
        "siblings one after the other and corrects the distribution after each. Both rules are exact; here the tree "
        "has the same shape in every round.",
        "The default is the likeliest tree of 12 nodes in 5 levels; the paper's tree has 25 nodes (shape=eagle-25). "
        "With a small target each further node adds relatively more time. τ may be lower than with the paper's tree.",
        TRIMMED,
    ),
    order=95,
    testing=Testing(perfect={}),
    drafter=Eagle(),
    **tree_head(Template(), depth=5),
    claims=(
        Claim(
            "speed-up over plain decoding", "LLaMA-2-chat-70B, MT-Bench", 2.7, 3.5,
            "Li et al. 2024, arXiv:2401.15077, abstract", lambda lab: lab.speed(), timed=True,
        ),
    ),
    head=HEAD,
    recording=Recording(("chat", "story")),
)  # fmt: skip

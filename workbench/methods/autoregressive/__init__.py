"""Plain decoding, one token per forward pass of the target: the baseline of every other method."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.empty_drafter import EmptyDrafter
from workbench.methods.policies.no_draft import NoDraft
from workbench.methods.verifiers.lossless import Lossless

METHOD = Method(
    "autoregressive",
    title="Autoregressive",
    promise=Promise.EXACT,
    source=Source(
        "Plain decoding, the baseline", "—", 0, "https://huggingface.co/docs/transformers/generation_strategies"
    ),
    summary="One target pass per token: the baseline that every other method is compared with.",
    idea=(
        "The target reads the text so far and draws one token, then reads that token and draws the next. Every token "
        "costs one whole pass of the target; in a large model most of that time goes into reading its weights."
    ),
    formula="x(t+1) ~ p( · | x(1) … x(t) ),  τ = 1",
    order=0,
    testing=Testing(no_perfect_reason="The method drafts without a model."),
    drafter=EmptyDrafter(),
    verifier=Lossless(),
    policies=(NoDraft(),),
    claims=(
        Claim(
            "tokens per target pass (τ)", "any model: by definition", 1.0, 1.0, "definition of plain decoding",
            lambda lab: lab.on_groups("stories", "chat").tau(), tolerance=0.0,
            by_construction="plain decoding emits one token per pass",
        ),
    ),
)  # fmt: skip

"""Methods that do not draft: they have a decoder of their own."""

from __future__ import annotations

from typing import Any

from workbench.core.promise import Promise
from workbench.decoders.declarations import Testing
from workbench.decoders.decoder_params import DecoderParams
from workbench.decoders.method import Method, Source
from workbench.methods.common.empty_drafter import EmptyDrafter
from workbench.methods.policies.no_draft import NoDraft
from workbench.methods.verifiers.lossless import Lossless


def undrafted(
    name: str, title: str, promise: Promise, source: Source, summary: str, decoder_params: DecoderParams, **fields: Any
) -> Method:
    """Return a method whose decoder does not draft and verify.

    Args:
        name: registry name.
        title: display name.
        promise: guarantee about the output.
        source: paper.
        summary: one sentence for learners.
        decoder_params: the decoder's parameters.
        fields: further fields of `Method`.
    """
    fields.setdefault("testing", Testing(no_perfect_reason="The method does not draft."))
    return Method(
        name, title, promise, source, summary, EmptyDrafter(), Lossless(), (NoDraft(),), decoder_params=decoder_params,
        **fields,
    )  # fmt: skip

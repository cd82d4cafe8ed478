"""Declaration of methods that do not draft and verify, but have their own decoder, such as beam search."""

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
    """Return the declaration of a method whose decoder does not draft and verify, such as beam search.

    Args:
        name: registry name.
        title: display name.
        promise: guarantee about the output.
        source: paper that describes the method.
        summary: one sentence on what the method demonstrates.
        decoder_params: the decoder's parameters.
        fields: further fields of `Method`.
    """
    fields.setdefault("testing", Testing(no_perfect_reason="The method does not draft."))
    return Method(
        name, title, promise, source, summary, EmptyDrafter(), Lossless(), (NoDraft(),), decoder_params=decoder_params,
        **fields,
    )  # fmt: skip

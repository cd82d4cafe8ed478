"""Decoders, which generate text in rounds, and decoding methods, which combine a drafter, a verifier and a decoder.

A method is a decoder with a chosen drafter, tree builder, verifier and policy (`method.py`). The decoder in
`draft_verify` drafts and verifies. A method that does not draft and verify in this way has another decoder
(`decoder_params.py`). Public names are imported at first use, so that `declarations.py` can be read without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.startup import import_name

if TYPE_CHECKING:
    from workbench.core.promise import Promise
    from workbench.decoders.method import ConfiguredMethod, Method, Source

__all__ = ["ConfiguredMethod", "Method", "Promise", "Source"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'workbench.decoders' has no attribute {name!r}")
    return import_name("core.promise" if name == "Promise" else "decoders.method", name)

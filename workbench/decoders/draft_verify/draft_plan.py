"""Former path of `Plan`, for drafters and policies that are older than its move to `parts.py`."""

from workbench.decoders.draft_verify.parts import Plan

__all__ = ["Plan"]

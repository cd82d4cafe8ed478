"""Former path of `Plan`, for drafters and policies that were written before `Plan` moved to `parts.py`."""

from workbench.decoders.draft_verify.parts import Plan

__all__ = ["Plan"]

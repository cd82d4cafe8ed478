"""Former path of the data that parts receive, for parts that were written before it moved to `parts.py`."""

from workbench.decoders.draft_verify.parts import EarlyExitStates, RoundFeedback, TentativeDecision, Verification

__all__ = ["EarlyExitStates", "RoundFeedback", "TentativeDecision", "Verification"]

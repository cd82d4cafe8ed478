"""Former path of `RoundFeedback` and other data, for drafters and policies older than their move to `parts.py`."""

from workbench.decoders.draft_verify.parts import EarlyExitStates, RoundFeedback, TentativeDecision, Verification

__all__ = ["EarlyExitStates", "RoundFeedback", "TentativeDecision", "Verification"]

"""Former path of `RoundFeedback` and other data, for parts that were written before these moved to `parts.py`."""

from workbench.decoders.draft_verify.parts import EarlyExitStates, RoundFeedback, TentativeDecision, Verification

__all__ = ["EarlyExitStates", "RoundFeedback", "TentativeDecision", "Verification"]

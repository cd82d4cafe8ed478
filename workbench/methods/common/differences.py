"""Sentences with which several methods declare the same difference from their papers."""

from __future__ import annotations

TRIMMED = (
    "Heads for a large vocabulary propose only the 8,192 tokens that their target emits most; the target can still "
    "emit all other tokens."
)

LOSSES = (
    "The two training losses have equal weights, where the paper has 1 for features and 0.1 for distributions: after "
    "a short training the drafts agree with the target more often this way."
)

NORMS = (
    "The feature and the embedding are each normalised before they are fused, the layer normalises its input once "
    "more, and its output goes through a norm that is initialised as the target's final norm: EAGLE has none of "
    "these norms. They keep a short training stable; predictions may differ from the paper's for this reason, too, and "
    "not only because of the shorter training."
)

"""Sentences with which several methods declare the same difference from their papers."""

from __future__ import annotations

TRIMMED = (
    "Heads for a large vocabulary propose only the 8,192 tokens that their target emits most; the target can still "
    "emit all other tokens."
)

LOSSES = (
    "The two training losses have equal weights; the paper's weights are 1 for features and 0.1 for distributions. "
    "With equal weights the drafts agree with the target more often after a short training."
)

NORMS = (
    "Three norms are added that EAGLE does not have: on feature and embedding before they are fused, on the layer's "
    "input, and on its output (initialised as the target's final norm). They keep a short training stable. "
    "Predictions may differ from the paper's because of these norms, and because of the shorter training."
)

"""Preparation of a drafter for a sequence, and the depth that its context still allows."""

from __future__ import annotations

from typing import Any

from workbench.core.errors import ContextError
from workbench.decoders.draft_verify.parts import Drafter
from workbench.engine.request import Sequence
from workbench.models.loading import Models


def init_drafter_state(sequence: Sequence, drafter: Drafter, models: Models) -> Any:
    """Return the drafter's state for the committed tokens; None if they exceed its context."""
    sequence.state.no_draft_reason = ""
    try:
        return drafter.init_state(sequence, models)
    except ContextError:
        sequence.state.no_draft_reason = _too_short(models)
        return None


def levels_left(sequence: Sequence) -> int:
    """Return how many levels the sequence's drafter can still draft. Report once if its context is full."""
    depth = None if sequence.state.no_draft_reason else sequence.drafter.max_levels(sequence)
    if depth is not None and depth < 1:
        sequence.state.no_draft_reason = _too_short(sequence.models)
    if sequence.state.no_draft_reason:
        if not sequence.has_warning(sequence.state.no_draft_reason):
            sequence.add_warning(sequence.state.no_draft_reason)
        return 0
    return sequence.remaining if depth is None else depth


def _too_short(models: Models) -> str:
    assert models.draft_model is not None
    return (
        f"{models.draft_model_name} has {models.draft_model.context} positions, and the text has filled them: "
        "nothing more "
        "is drafted, and every round is plain decoding. Choose a draft model with a longer context, or a "
        "method without one."
    )

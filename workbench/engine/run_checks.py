"""Warnings about a run that works but looks wrong, such as a very low acceptance rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.trace import metrics
from workbench.trace.nodes import REJECTED

if TYPE_CHECKING:
    from workbench.engine.request import Sequence
    from workbench.models.loading import Models
    from workbench.trace.events import Round

WINDOW = 50
"""Number of recent rounds of a run that are checked for a low acceptance rate."""
TOO_LOW = 0.02
"""Acceptance rate below which a run gets a warning that its drafter is useless."""


def warnings_for(sequence: Sequence, last: Round, models: Models) -> list[str]:
    """Return warnings about a run that works but looks wrong, such as a very low acceptance rate.

    Each warning is returned only once.

    Args:
        sequence: sequence of the run; its trace has the rounds before `last`.
        last: the newest round.
        models: models of the sequence.
    """
    if sequence.configured_method.name == "autoregressive" or not sequence.configured_method.is_speculative:
        return []
    messages = []
    if _is_copy(sequence, models) and sequence.sampling.greedy and REJECTED in last.nodes.status:
        messages.append(
            "The draft model is a copy of the target, yet a token was rejected: either rounding differs between "
            "forward passes over one token and over several, or the drafter has a bug."
        )
    n_rounds = len(sequence.trace.rounds) + 1
    if n_rounds < WINDOW or n_rounds % 10:
        return messages
    window = [*sequence.trace.rounds[-WINDOW + 1 :], last]
    if any(r.method != last.method for r in window):
        return messages
    if metrics.count_drafted(window) == 0:
        messages.append(
            f"Speculation is inactive: {last.method} proposed nothing in the last {WINDOW} rounds, so each was "
            f"plain decoding."
        )
    elif (metrics.acceptance_rate(window) or 0.0) < TOO_LOW:
        messages.append(
            f"Almost nothing is accepted: {metrics.count_accepted(window)} of {metrics.count_tested(window)} "
            "tested tokens in "
            f"{WINDOW} rounds. Check that this drafter was made for this target and this kind of text."
        )
    return messages


def _is_copy(sequence: Sequence, models: Models) -> bool:
    return (
        models.drafter is not None and models.drafter_name == models.target_name and "drafter" in sequence.drafter.needs
    )

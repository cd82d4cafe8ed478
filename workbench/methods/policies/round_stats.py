"""Token counts and times of a run's rounds, for policies that adapt to measured time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.engine.request import Sequence


@dataclass(frozen=True, slots=True)
class RoundStats:
    """Token counts and times of one round.

    Attributes:
        planned: planned draft length, limited to the number of tokens that the text could still have.
        nodes: number of drafted tokens; 0 if nothing was planned, or if the drafter had no draft.
        n_accepted: number of accepted draft tokens.
        tokens: number of emitted tokens.
        seconds: wall time of the round; 0 until it is known.
        drafting_s: part of the wall time spent on drafting.
    """

    planned: int
    nodes: int
    n_accepted: int
    tokens: int
    seconds: float = 0.0
    drafting_s: float = 0.0


def parts_of(sequence: Sequence) -> tuple[Any, ...]:
    """Return a sequence's drafter, verifier, tree builder and models.

    Times of rounds are comparable only if these are equal.
    """
    return sequence.drafter, sequence.verifier, sequence.configured_method.tree_builder, id(sequence.models)


class RoundStatsReader:
    """Reader of the token counts and times of a sequence's last round.

    Token counts are available after verification, times only when the round has ended.
    """

    def __init__(self) -> None:
        self._run: RoundStats | None = None

    def record_tokens(self, feedback: RoundFeedback) -> None:
        """Record the numbers of drafted, accepted and emitted tokens of the round. Its duration is not known yet."""
        n_accepted = len(feedback.result.path)
        self._run = RoundStats(feedback.plan.depth, len(feedback.tokens), n_accepted, len(feedback.emitted))

    def take_last_round(self, sequence: Sequence) -> RoundStats | None:
        """Return token counts and times of the sequence's last round; None if none has ended since the last call."""
        stats, self._run = self._run, None
        rounds = sequence.trace.rounds
        if stats is None or not rounds:
            return None
        last = rounds[-1]
        start_s = last.phases[0].start_s if last.phases else 0.0
        drafting_s = next((phase.start_s - start_s for phase in last.phases if phase.name == "verify"), 0.0)
        return replace(stats, seconds=last.seconds, drafting_s=max(0.0, min(drafting_s, last.seconds)))

"""Tokens and times of a run's rounds, for policies that adapt to measured time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from workbench.decoders.draft_verify.feedback import RoundFeedback
from workbench.engine.request import Row


@dataclass(frozen=True, slots=True)
class Lap:
    """Tokens and times of one round.

    Attributes:
        planned: planned depth, limited to the tokens that remained.
        nodes: drafted tokens; 0 if nothing was planned, or the drafter had no draft.
        kept: accepted drafts.
        tokens: emitted tokens.
        seconds: wall time of the round.
        drafting_s: part of it spent on drafting.
    """

    planned: int
    nodes: int
    kept: int
    tokens: int
    seconds: float = 0.0
    drafting_s: float = 0.0


def whose(row: Row) -> tuple[Any, ...]:
    """Return the drafter, verifier, tree builder and models of a sequence; other laps are not comparable."""
    return row.drafter, row.verifier, row.configured.grower, id(row.models)


class Laps:
    """Reader of laps: tokens of a round are available after verification, times when the round is over."""

    def __init__(self) -> None:
        self._run: Lap | None = None

    def judged(self, outcome: RoundFeedback) -> None:
        """Record the round's tokens."""
        n_accepted = len(outcome.verdict.path)
        self._run = Lap(outcome.planned.depth, len(outcome.tokens), n_accepted, len(outcome.emitted))

    def over(self, row: Row) -> Lap | None:
        """Return the sequence's last round, once, when the next one is planned; None if there is no new one."""
        lap, self._run = self._run, None
        rounds = [] if row.trace is None else row.trace.rounds
        if lap is None or not rounds:
            return None
        last = rounds[-1]
        start_s = last.phases[0].start_s if last.phases else 0.0
        drafting_s = next((phase.start_s - start_s for phase in last.phases if phase.name == "verify"), 0.0)
        return replace(lap, seconds=last.seconds, drafting_s=max(0.0, min(drafting_s, last.seconds)))

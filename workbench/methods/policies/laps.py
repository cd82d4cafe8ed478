"""What the rounds of a run gave and took, for policies that learn from its own clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from workbench.engine.request import Row
from workbench.engine.told import Outcome


@dataclass(frozen=True, slots=True)
class Lap:
    """One round.

    Attributes:
        planned: the depth that was asked for, cut to what is left of the text.
        nodes: drafted tokens; 0 where nothing was asked for, or nothing found.
        kept: accepted drafts.
        tokens: emitted.
        seconds: wall time of the round.
        drafting_s: the part of it that drafting took.
    """

    planned: int
    nodes: int
    kept: int
    tokens: int
    seconds: float = 0.0
    drafting_s: float = 0.0


def whose(row: Row) -> tuple[Any, ...]:
    """What laps are of: by another drafter, verifier, grower or models they say nothing."""
    return row.drafter, row.verifier, row.configured.grower, id(row.models)


class Laps:
    """Reads one lap after the other: what a round gave is told when it is judged, what it took once it is over."""

    def __init__(self) -> None:
        self._run: Lap | None = None

    def judged(self, outcome: Outcome) -> None:
        """What the round gave."""
        kept = len(outcome.verdict.path)
        self._run = Lap(outcome.planned.depth, len(outcome.tokens), kept, len(outcome.emitted))

    def over(self, row: Row) -> Lap | None:
        """The last round of the row, once, when the next one is planned; None where there is nothing new."""
        lap, self._run = self._run, None
        rounds = [] if row.trace is None else row.trace.rounds
        if lap is None or not rounds:
            return None
        last = rounds[-1]
        begun = last.phases[0].start_s if last.phases else 0.0
        drafting = next((phase.start_s - begun for phase in last.phases if phase.name == "verify"), 0.0)
        return replace(lap, seconds=last.seconds, drafting_s=max(0.0, min(drafting, last.seconds)))

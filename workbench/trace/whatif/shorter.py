"""Predict the number of rounds with shorter drafts, from the recorded acceptance at each position of the text.

A run with drafts of at most K tokens starts its rounds at other positions than the recorded run: after a cut draft the
next round starts inside the recorded draft and continues into the recorded rounds after it. The computation therefore
goes over positions of the text, not over recorded rounds. Assumptions by recorded outcome:

    accepted at depth d    accepted at depths up to d, too
    rejected at depth d    rejected; at a smaller depth accepted with the probability given in `_chances`
    after a full draft     not drafted: the rate of the deepest recorded position, or of the new depth, if higher
    after a draft that ended early, or without a draft    a new draft ends there, too

For a drafter whose greedy proposals depend only on the text, the first two are exact. The expected number of rounds is
computed without sampling: each position has one probability that a round starts there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from workbench.trace.events import Round
from workbench.trace.tokens import CORRECTED
from workbench.trace.whatif.predicted import depths


class Outcome(Enum):
    """Recorded outcome at a position of the text."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    BEYOND = "after a draft of full depth that was accepted"
    ENDED = "after a draft that ended early, or where none was found"


@dataclass(frozen=True, slots=True)
class Position:
    """Position of the text.

    Attributes:
        number: index of the recorded round that emitted its token.
        depth: depth in the draft of that round, from 1.
        outcome: recorded outcome.
    """

    number: int
    depth: int
    outcome: Outcome


def positions(rounds: Sequence[Round]) -> list[Position]:
    """Return every emitted position in order, with its recorded outcome."""
    levels = depths(rounds)
    full, result = max(levels, default=0), list[Position]()
    for number, (r, level) in enumerate(zip(rounds, levels, strict=True)):
        for i, token in enumerate(r.emitted):
            if token.node is not None:
                outcome = Outcome.ACCEPTED
            elif (level and r.bonus_kind == CORRECTED) or i < full <= level:
                outcome = Outcome.REJECTED
            else:
                outcome = Outcome.BEYOND if level >= full > 0 else Outcome.ENDED
            result.append(Position(number, i + 1, outcome))
    return result


def starts(rounds: Sequence[Round], most: int) -> list[float]:
    """Return, for each position of the text, the probability that a round with drafts of at most `most` starts there.

    Their sum is the expected number of rounds.
    """
    places, chance = positions(rounds), _chances(reached(rounds))
    begins = [0.0] * len(places)
    for start in range(len(places)):
        if start == 0:
            begins[0] = 1.0
        alive = begins[start]
        for depth in range(1, most + 1):
            at = start + depth - 1
            if at >= len(places) or not alive:
                alive = 0.0
                break
            right = chance(places[at], depth)
            if at + 1 < len(places):
                begins[at + 1] += alive * (1 - right)  # the round ends with the target's own token
            alive *= right
        if start + most + 1 < len(places):
            begins[start + most + 1] += alive
    return begins


def reached(rounds: Sequence[Round]) -> list[tuple[int, int]]:
    """Return (positions that were accepted or rejected, positions that were accepted) by depth, from depth 1 on."""
    counts = list[tuple[int, int]]()
    for p in positions(rounds):
        if p.outcome in (Outcome.ACCEPTED, Outcome.REJECTED):
            counts += [(0, 0)] * (p.depth - len(counts))
            tried, kept = counts[p.depth - 1]
            counts[p.depth - 1] = tried + 1, kept + (p.outcome is Outcome.ACCEPTED)
    return counts


def _chances(counts: Sequence[tuple[int, int]]) -> Callable[[Position, int], float]:
    """Return a function that gives the probability that a position is accepted at another depth.

    Acceptance at two depths is assumed to be nested: the better depth accepts wherever the worse one does. Only the
    part of a difference that exceeds its standard error counts, because small counts differ by chance.
    """

    def rate(depth: int) -> float:
        tried, kept = counts[min(depth, len(counts)) - 1] if counts else (0, 0)
        return kept / tried if tried else 0.0

    def error(depth: int) -> float:
        tried, kept = counts[min(depth, len(counts)) - 1]
        share = (kept + 1) / (tried + 2)  # Laplace's estimate: no certainty from few observations
        return share * (1 - share) / (tried + 2)

    def better(now: int, then: int) -> float:
        """Return by how much acceptance at one depth exceeds that at another beyond its standard error, from 0."""
        return max(0.0, rate(now) - rate(then) - (error(now) + error(then)) ** 0.5) if counts else 0.0

    def chance(position: Position, depth: int) -> float:
        then = position.depth
        if position.outcome is Outcome.ACCEPTED:
            return 1 - better(then, depth) / rate(then) if depth > then and rate(then) else 1.0
        if position.outcome is Outcome.REJECTED:
            return better(depth, then) / (1 - rate(then)) if depth < then and rate(then) < 1 else 0.0
        deepest = len(counts)
        return rate(deepest) + better(depth, deepest) if position.outcome is Outcome.BEYOND else 0.0

    return chance

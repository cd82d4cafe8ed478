"""Rounds that a run with shorter drafts takes, from the recorded acceptance at each position of the text.

A run with drafts of at most K tokens starts its rounds at other positions than the recorded one: after a cut draft the
next round begins inside the recorded draft, goes on after that draft's end and into the recorded rounds that follow.
So the walk below goes over positions of the text, not over recorded rounds. What the recorded run says of a position:

    accepted at depth d    accepted at depths up to d, too
    rejected at depth d    rejected; a drafter that is better near its start may still be right there (see `chance`)
    after a whole draft    not drafted: the rate of the deepest recorded position, or of the new depth, if higher
    after a draft that a rule ended early, or where none was found    a new draft ends there, too

For a drafter whose greedy proposals depend on the text alone the first two are exact. The expected number of rounds
follows without drawing: each position has one probability that a round starts there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from workbench.trace.events import Round
from workbench.trace.tokens import CORRECTED
from workbench.trace.whatif.predicted import depths


class Outcome(Enum):
    """What the recorded run says of a position of the text."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    BEYOND = "after a draft of full depth that was accepted"
    ENDED = "after a draft that ended early, or where none was found"


@dataclass(frozen=True, slots=True)
class Position:
    """A position of the text.

    Attributes:
        number: index of the recorded round that emitted it.
        depth: depth in the draft of that round, from 1.
        outcome: what the round says of it.
    """

    number: int
    depth: int
    outcome: Outcome


def positions(rounds: Sequence[Round]) -> list[Position]:
    """Return every emitted position in order, with what its round says of it."""
    levels = depths(rounds)
    full, found = max(levels, default=0), list[Position]()
    for number, (r, level) in enumerate(zip(rounds, levels, strict=True)):
        for i, token in enumerate(r.emitted):
            if token.node is not None:
                outcome = Outcome.ACCEPTED
            elif (level and r.bonus_kind == CORRECTED) or i < full <= level:
                outcome = Outcome.REJECTED
            else:
                outcome = Outcome.BEYOND if level >= full > 0 else Outcome.ENDED
            found.append(Position(number, i + 1, outcome))
    return found


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
    """Return, by depth from 1 on, how many drafts were tested there, or had no node on the path, and were accepted."""
    counts = list[tuple[int, int]]()
    for p in positions(rounds):
        if p.outcome in (Outcome.ACCEPTED, Outcome.REJECTED):
            counts += [(0, 0)] * (p.depth - len(counts))
            tried, kept = counts[p.depth - 1]
            counts[p.depth - 1] = tried + 1, kept + (p.outcome is Outcome.ACCEPTED)
    return counts


def _chances(counts: Sequence[tuple[int, int]]) -> Callable[[Position, int], float]:
    """Return the probability that a position is accepted at a depth, by what is recorded of it.

    Acceptance at two depths is taken to be nested: the better depth accepts wherever the worse one does. A difference
    between two depths counts as far as it exceeds its standard error, since small counts differ by chance.
    """

    def rate(depth: int) -> float:
        tried, kept = counts[min(depth, len(counts)) - 1] if counts else (0, 0)
        return kept / tried if tried else 0.0

    def error(depth: int) -> float:
        tried, kept = counts[min(depth, len(counts)) - 1]
        share = (kept + 1) / (tried + 2)  # Laplace's: no certainty from few
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

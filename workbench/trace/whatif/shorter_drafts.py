"""Predict the number of rounds of a run with shorter drafts, from the recorded acceptance at each text position.

A run with drafts of at most K tokens starts its rounds at other positions than the recorded run. After a cut draft, the
next round starts inside the recorded draft and continues into the recorded rounds after it. The computation therefore
iterates over positions of the text, not over recorded rounds. Assumptions for a position, by its recorded outcome:

    accepted at depth d     It is accepted at depths up to d, too.
    rejected at depth d     It is rejected; at a smaller depth it is accepted with the probability from `_chances`.
    after a full draft      It was not drafted. It is accepted at the rate of the deepest recorded position, or of the
                            new depth, if that is higher.
    no draft reached it     The recorded draft ended early or was missing. A new draft ends there, too.

For a drafter whose greedy proposals depend only on the text, the first two assumptions are exact. The expected number
of rounds is computed without sampling, from the probability that a round starts at each position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from workbench.trace.events import Round
from workbench.trace.tokens import CORRECTED
from workbench.trace.whatif.tau_prediction import draft_depths


class Outcome(Enum):
    """Recorded outcome of drafting at one text position: accepted, rejected, or the reason why it was not drafted."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    BEYOND = "after a draft of full depth that was accepted"
    ENDED = "after a draft that ended early, or in a round without a draft"


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a token in the recorded text, with the outcome of drafting at this position.

    Attributes:
        number: index of the recorded round that emitted the token at this position.
        depth: depth of the position in the draft of that round, from 1.
        outcome: recorded outcome of drafting.
    """

    number: int
    depth: int
    outcome: Outcome


def positions(rounds: Sequence[Round]) -> list[Position]:
    """Return the position of every emitted token in order, with its draft depth and the outcome of drafting there."""
    levels = draft_depths(rounds)
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


def round_start_probs(rounds: Sequence[Round], most: int) -> list[float]:
    """Return the probability that a round starts at each position of the text, if drafts have at most `most` tokens.

    The sum of these probabilities is the expected number of rounds.
    """
    text_positions, accept_prob = positions(rounds), _chances(count_by_depth(rounds))
    start_probs = [0.0] * len(text_positions)
    for start in range(len(text_positions)):
        if start == 0:
            start_probs[0] = 1.0
        path_prob = start_probs[start]
        for depth in range(1, most + 1):
            at = start + depth - 1
            if at >= len(text_positions) or not path_prob:
                path_prob = 0.0
                break
            prob = accept_prob(text_positions[at], depth)
            if at + 1 < len(text_positions):
                start_probs[at + 1] += path_prob * (1 - prob)  # the round ends with the target's own token
            path_prob *= prob
        if start + most + 1 < len(text_positions):
            start_probs[start + most + 1] += path_prob
    return start_probs


def count_by_depth(rounds: Sequence[Round]) -> list[tuple[int, int]]:
    """Return, by draft depth from 1 on, the numbers of tested text positions and of accepted ones, as pairs."""
    counts = list[tuple[int, int]]()
    for p in positions(rounds):
        if p.outcome in (Outcome.ACCEPTED, Outcome.REJECTED):
            counts += [(0, 0)] * (p.depth - len(counts))
            n_tested, n_accepted = counts[p.depth - 1]
            counts[p.depth - 1] = n_tested + 1, n_accepted + (p.outcome is Outcome.ACCEPTED)
    return counts


def _chances(counts: Sequence[tuple[int, int]]) -> Callable[[Position, int], float]:
    """Return a function that gives the probability that a text position is accepted at another draft depth.

    Acceptance at two depths is assumed to be nested: the depth with the higher acceptance rate accepts all positions
    that the other depth accepts. Only the amount by which two rates differ beyond the standard error counts, because
    rates from small counts differ by chance.
    """

    def rate(depth: int) -> float:
        n_tested, n_accepted = counts[min(depth, len(counts)) - 1] if counts else (0, 0)
        return n_accepted / n_tested if n_tested else 0.0

    def error(depth: int) -> float:
        n_tested, n_accepted = counts[min(depth, len(counts)) - 1]
        share = (n_accepted + 1) / (n_tested + 2)  # Laplace's estimate: no certainty from few observations
        return share * (1 - share) / (n_tested + 2)

    def better(now: int, then: int) -> float:
        """Return how much higher the acceptance rate is at depth `now` than at depth `then`, at least 0.

        The standard error of the difference is subtracted.
        """
        return max(0.0, rate(now) - rate(then) - (error(now) + error(then)) ** 0.5) if counts else 0.0

    def chance(position: Position, depth: int) -> float:
        recorded = position.depth
        if position.outcome is Outcome.ACCEPTED:
            return 1 - better(recorded, depth) / rate(recorded) if depth > recorded and rate(recorded) else 1.0
        if position.outcome is Outcome.REJECTED:
            return better(depth, recorded) / (1 - rate(recorded)) if depth < recorded and rate(recorded) < 1 else 0.0
        deepest = len(counts)
        return rate(deepest) + better(depth, deepest) if position.outcome is Outcome.BEYOND else 0.0

    return chance

"""Choose the draft length with UCB1, a multi-armed bandit; the reward is tokens per second in this run."""

from __future__ import annotations

import math
from collections import abc, deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from workbench.core.params import param
from workbench.decoders.declarations import WRONG_SETTING, Claim
from workbench.decoders.draft_verify.parts import Plan, Policy, RoundFeedback
from workbench.engine.request import Sequence
from workbench.methods.policies.fixed import BEST_OF, DEPTH, Bounds
from workbench.methods.policies.round_stats import RoundStats, RoundStatsReader, parts_of

REMEMBERED: Bounds = {"ge": 20, "le": 1000, "doc": "number of most recent rounds that an estimate uses"}


@dataclass(slots=True)
class RoundHistory:
    """Last rounds of a sequence as (planned draft length, emitted tokens, seconds).

    Attributes:
        parts: drafter, verifier, tree builder and models with which the rounds ran.
        stats_reader: reader of the statistics of the round that has just ended.
        rounds: the stored rounds, from the oldest to the newest.
    """

    parts: Any = None
    stats_reader: RoundStatsReader = field(default_factory=RoundStatsReader)
    rounds: deque[tuple[int, int, float]] = field(default_factory=deque[tuple[int, int, float]])

    def add(self, stats: RoundStats, window: int) -> None:
        """Add a round to the history, and drop the oldest rounds until `window` remain."""
        self.rounds.append((stats.planned, stats.tokens, stats.seconds))
        while len(self.rounds) > window:
            self.rounds.popleft()

    def rates(self) -> dict[int, tuple[int, float]]:
        """Return (number of rounds, tokens per second) of each draft length.

        A rate is the ratio of the sums, because a mean of rates would favour short rounds.
        """
        sums: dict[int, tuple[int, int, float]] = {}
        for k, tokens, seconds in self.rounds:
            n, t, s = sums.get(k, (0, 0, 0.0))
            sums[k] = n + 1, t + tokens, s + seconds
        return {k: (n, t / max(s, 1e-9)) for k, (n, t, s) in sums.items()}


BY_HINDSIGHT = (
    f"{WRONG_SETTING}: nine draft lengths are about equally fast, and the best is known only in hindsight; the "
    "paper's bandit serves whole training batches."
)


@dataclass(frozen=True)
class Bandit(Policy):
    """Choose the draft length K from 0 to `depth` by UCB1: the K with the largest rate + c · scale · √(2 ln n / n_K).

    The rate of K is the tokens per second of its rounds among the last `remembered` rounds. n is the number of all
    these rounds, and n_K of them have length K. Lengths without a round are tried first, the longest first. The scale
    is the best rate, so c has no unit. The policy assumes nothing about costs or acceptance.

    Source: Auer et al. 2002, UCB1; Hu et al. 2025, TLT, arXiv:2511.16665 (rewards: tokens per second; a sliding
    window). The paper's batch of several sequences is one sequence here, and the mean of a window replaces the paper's
    trimmed mean.
    """

    name: ClassVar[str] = "bandit"
    timed: ClassVar[bool] = True
    depth: int = param(4, **DEPTH)
    exploration: float = param(0.2, ge=0.0, le=2.0, doc="c, weight of the exploration bonus (UCB)")
    remembered: int = param(200, **REMEMBERED)
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "tokens per second relative to the best fixed draft length",
            "Qwen2.5 7B and 32B during training, compared with each single strategy",
            1.0, 1.0, "Hu et al. 2025, TLT, arXiv:2511.16665: the bandit finds the best strategy (from memory)",
            lambda lab: lab.speed_over({"policy": "bandit", "depth": 8}, BEST_OF), key="bandit", timed=True,
            tolerance=0.05, method="draft-model", explanation=("2026-11-24 17:42 UTC", BY_HINDSIGHT),
            explanation_by_column={"smollm2": ("2026-11-26 16:47 UTC", BY_HINDSIGHT)},
        ),
    )  # fmt: skip

    def init_state(self) -> list[RoundHistory]:
        """Return a list with an empty round history.

        `plan` replaces the history when the drafter or the verifier changes.
        """
        return [RoundHistory()]

    def plan(self, sequence: Sequence, state: list[RoundHistory], batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Return a plan with the draft length that has the highest upper confidence bound."""
        if state[0].parts != (parts := parts_of(sequence)):
            state[0] = RoundHistory(parts)
        played = state[0]
        if (stats := played.stats_reader.take_last_round(sequence)) is not None:
            played.add(stats, self.remembered)
        k = self.choose(played.rates())
        sequence.report.signals["planned depth"] = k
        return Plan(k)

    def choose(self, rates: dict[int, tuple[int, float]]) -> int:
        """Return the draft length of the next round: an unused length, or the one with the highest confidence bound.

        Args:
            rates: (number of rounds, tokens per second) of each length that was used.
        """
        for k in range(self.depth, -1, -1):
            if k not in rates:
                return k
        n_rounds, best_rate = sum(n for n, _ in rates.values()), max(rate for _, rate in rates.values())

        def bound(k: int) -> float:
            n, rate = rates[k]
            return rate / best_rate + self.exploration * math.sqrt(2 * math.log(n_rounds) / n)

        return max(range(self.depth + 1), key=bound)

    def observe(self, sequence: Sequence, state: list[RoundHistory], feedback: RoundFeedback) -> None:
        """Record the number of tokens of the round. The round's duration is read later, after its end."""
        state[0].stats_reader.record_tokens(feedback)

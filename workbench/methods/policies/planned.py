"""Choose the length with the most expected tokens per second, from this run's rounds; 0 if drafting is slower."""

from __future__ import annotations

from collections import abc, deque
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, ClassVar

from workbench.core.params import param
from workbench.decoders.draft_verify.parts import Plan, Policy, RoundFeedback
from workbench.engine.request import Sequence
from workbench.methods.policies.fixed import DEPTH
from workbench.methods.policies.round_stats import RoundStats, RoundStatsReader, parts_of

FIRST = 2
"""Levels of the first draft: its cost and that of a plain pass predict the cost of longer drafts."""
SHARE = 0.02
"""Share of the run's time that may be spent on trying options estimated to be slower."""
WINDOW = 5
"""Number of last rounds of a length; their median time is the cost of that length."""
EVERY = 4
"""Rounds of one kind, drafting or plain, before the other kind is tried."""
POOLED = 2.0
"""Weight of the acceptance rate of all levels in the estimate for one level, in tests."""
REMEMBERED = 2.0
"""Tests that remain after rounds without a draft: few enough for one trial to change the estimate."""


@dataclass(slots=True)
class RoundEstimates:
    """Estimates from a run so far. Counts are discounted; level 1 is the first drafted token.

    Attributes:
        parts: drafter and models that they were measured with.
        stats_reader: tokens and times of the last round.
        seconds: times of the last rounds by their length; length 0: rounds that verified one token alone.
        accepted: by level, drafts that were accepted.
        tested: by level, rounds that were planned to this depth and accepted all levels above. Level 1 has a prior of
            one test with acceptance 0.7.
        n_drafted: planned rounds in which the drafter proposed something.
        n_planned: planned rounds.
        idle_s: seconds of drafting in the planned rounds in which the drafter proposed nothing.
        is_drafting: whether the last rounds were planned to draft.
        n_same_kind: number of consecutive last rounds of that kind.
        lost_s: seconds that drafting took longer than plain decoding would have, since it was last faster.
        tried_s: seconds lost by plain rounds while drafting is faster.
        spent_s: seconds of all rounds.
    """

    parts: Any = None
    stats_reader: RoundStatsReader = field(default_factory=RoundStatsReader)
    seconds: dict[int, deque[float]] = field(default_factory=dict[int, deque[float]])
    accepted: dict[int, float] = field(default_factory=lambda: {1: 0.7})
    tested: dict[int, float] = field(default_factory=lambda: {1: 1.0})
    n_drafted: float = 1.0
    n_planned: float = 1.0
    idle_s: float = 0.0
    is_drafting: bool = False
    n_same_kind: int = 0
    lost_s: float = 0.0
    tried_s: float = 0.0
    spent_s: float = 0.0

    @property
    def acceptance(self) -> float:
        """Acceptance rate of all levels together."""
        return sum(self.accepted.values()) / sum(self.tested.values())

    def costs(self, depth: int) -> list[float]:
        """Return the seconds of a round of 0 … `depth` levels: measured, or interpolated between measured ones."""
        measured = sorted((k, median_low(seconds)) for k, seconds in self.seconds.items())
        costs_s: list[float] = []
        for k in range(depth + 1):
            index = next((i for i, (n, _) in enumerate(measured) if n >= k), len(measured) - 1)
            (a, t_a), (b, t_b) = measured[max(0, index - 1)], measured[index]
            costs_s.append(t_b if k == b or a == b else t_a + max(0.0, t_b - t_a) * (k - a) / (b - a))
        return costs_s

    def tokens(self, depth: int) -> list[float]:
        """Return the expected tokens of a round with a draft of 0 … `depth` levels: 1 + Σ Π probability.

        A level's probability is its share of accepted tests; with few tests it is shrunk towards the overall rate.
        """
        expected, path_prob, pooled = [1.0], 1.0, POOLED * self.acceptance
        for level in range(1, depth + 1):
            path_prob *= (self.accepted.get(level, 0.0) + pooled) / (self.tested.get(level, 0.0) + POOLED)
            expected.append(expected[-1] + path_prob)
        return expected

    def outlook(self, depth: int) -> list[tuple[float, float]]:
        """Return the expected (tokens, seconds) of a round planned 0 … `depth` levels deep, which may get no draft."""
        costs = self.costs(depth)
        offer_rate, idle_s = self.n_drafted / self.n_planned, self.idle_s / self.n_planned
        without_s = (1 - offer_rate) * costs[0] + idle_s
        pairs = list(zip(self.tokens(depth), costs, strict=True))
        return [pairs[0], *((offer_rate * n + 1 - offer_rate, offer_rate * s + without_s) for n, s in pairs[1:])]

    def count_tests(self, feedback: RoundFeedback, forgetting: float) -> None:
        """Count tests. A draft shorter than planned counts as rejected at its end, as the plan is evaluated."""
        self.stats_reader.record_tokens(feedback)
        planned, n_accepted = feedback.plan.depth, len(feedback.result.path)
        if not planned:
            if self.tested[1] > REMEMBERED:
                self._forget(forgetting)
            return
        self.n_drafted = forgetting * self.n_drafted + bool(feedback.tokens)
        self.n_planned, self.idle_s = forgetting * self.n_planned + 1, forgetting * self.idle_s
        if feedback.tokens:
            self._forget(forgetting)
            for level in range(1, min(planned, n_accepted + 1) + 1):
                self.accepted[level] = self.accepted.get(level, 0.0) + (level <= n_accepted)
                self.tested[level] = self.tested.get(level, 0.0) + 1

    def _forget(self, forgetting: float) -> None:
        for counts in (self.accepted, self.tested):
            for level in counts:
                counts[level] *= forgetting

    def add_times(self, stats: RoundStats) -> None:
        """Add a round's time. A round that was planned to draft but got no draft counts as plain plus idle drafting."""
        idle_s = 0.0 if stats.nodes or not stats.planned else stats.drafting_s
        self.idle_s += idle_s
        durations = self.seconds.setdefault(stats.planned if stats.nodes else 0, deque(maxlen=WINDOW))
        durations.append(stats.seconds - idle_s)
        self.spent_s += stats.seconds
        if bool(stats.planned) is not self.is_drafting:
            self.is_drafting, self.n_same_kind = not self.is_drafting, 0
        self.n_same_kind += 1
        if 0 in self.seconds and stats.planned:  # other load on the machine is not a cost of the draft
            plain_s = stats.tokens * median_low(self.seconds[0])
            self.lost_s = max(0.0, self.lost_s + min(stats.seconds, 2 * median_low(durations) + idle_s) - plain_s)


@dataclass(frozen=True)
class Planned(Policy):
    """Choose K from 0 up to a bound so that expected tokens per second are largest.

    Tokens per round: 1 + Σ over the levels of the probability that a level and all above it are accepted, by the
    acceptance rates so far (older rounds count less). Seconds per round: medians of this run's rounds of each length,
    including plain ones. If K = 0 is best, nothing is drafted. A draft is then tried again only while the total loss of
    drafts stays below one plain pass plus 2 % of the run's time. Plain rounds while drafting is faster also cost at
    most 2 %.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1 and §3.5, with measured instead of assumed costs and
    acceptance by level; Liu et al. 2024, SmartSpec, arXiv:2406.14066: K = 0 and occasional exploration.
    """

    name: ClassVar[str] = "planned"
    timed: ClassVar[bool] = True
    depth: int = param(4, **DEPTH)
    forgetting: float = param(0.9, ge=0.5, le=1.0, doc="factor on the weight of past rounds, applied every round")

    def init_state(self) -> list[RoundEstimates]:
        """Return initial estimates, in a list so that another drafter can start new ones."""
        return [RoundEstimates()]

    def plan(self, sequence: Sequence, state: list[RoundEstimates], batch: abc.Sequence[Sequence] = ()) -> Plan:
        """Plan the best K from 0 to `depth`, or a length to try again."""
        if state[0].parts != (parts := parts_of(sequence)):
            state[0] = RoundEstimates(parts)
        estimates = state[0]
        if (stats := estimates.stats_reader.take_last_round(sequence)) is not None:
            estimates.add_times(stats)
        k = self.choose(estimates)
        sequence.report.signals["planned depth"] = k
        sequence.report.signals["estimated acceptance"] = estimates.acceptance
        return Plan(k)

    def choose(self, estimates: RoundEstimates) -> int:
        """Return 0, a short draft, 0 once more; then the best length, or one to try."""
        n_plain = len(estimates.seconds.get(0, ()))
        if n_plain < 2 and (not n_plain or estimates.is_drafting):
            return 0
        if n_plain < 2:
            return min(self.depth, FIRST)
        outlook = estimates.outlook(self.depth)
        rates = [tokens / seconds for tokens, seconds in outlook]
        longest, plain_s = max(range(1, self.depth + 1), key=rates.__getitem__), outlook[0][1]
        if rates[longest] > rates[0]:
            regret = plain_s - 1 / rates[longest]
            if estimates.n_same_kind < EVERY or estimates.tried_s + regret > SHARE * estimates.spent_s:
                return longest
            estimates.tried_s += regret
            return 0
        tokens, seconds = outlook[longest]
        regret = seconds - tokens * plain_s
        is_soon = (
            estimates.n_same_kind < EVERY and regret > SHARE * plain_s
        )  # a trial that costs almost nothing is always made
        may_lose_s = SHARE * estimates.spent_s + plain_s
        return 0 if is_soon or estimates.lost_s + regret > may_lose_s else longest

    def observe(self, sequence: Sequence, state: list[RoundEstimates], feedback: RoundFeedback) -> None:
        """Count the round's tests."""
        state[0].count_tests(feedback, self.forgetting)
